// SPDX-License-Identifier: GPL-2.0

//! Detects re-entry from driver callbacks, so that a call that would deadlock returns `EDEADLK`.
//!
//! Callbacks run with locks held or pages isolated. A blocking library function called from a
//! callback would wait for these locks or pages forever. Therefore a small table lists the tasks
//! that are within a callback, and blocking functions look the current task up. One table serves
//! all mirrors, because several tasks can be within callbacks of one mirror, and a callback of one
//! mirror must not block on another one either.
//!
//! A task is identified by its address and its start time. An entry of a forgotten guard therefore
//! does not match a later task at the same address. If the table is full, a task is not entered.
//! Then its blocking calls are not refused, and only lockdep reports a deadlock.

use crate::{
    bindings,
    kernel::{
        limit::RateLimit,
        word::{
            peek_u32,
            peek_u64,
            peek_usize,
            store_u32,
            store_u64, //
        }, //
    }, //
};
use core::panic::Location;
use kernel::{
    ffi,
    prelude::*,
    sync::atomic::{
        ordering::{
            Acquire,
            Relaxed,
            Release, //
        },
        Atomic, //
    },
    task::Task,
    types::NotThreadSafe, //
};

/// Limits the reports of refused calls.
static REFUSAL_REPORTS: RateLimit = RateLimit::new(1);

/// 2^32 divided by the golden ratio, for multiplicative hashing.
const GOLDEN_RATIO_32: usize = 0x9e37_79b9;

/// Number of tasks that can be within callbacks at the same time.
const TABLE_SLOTS: usize = 1024;

/// Table entry of a task that is within callbacks.
struct TaskSlot {
    /// Address of the task; 0 if the place is free.
    task: Atomic<usize>,
    /// Start time of the task. Only the task itself writes this and `depth`.
    born: Atomic<u64>,
    /// Nesting depth of the task's callbacks.
    depth: Atomic<u32>,
    /// Number of places, from this one on, to search for tasks whose hash selects this place. Never
    /// decreases.
    reach: Atomic<usize>,
}

static TABLE: [TaskSlot; TABLE_SLOTS] = [const {
    TaskSlot {
        task: Atomic::new(0),
        born: Atomic::new(0),
        depth: Atomic::new(0),
        reach: Atomic::new(0),
    }
}; TABLE_SLOTS];

/// Returns the address of the current task, which identifies it as long as it runs.
#[inline(never)]
pub(crate) fn current_task() -> usize {
    Task::current_raw() as usize
}

/// Identifies a task among all running and former ones.
#[derive(Clone, Copy)]
struct TaskId {
    address: usize,
    born: u64,
}

impl TaskId {
    fn current() -> Self {
        let task = Task::current_raw();
        Self {
            address: task as usize,
            // SAFETY: The current task is alive while it runs, and `start_time` does not change
            // after the task was created.
            born: unsafe { (*task).start_time },
        }
    }

    /// Returns the index of the first place to search.
    fn first(&self) -> usize {
        // A `task_struct` is some KiB long.
        ((self.address >> 10).wrapping_mul(GOLDEN_RATIO_32) >> 7) % TABLE_SLOTS
    }

