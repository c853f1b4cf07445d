// SPDX-License-Identifier: GPL-2.0

//! Who is within a callback, so that a call that would wait for itself is refused.
//!
//! A driver's callbacks run with locks held or pages isolated. A function of the library that waits
//! for the same would never return. So the tasks that are within one are noted in a small table, and
//! functions that wait ask it first. Several tasks can be within callbacks of one mirror, and what they
//! must not do concerns all mirrors; so the table is one for all.
//!
//! A task whose places are all taken is not noted: then nothing is refused that should be, and lockdep
//! is what sees it.

use crate::bindings;
use kernel::{
    ffi,
    prelude::*,
    sync::atomic::{
        ordering::{Acquire, Relaxed, Release},
        Atomic, //
    },
    task::Task,
    types::NotThreadSafe, //
};

const PLACES: usize = 128;

/// Places in which a task may be noted.
const WINDOW: usize = 8;

/// A task that is within callbacks.
struct Place {
    /// Its address; 0 if the place is free.
    task: Atomic<usize>,
    /// How deep it is. Only the task itself changes this.
    depth: Atomic<u32>,
}

static TABLE: [Place; PLACES] = [const {
    Place {
        task: Atomic::new(0),
        depth: Atomic::new(0),
    }
}; PLACES];

/// Names the current task, as long as it runs.
#[inline(never)]
pub(crate) fn current_task() -> usize {
    Task::current_raw() as usize
}

/// The places of `task`.
fn window(task: usize) -> impl Iterator<Item = &'static Place> {
    // A `task_struct` is some KiB long.
    let first = (task >> 10).wrapping_mul(0x9e37_79b9) >> 7;
    (0..WINDOW).filter_map(move |step| TABLE.get((first + step) % PLACES))
}

fn place_of(task: usize) -> Option<&'static Place> {
    // What a task has written itself, it sees; others never write its name.
    window(task).find(|place| place.task.load(Relaxed) == task)
}

/// The current task is within a callback, or has a guard that counts as one, as long as this exists.
pub(crate) struct Within {
    place: Option<&'static Place>,
    _nts: NotThreadSafe,
}

impl Within {
    /// Context: any but interrupts.
    #[inline(never)]
    pub(crate) fn enter() -> Self {
        let task = current_task();
        let place = place_of(task).or_else(|| {
            window(task).find(|place| {
                place.task.load(Relaxed) == 0 && place.task.cmpxchg(0, task, Acquire).is_ok()
            })
        });
        if let Some(place) = place {
            place.depth.store(place.depth.load(Relaxed) + 1, Relaxed);
        }
        Self {
            place,
            _nts: NotThreadSafe,
        }
    }
}

impl Drop for Within {
    #[inline(never)]
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let depth = place.depth.load(Relaxed).saturating_sub(1);
            place.depth.store(depth, Relaxed);
            if depth == 0 {
                place.task.store(0, Release);
            }
        }
    }
}

/// Whether the current task is within a callback.
#[inline(never)]
pub(crate) fn is_within() -> bool {
    place_of(current_task()).is_some()
}

/// `EDEADLK`, which the kernel crate does not name.
#[inline(never)]
pub(crate) fn deadlock() -> Error {
    // CAST: A small constant.
    Error::from_errno(-(bindings::EDEADLK as ffi::c_int))
}

/// Whether a function may be called now that takes the mmap lock or a table lock.
///
/// # Errors
///
/// `EDEADLK` within a callback, or where sleeping is not allowed, as in a section.
#[inline(never)]
pub(crate) fn may_wait() -> Result {
    // SAFETY: No preconditions.
    if is_within() || !unsafe { bindings::rust_hmm_may_sleep() } {
        return Err(deadlock());
    }
    Ok(())
}

#[kunit_tests(rust_hmm_within)]
mod tests {
    use super::*;
    use crate::thread::Thread;
    use kernel::sync::Arc;

    #[test]
    fn depth_is_counted_and_others_are_not_meant() -> Result {
        assert_eq!(may_wait(), Ok(()));
        let outer = Within::enter();
        let inner = Within::enter();
        assert_eq!(may_wait(), Err(deadlock()));
        let seen = Arc::new(Atomic::new(0u32), GFP_KERNEL)?;
        let other = seen.clone();
        drop(Thread::spawn(c"hmm-test", move || {
            other.store(1 + u32::from(may_wait().is_err()), Relaxed);
        })?);
        // It may have been dropped before it ran.
        assert_ne!(seen.load(Relaxed), 2);
        drop(outer);
        assert!(is_within());
        drop(inner);
        assert_eq!(may_wait(), Ok(()));
        assert!(TABLE.iter().all(|place| place.depth.load(Relaxed) == 0));
        Ok(())
    }

    #[test]
    fn a_full_table_refuses_nobody() {
        let task = current_task();
        for place in window(task) {
            place.task.store(usize::MAX, Relaxed);
        }
        {
            let _within = Within::enter();
            assert_eq!(may_wait(), Ok(()));
        }
        for place in window(task) {
            place.task.store(0, Relaxed);
        }
        let within = Within::enter();
        assert!(is_within());
        drop(within);
    }
}
