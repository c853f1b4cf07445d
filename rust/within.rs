// SPDX-License-Identifier: GPL-2.0

//! Who is within a callback, so that a call that would wait for itself is refused.
//!
//! A driver's callbacks run with locks held or pages isolated. A function of the library that waits
//! for the same would never return. So the tasks that are within one are noted in a small table, and
//! functions that wait ask it first. Several tasks can be within callbacks of one mirror, and what they
//! must not do concerns all mirrors; so the table is one for all.
//!
//! A task is named by its address and the time of its birth: a guard that was forgotten stays noted, but not for
//! another task that gets the same memory later. If all places are taken, a task is not noted: then nothing is refused
//! that should be, and lockdep is what sees it.

use crate::{
    bindings,
    limit::Limit,
    mm::word::{
        peek_u32,
        peek_u64,
        peek_usize,
        store_u32,
        store_u64, //
    },
};
use core::panic::Location;
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

/// Limits the reports of refused calls.
static REPORTS: Limit = Limit::new(1);

/// Tasks that can be within callbacks at once.
const PLACES: usize = 1024;

/// A task that is within callbacks.
struct Place {
    /// Its address; 0 if the place is free.
    task: Atomic<usize>,
    /// When it was born. This and the depth are only written by the task itself.
    born: Atomic<u64>,
    /// How deep it is.
    depth: Atomic<u32>,
    /// Number of places, from this one on, in which tasks have been noted that are looked for from here. Never less again.
    reach: Atomic<usize>,
}

static TABLE: [Place; PLACES] = [const {
    Place {
        task: Atomic::new(0),
        born: Atomic::new(0),
        depth: Atomic::new(0),
        reach: Atomic::new(0),
    }
}; PLACES];

/// Names the current task, as long as it runs.
#[inline(never)]
pub(crate) fn current_task() -> usize {
    Task::current_raw() as usize
}

/// The current task among all that have ever been.
#[derive(Clone, Copy)]
struct Name {
    address: usize,
    born: u64,
}

impl Name {
    fn current() -> Self {
        let task = Task::current_raw();
        Self {
            address: task as usize,
            // SAFETY: The current task is alive, and nobody else writes this.
            born: unsafe { (*task).start_time },
        }
    }

    /// Index of the first place to look at.
    fn first(&self) -> usize {
        // A `task_struct` is some KiB long.
        ((self.address >> 10).wrapping_mul(0x9e37_79b9) >> 7) % PLACES
    }

    /// The first `count` places in which it may be noted.
    fn places(&self, count: usize) -> impl Iterator<Item = &'static Place> {
        let first = self.first();
        (0..count).filter_map(move |step| TABLE.get((first + step) % PLACES))
    }

    fn reach(&self) -> Option<&'static Atomic<usize>> {
        TABLE.get(self.first()).map(|place| &place.reach)
    }

    /// The place with its address, which may be that of a task before it.
    fn noted(&self) -> Option<&'static Place> {
        let reach = peek_usize(self.reach()?);
        // What a task has written itself, it sees; others never write its address.
        self.places(reach)
            .find(|place| peek_usize(&place.task) == self.address)
    }

    /// The place in which it is noted.
    fn place(&self) -> Option<&'static Place> {
        self.noted()
            .filter(|place| peek_u64(&place.born) == self.born)
    }

    /// Enters one callback more. `None` if no place is free.
    #[inline]
    fn enter(&self) -> Option<&'static Place> {
        self.enter_first().or_else(|| self.enter_noted())
    }

    /// As [`Self::enter`], if its first place is free and no task was ever noted farther from
    /// there: as good as always for a task that is not within a callback. Callbacks come for each
    /// page.
    #[inline]
    fn enter_first(&self) -> Option<&'static Place> {
        let place = TABLE.get(self.first())?;
        // With a reach of 1 it cannot be noted elsewhere. The reach is 0 before the first use.
        let is_taken = peek_usize(&place.reach) == 1 && self.take(place);
        is_taken.then(|| self.begin(place))
    }

    // Not inlined into what most callbacks need.
    #[inline(never)]
    fn enter_noted(&self) -> Option<&'static Place> {
        match self.noted() {
            Some(place) if peek_u64(&place.born) == self.born => {
                store_u32(&place.depth, peek_u32(&place.depth) + 1);
                Some(place)
            }
            // Of a task that has ended with a guard that it forgot.
            Some(place) => Some(self.begin(place)),
            None => Some(self.begin(self.claim()?)),
        }
    }

    /// Notes that the task is within one callback, in `place`, which it has taken.
    #[inline]
    fn begin<'p>(&self, place: &'p Place) -> &'p Place {
        store_u64(&place.born, self.born);
        store_u32(&place.depth, 1);
        place
    }

    /// Takes `place`, if it is free.
    #[inline]
    fn take(&self, place: &Place) -> bool {
        peek_usize(&place.task) == 0 && place.task.cmpxchg(0, self.address, Acquire).is_ok()
    }

    /// Takes a free place.
    fn claim(&self) -> Option<&'static Place> {
        let (step, place) = self
            .places(PLACES)
            .enumerate()
            .find(|(_, place)| self.take(place))?;
        let reach = self.reach()?;
        let mut now = reach.load(Relaxed);
        while now <= step {
            match reach.cmpxchg(now, step + 1, Relaxed) {
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
        Some(place)
    }
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
        Self {
            place: Name::current().enter(),
            _nts: NotThreadSafe,
        }
    }

    /// As [`may_wait`] and then [`Self::enter`], by one look at the table.
    ///
    /// # Errors
    ///
    /// As [`may_wait`].
    #[inline(never)]
    #[track_caller]
    pub(crate) fn enter_to_wait() -> Result<Self> {
        let within = Self::enter();
        let is_outermost = within.place.is_none_or(|place| peek_u32(&place.depth) == 1);
        // SAFETY: No preconditions.
        if is_outermost && unsafe { bindings::rust_hmm_may_sleep() } {
            return Ok(within);
        }
        drop(within);
        report(Location::caller());
        Err(deadlock())
    }

    /// As [`Self::enter`], where the task may sleep. Elsewhere functions that wait are refused
    /// anyway, and an interrupt may have come while the task is noted.
    ///
    /// # Context
    ///
    /// Any but NMI.
    pub(crate) fn enter_anywhere() -> Option<Self> {
        // SAFETY: No preconditions.
        unsafe { bindings::rust_hmm_may_sleep() }.then(Self::enter)
    }
}

