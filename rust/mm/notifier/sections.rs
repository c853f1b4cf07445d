// SPDX-License-Identifier: GPL-2.0

//! Start of read sections of an interval notifier, which is killable.
//!
//! A section may start when all events that have reached the notifier have ended. The core's
//! `mmu_interval_read_begin()` waits uninterruptibly until no event of the mm is active. So it is
//! called only if an event of another task may not have ended, and by a worker, for which tasks
//! wait killably. One call serves all tasks that wait.

use super::event_count::{
    CountedEvents,
    EventCount, //
};
use crate::{
    bindings,
    kernel::{
        completion::TimedCompletion,
        deferred::{
            Recurring,
            RecurringWork, //
        },
        lock_classes, //
    },
    mm::vma::fatal_signal_pending, //
};
use kernel::{
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    },
    task::Task, //
};

/// The state of a notifier for read sections.
#[pin_data]
pub(super) struct ReadSections {
    events: EventCount,
    /// The wait of a worker for the events, if there is one.
    #[pin]
    wait: SpinLock<Option<Arc<Recurring<EventWait>>>>,
}

/// A wait of a worker until the events of a notifier have ended.
struct EventWait {
    sub: *mut bindings::mmu_interval_notifier,
    sections: *const ReadSections,
    completion: Arc<TimedCompletion>,
}

// SAFETY: The pointers are only used by the worker, and valid until it has completed the wait. The
// notifier may be used by any task.
unsafe impl Send for EventWait {}
// SAFETY: As for `Send`.
unsafe impl Sync for EventWait {}

impl RecurringWork for EventWait {
    fn run(&self) {
        // SAFETY: The notifier waits for the completion before it is removed.
        let sections = unsafe { &*self.sections };
        // SAFETY: The notifier is inserted, and removed after the completion.
        unsafe { sections.wait_in_core(self.sub) };
        // Once the lock is released, the notifier may be removed.
        let _wait = sections.wait.lock().take();
        self.completion.complete_all();
    }
}

/// Returns the thread ID of the current task.
fn current_task() -> u64 {
    // SAFETY: The current task is alive while it runs. Only `exec()` changes its thread ID: to that
    // of a thread which has exited.
    let pid = unsafe { (*Task::current_raw()).pid };
    // Thread IDs are positive.
    u64::from(pid.unsigned_abs())
}

impl ReadSections {
    /// Creates the state for a notifier that is about to be inserted.
    pub(super) fn new() -> impl PinInit<Self> {
        let (name, key) = lock_classes::event_wait();
        pin_init!(Self {
            events: EventCount::new(),
            wait <- SpinLock::new(None, name, key),
        })
    }

    /// Records that no event which began before the insertion is active.
    pub(super) fn inserted_without_events(&self) {
        self.events.end(CountedEvents::INSERTED);
    }

    /// Counts an event of the current task, in its callback. The callback has set the core's
    /// sequence of the notifier, and takes the table lock after this.
    #[inline]
    pub(super) fn event_begins(&self) {
        self.events.begin(current_task());
    }

    /// Returns the number of events so far.
    #[inline]
    pub(super) fn number(&self) -> u64 {
        self.events.number()
    }

    /// Returns a number of events that have all ended, or that is out of date: then the number of
    /// events has changed.
    ///
    /// # Errors
    ///
    /// - `EINTR`: a fatal signal is pending, and not all events have ended.
    /// - `ENOMEM`: not all events have ended.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Safety
    ///
    /// `sub` must be the inserted notifier that the state belongs to.
    #[inline]
    pub(super) unsafe fn begin(&self, sub: *mut bindings::mmu_interval_notifier) -> Result<u64> {
        let events = self.events.counted();
        if !events.have_ended() {
            // SAFETY: By the function's requirements.
            unsafe { self.wait_for(events, sub)? };
        }
        Ok(events.number())
    }

    /// Waits until `events` have ended, or another event has begun.
    ///
    /// # Safety
    ///
    /// `sub` must be the inserted notifier that the state belongs to.
    #[cold]
    #[inline(never)]
    unsafe fn wait_for(
        &self,
        events: CountedEvents,
        sub: *mut bindings::mmu_interval_notifier,
    ) -> Result {
        let mut now = events;
        while !now.have_ended() && now.number() == events.number() {
            if now.are_of(current_task()) {
                self.events.end(now);
            } else if current!().mm().is_none() {
                // A kernel thread cannot be killed.
                //
                // SAFETY: By the function's requirements.
                unsafe { self.wait_in_core(sub) };
            } else {
                // SAFETY: By the function's requirements.
                unsafe { self.wait_for_worker(sub)? };
            }
            now = self.events.counted();
        }
        Ok(())
    }

    /// Waits until the events that have begun so far have ended. Not killable.
    ///
    /// # Safety
    ///
    /// `sub` must be the inserted notifier that the state belongs to.
    unsafe fn wait_in_core(&self, sub: *mut bindings::mmu_interval_notifier) {
        let events = self.events.counted();
        // The callbacks of these events have set the sequence of `sub` before. The core returns if
        // that sequence, or a later one, has ended. A sequence ends when no event is active.
        //
        // SAFETY: `sub` is inserted, by the function's requirements.
        unsafe { bindings::mmu_interval_read_begin(sub) };
        self.events.end(events);
    }

    /// Waits until a worker has waited for the events. That wait may have begun before the last
    /// event.
    ///
    /// # Safety
    ///
    /// `sub` must be the inserted notifier that the state belongs to.
    unsafe fn wait_for_worker(&self, sub: *mut bindings::mmu_interval_notifier) -> Result {
        if fatal_signal_pending() {
            return Err(EINTR);
        }
        let new = Recurring::new(EventWait {
            sub,
            sections: self,
            completion: Arc::pin_init(TimedCompletion::new(), GFP_KERNEL)?,
        })?;
        let mut wait = self.wait.lock();
        let completion = match &*wait {
            Some(wait) => wait.work().completion.clone(),
            None => {
                let completion = new.work().completion.clone();
                *wait = Some(new.clone());
                // With the lock, so that `wait_for_end` finds only waits that are queued.
                new.queue();
                completion
            }
        };
        drop(wait);
        completion.wait_killable()
    }

    /// Waits until no worker uses the notifier. Called before the notifier is removed, without
    /// concurrent users.
    pub(super) fn wait_for_end(&self) {
        let wait = self.wait.lock();
        let completion = wait.as_ref().map(|wait| wait.work().completion.clone());
        drop(wait);
        if let Some(completion) = completion {
            completion.wait_uninterruptible();
        }
    }
}