    /// Returns the first `count` places to search.
    fn places(&self, count: usize) -> impl Iterator<Item = &'static TaskSlot> {
        let first = self.first();
        (0..count).filter_map(move |step| TABLE.get((first + step) % TABLE_SLOTS))
    }

    fn reach(&self) -> Option<&'static Atomic<usize>> {
        TABLE.get(self.first()).map(|place| &place.reach)
    }

    /// Returns the place with the address of the task. The place may be that of a former task at
    /// the same address.
    fn noted(&self) -> Option<&'static TaskSlot> {
        let reach = peek_usize(self.reach()?);
        // Needs no ordering: only the task itself writes its address, and it sees its own writes.
        self.places(reach)
            .find(|place| peek_usize(&place.task) == self.address)
    }

    /// Returns the place of the task.
    fn place(&self) -> Option<&'static TaskSlot> {
        self.noted()
            .filter(|place| peek_u64(&place.born) == self.born)
    }

    /// Adds one callback of the task. Returns `None` if no place is free.
    #[inline]
    fn enter(&self) -> Option<&'static TaskSlot> {
        self.enter_first().or_else(|| self.enter_noted())
    }

    /// Fast path of [`Self::enter`], because there is a callback for each page. Succeeds if the
    /// first place is free and no other place needs to be searched, which is true for almost all
    /// tasks that are not within a callback.
    #[inline]
    fn enter_first(&self) -> Option<&'static TaskSlot> {
        let place = TABLE.get(self.first())?;
        // With a reach of 1 the task cannot be in another place. The reach is 0 before the first
        // use.
        let is_taken = peek_usize(&place.reach) == 1 && self.take(place);
        is_taken.then(|| self.begin(place))
    }

    // Not inlined, to keep the fast path small.
    #[inline(never)]
    fn enter_noted(&self) -> Option<&'static TaskSlot> {
        match self.noted() {
            Some(place) if peek_u64(&place.born) == self.born => {
                store_u32(&place.depth, peek_u32(&place.depth) + 1);
                Some(place)
            }
            // The place of a former task, which has forgotten its guard.
            Some(place) => Some(self.begin(place)),
            None => Some(self.begin(self.claim()?)),
        }
    }

    /// Initializes `place`, which the task has taken, with a depth of 1.
    #[inline]
    fn begin<'p>(&self, place: &'p TaskSlot) -> &'p TaskSlot {
        store_u64(&place.born, self.born);
        store_u32(&place.depth, 1);
        place
    }

    /// Takes `place`, if it is free.
    #[inline]
    fn take(&self, place: &TaskSlot) -> bool {
        // Acquire: pairs with the release in `ReentryGuard::drop`. The stores of `born` and `depth`
        // by the former task precede those of this one.
        peek_usize(&place.task) == 0 && place.task.cmpxchg(0, self.address, Acquire).is_ok()
    }

    /// Takes a free place.
    fn claim(&self) -> Option<&'static TaskSlot> {
        let (step, place) = self
            .places(TABLE_SLOTS)
            .enumerate()
            .find(|(_, place)| self.take(place))?;
        let reach = self.reach()?;
        // Relaxed: a task needs to see its own update of `reach` only, and the value never
        // decreases. Other tasks make it larger, which costs a longer search.
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

/// Guard: the current task is within a callback, or in another state that counts as one.
pub(crate) struct ReentryGuard {
    place: Option<&'static TaskSlot>,
    _nts: NotThreadSafe,
}

impl ReentryGuard {
    /// Enters the current task in the table. Context: any but interrupts.
    #[inline(never)]
    pub(crate) fn enter() -> Self {
        Self::at(TaskId::current().enter())
    }

    /// Returns the guard of a task that has entered `place`.
    #[inline(always)]
    fn at(place: Option<&'static TaskSlot>) -> Self {
        Self {
            place,
            _nts: NotThreadSafe,
        }
    }

    /// Combines [`may_wait`] and [`Self::enter`] in one lookup.
    ///
    /// # Errors
    ///
    /// Those of [`may_wait`].
    #[inline(never)]
    #[track_caller]
    pub(crate) fn enter_to_wait() -> Result<Self> {
        // Checked first: an interrupt may have occurred while the task was changing its place.
        //
        // SAFETY: No preconditions.
        if unsafe { bindings::rust_hmm_may_sleep() } {
            let task = TaskId::current();
            // A task that had no place is in no callback.
            if let Some(place) = task.enter_first() {
                return Ok(Self::at(Some(place)));
            }
            let within = Self::at(task.enter_noted());
            if within.place.is_none_or(|place| peek_u32(&place.depth) == 1) {
                return Ok(within);
            }
        }
        report(Location::caller());
        Err(deadlock())
    }

    /// Calls [`Self::enter`] where the task may sleep. Elsewhere it must not: an interrupt may have
    /// occurred while the task was changing its place. Blocking functions are refused there anyway.
    ///
    /// # Context
    ///
    /// Any but NMI.
    pub(crate) fn enter_anywhere() -> Option<Self> {
        // SAFETY: No preconditions.
        unsafe { bindings::rust_hmm_may_sleep() }.then(Self::enter)
    }
}

impl Drop for ReentryGuard {
    #[inline(never)]
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let depth = peek_u32(&place.depth).saturating_sub(1);
            store_u32(&place.depth, depth);
            if depth == 0 {
                // Pairs with the acquire in `take`: the next task changes the place after this one.
                place.task.store(0, Release);
            }
        }
    }
}

/// Returns whether the current task is within a callback.
#[inline(never)]
pub(crate) fn is_within() -> bool {
    TaskId::current().place().is_some()
}