impl Drop for Within {
    #[inline(never)]
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let depth = peek_u32(&place.depth).saturating_sub(1);
            store_u32(&place.depth, depth);
            if depth == 0 {
                place.task.store(0, Release);
            }
        }
    }
}

/// Whether the current task is within a callback.
#[inline(never)]
pub(crate) fn is_within() -> bool {
    Name::current().place().is_some()
}

/// Whether the current task may wait: it is not within a callback, and may sleep. Logs nothing.
///
/// # Context
///
/// Any but NMI.
#[inline(never)]
pub(crate) fn can_wait() -> bool {
    // SAFETY: No preconditions.
    !is_within() && unsafe { bindings::rust_hmm_may_sleep() }
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
/// `EDEADLK` within a callback, or where sleeping is not allowed, as in a section. The kernel log then names the
/// refusing function by file and line, once in 5 seconds.
#[inline(never)]
#[track_caller]
pub(crate) fn may_wait() -> Result {
    if !can_wait() {
        report(Location::caller());
        return Err(deadlock());
    }
    Ok(())
}

/// Logs that the function at `place` was refused.
#[cold]
#[inline(never)]
fn report(place: &Location<'_>) {
    if REPORTS.allows() {
        pr_warn!(
            "{}:{}: EDEADLK: this function may wait, and was called from a driver callback, with a \
             table lock held or in a section; call it after that, or from another thread\n",
            relative(place.file()),
            place.line(),
        );
    }
}

/// The path of a source of the library, relative to its top directory. For modules outside of the
/// kernel's tree the compiler records absolute paths.
fn relative(file: &str) -> &str {
    let top = file!().strip_suffix("rust/within.rs").unwrap_or("");
    file.strip_prefix(top).unwrap_or(file)
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
    fn a_crowd_changes_nothing() {
        let name = Name::current();
        // As many as there can be but for one, beginning where this one is looked for.
        let others = || {
            name.places(PLACES - 1)
                .filter(|place| place.task.load(Relaxed) == usize::MAX)
        };
        for place in name.places(PLACES - 1) {
            let _taken = place.task.cmpxchg(0, usize::MAX, Relaxed);
        }
        {
            let _within = Within::enter();
            assert_eq!(may_wait(), Err(deadlock()));
        }
        assert_eq!(may_wait(), Ok(()));
        for place in others() {
            place.task.store(0, Relaxed);
        }
    }

    #[test]
    fn a_forgotten_guard_is_not_the_next_tasks() {
        let name = Name::current();
        core::mem::forget(Within::enter());
        assert!(is_within());
        // As if this were another task in the same memory.
        if let Some(place) = name.place() {
            place.born.store(name.born.wrapping_add(1), Relaxed);
        }
        assert_eq!(may_wait(), Ok(()));
        {
            let _within = Within::enter();
            assert!(is_within());
        }
        assert!(!is_within() && name.noted().is_none());
    }
}
