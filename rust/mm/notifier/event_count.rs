// SPDX-License-Identifier: GPL-2.0

//! Count of the events of an interval notifier, which also shows whether all of them have ended.
//!
//! The core reports the begin of an event to a notifier, but not its end. The task that begins an
//! event also ends it, and starts no read section in between. Therefore all events of the current
//! task have ended when it starts a section.

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
use kernel::prelude::*;
use kernel::sync::atomic::{
    ordering::{
        Acquire,
        Relaxed,
        Release, //
    },
    Atomic, //
};

/// Number of the low bits, which identify the task. `PID_MAX_LIMIT` has one bit less.
const TASK_BITS: u32 = 23;

const TASK_MASK: u64 = (1 << TASK_BITS) - 1;

/// Value of the low bits if all events have ended. It is the number of the idle task, which causes
/// no events.
const NO_TASK: u64 = 0;

/// Value of the low bits if events of several tasks, or of unknown ones, may not have ended.
const SEVERAL_TASKS: u64 = TASK_MASK;

/// Number of events that have begun, and the tasks whose events may not have ended, in one word.
pub(super) struct EventCount(Atomic<u64>);

/// A value of an [`EventCount`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct CountedEvents(u64);

impl CountedEvents {
    /// No event, but those that began before the notifier was inserted may not have ended.
    pub(super) const INSERTED: Self = Self(SEVERAL_TASKS);

    /// Returns the number of events that have begun.
    #[inline]
    pub(super) fn number(self) -> u64 {
        self.0 >> TASK_BITS
    }

    /// Returns whether all events have ended.
    #[inline]
    pub(super) fn have_ended(self) -> bool {
        self.0 & TASK_MASK == NO_TASK
    }

    /// Returns whether all events that may not have ended are those of `task`.
    pub(super) fn are_of(self, task: u64) -> bool {
        self.0 & TASK_MASK == task
    }
}

impl EventCount {
    /// Creates the count of a notifier that is about to be inserted.
    pub(super) fn new() -> Self {
        Self(Atomic::new(CountedEvents::INSERTED.0))
    }

    /// Counts an event that `task` begins. `task` is a thread ID, which another thread gets only
    /// after this one has exited.
    pub(super) fn begin(&self, task: u64) {
        let mut old = self.0.load(Relaxed);
        loop {
            let tasks = match old & TASK_MASK {
                NO_TASK => task,
                one if one == task => task,
                _ => SEVERAL_TASKS,
            };
            let count = (old & !TASK_MASK).wrapping_add(1 << TASK_BITS);
            // Release: a task that waits for the counted events finds the sequence in the notifier
            // that the callback has set before.
            match self.0.cmpxchg(old, count | tasks, Release) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// Returns the current value. If all events have ended, their changes of the CPU page table are
    /// visible to the caller.
    #[inline]
    pub(super) fn counted(&self) -> CountedEvents {
        // Acquire: pairs with the release in `end`.
        CountedEvents(self.0.load(Acquire))
    }

    /// Returns the number of events that have begun.
    #[inline]
    pub(super) fn number(&self) -> u64 {
        // Relaxed: the table lock orders this. A callback counts its event before it takes the
        // lock.
        CountedEvents(self.0.load(Relaxed)).number()
    }

    /// Records that all events of `counted` have ended, unless another one has begun since.
    pub(super) fn end(&self, counted: CountedEvents) {
        let ended = counted.0 & !TASK_MASK;
        // Release: publishes the changes of the events that have ended.
        let _ = self.0.cmpxchg(counted.0, ended | NO_TASK, Release);
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_event_count)]
mod tests {
    use super::*;

    /// Returns a count whose earlier events have ended.
    fn ended() -> EventCount {
        let events = EventCount::new();
        assert!(!events.counted().have_ended());
        events.end(events.counted());
        assert!(events.counted().have_ended());
        events
    }

    #[test]
    fn events_of_one_task_end_together() {
        let events = ended();
        let before = events.number();
        events.begin(7);
        events.begin(7);
        let counted = events.counted();
        assert_eq!(counted.number(), before + 2);
        assert!(counted.are_of(7) && !counted.are_of(8) && !counted.have_ended());
        events.end(counted);
        assert!(events.counted().have_ended());
        assert_eq!(events.number(), before + 2);
    }

    #[test]
    fn events_of_two_tasks_are_of_neither() {
        let events = ended();
        events.begin(7);
        events.begin(8);
        events.begin(8);
        let counted = events.counted();
        assert!(!counted.are_of(7) && !counted.are_of(8) && !counted.have_ended());
        events.end(counted);
        events.begin(8);
        assert!(events.counted().are_of(8));
    }

    #[test]
    fn later_events_have_not_ended() {
        let events = ended();
        events.begin(7);
        let counted = events.counted();
        events.begin(7);
        events.end(counted);
        assert!(!events.counted().have_ended());
        // The insertion of a notifier, which an event has followed.
        let events = EventCount::new();
        events.begin(7);
        events.end(CountedEvents::INSERTED);
        assert!(!events.counted().have_ended() && !events.counted().are_of(7));
    }
}