/// Returns whether the current task may wait: it is not within a callback, and may sleep. Logs
/// nothing.
///
/// # Context
///
/// Any but NMI.
#[inline(never)]
pub(crate) fn can_wait() -> bool {
    // SAFETY: No preconditions.
    !is_within() && unsafe { bindings::rust_hmm_may_sleep() }
}

/// Returns `EDEADLK`, which the kernel crate does not define.
#[inline(never)]
pub(crate) fn deadlock() -> Error {
    // CAST: A small constant.
    Error::from_errno(-(bindings::EDEADLK as ffi::c_int))
}

/// Checks whether a function that takes the mmap lock or a table lock may be called now. If not,
/// the kernel log has file and line of the function that refuses, at most once in 5 seconds.
///
/// # Errors
///
/// - `EDEADLK` within a callback, or where sleeping is not allowed, for example in a section.
///
/// # Context
///
/// Any but NMI.
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
    if REFUSAL_REPORTS.allows() {
        pr_warn!(
            "{}:{}: EDEADLK: this function may wait, and was called from a driver callback, with a \
             table lock held or in a section; call it after that, or from another thread\n",
            relative(place.file()),
            place.line(),
        );
    }
}

/// Returns the path of a source file relative to the top directory of the library. The compiler
/// records absolute paths for out-of-tree modules.
fn relative(file: &str) -> &str {
    let top = file!().strip_suffix("rust/kernel/reentry.rs").unwrap_or("");
    file.strip_prefix(top).unwrap_or(file)
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_within)]
mod tests {
    use super::*;
    use crate::kernel::kthread::Thread;
    use kernel::sync::Arc;

    #[test]
    fn depth_is_counted_for_its_own_task() -> Result {
        assert_eq!(may_wait(), Ok(()));
        let outer = ReentryGuard::enter();
        let inner = ReentryGuard::enter();
        assert_eq!(may_wait(), Err(deadlock()));
        let seen = Arc::new(Atomic::new(0u32), GFP_KERNEL)?;
        let other = seen.clone();
        drop(Thread::spawn(c"hmm-test", move || {
            other.store(1 + u32::from(may_wait().is_err()), Relaxed);
        })?);
        // 0 if the thread was stopped before it ran.
        assert_ne!(seen.load(Relaxed), 2);
        drop(outer);
        assert!(is_within());
        drop(inner);
        assert_eq!(may_wait(), Ok(()));
        assert!(TABLE.iter().all(|place| place.depth.load(Relaxed) == 0));
        Ok(())
    }

    #[test]
    fn full_table_does_not_change_results() {
        let name = TaskId::current();
        // Fill all places but one, beginning with the first one that is searched for this task.
        let others = || {
            name.places(TABLE_SLOTS - 1)
                .filter(|place| place.task.load(Relaxed) == usize::MAX)
        };
        for place in name.places(TABLE_SLOTS - 1) {
            let _taken = place.task.cmpxchg(0, usize::MAX, Relaxed);
        }
        {
            let _within = ReentryGuard::enter();
            assert_eq!(may_wait(), Err(deadlock()));
        }
        assert_eq!(may_wait(), Ok(()));
        for place in others() {
            place.task.store(0, Relaxed);
        }
    }

    #[test]
    fn task_without_a_place_is_not_refused() {
        let name = TaskId::current();
        let others = || {
            name.places(TABLE_SLOTS)
                .filter(|place| place.task.load(Relaxed) == usize::MAX)
        };
        for place in name.places(TABLE_SLOTS) {
            let _taken = place.task.cmpxchg(0, usize::MAX, Relaxed);
        }
        let within = ReentryGuard::enter();
        let result = (is_within(), may_wait());
        drop(within);
        for place in others() {
            place.task.store(0, Relaxed);
        }
        assert_eq!(result, (false, Ok(())));
        let _within = ReentryGuard::enter();
        assert!(is_within());
    }

    #[test]
    fn leaked_guard_does_not_affect_the_next_task() {
        let name = TaskId::current();
        core::mem::forget(ReentryGuard::enter());
        assert!(is_within());
        // Another start time, as of a later task at the same address.
        if let Some(place) = name.place() {
            place.born.store(name.born.wrapping_add(1), Relaxed);
        }
        assert_eq!(may_wait(), Ok(()));
        {
            let _within = ReentryGuard::enter();
            assert!(is_within());
        }
        assert!(!is_within() && name.noted().is_none());
    }
}
