// SPDX-License-Identifier: GPL-2.0

//! Notifier windows: blocks of a space in which devices use memory. The interval notifier of a
//! window invalidates all mirrors of the space.

use super::{
    Space,
    StartedFlush, //
};
use crate::{
    kernel::{
        rcu_map::RcuArc,
        word::peek_u32, //
    },
    mm::{
        addr::{
            PageRange,
            PMD_SIZE, //
        },
        notifier::{
            IntervalNotifier,
            NotifierEvent,
            NotifierOps,
            NotifierRange, //
        }, //
    }, //
};
use core::ops::ControlFlow;
use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::{
            Acquire,
            Relaxed,
            Release, //
        },
        Atomic, //
    }, //
};

/// Number of consecutive events without effect after which a worker checks whether the window is
/// still needed.
const IDLE_EVENTS: u32 = 16;

/// A block, the memory that one PMD maps, with an interval notifier.
///
/// A migration step, and a fault that installs one huge leaf, is validated with the sequence of one
/// window, and both have up to a block. A smaller window would not contain them. A larger one would
/// make invalidations disturb more faults in other memory.
pub(crate) struct NotifierWindow {
    space: RcuArc<Space>,
    range: PageRange,
    /// Number of faults and migrations that use the window. Incremented only under the lock of the
    /// windows.
    users: Atomic<usize>,
    /// Set when a worker begins to check whether the window can be removed, and cleared by the next
    /// user. Changed under the lock of the windows.
    is_closing: Atomic<bool>,
    /// Number of consecutive events that have changed no device PTE. Relaxed: a heuristic.
    idle: Atomic<u32>,
}

/// The interval notifier of a window.
pub(crate) type WindowNotifier = IntervalNotifier<NotifierWindow>;

/// Returns the number of the window that contains `addr`.
pub(super) fn index_of(addr: usize) -> usize {
    addr / PMD_SIZE
}

impl NotifierWindow {
    /// Creates the window of `space` that contains `addr`, with one user.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the window would exceed the address range.
    pub(super) fn new(space: RcuArc<Space>, addr: usize) -> Result<Self> {
        let start = addr & !(PMD_SIZE - 1);
        Ok(Self {
            space,
            range: PageRange::new(start, start.checked_add(PMD_SIZE).ok_or(EINVAL)?)?,
            users: Atomic::new(1),
            is_closing: Atomic::new(false),
            idle: Atomic::new(0),
        })
    }

    /// Returns the address range of the window.
    pub(crate) fn range(&self) -> PageRange {
        self.range
    }

    /// Returns whether the window belongs to `space`.
    pub(crate) fn is_of(&self, space: &Space) -> bool {
        core::ptr::eq(&*self.space, space)
    }

    /// Adds a user. Context: the lock of the windows is held.
    pub(super) fn enter(&self) {
        self.users.fetch_add(1, Relaxed);
        self.is_closing.store(false, Relaxed);
    }

    /// Removes a user.
    pub(super) fn leave(&self) {
        // Release: pairs with the acquire in `begin_closing`. A worker that finds no user sees all
        // device PTEs that the user has installed. The table lock, under which both look at the
        // PTEs, orders the same.
        self.users.fetch_sub(1, Release);
    }

    /// Returns the number of users.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(super) fn users(&self) -> usize {
        self.users.load(Relaxed)
    }

    /// Begins the removal of the window if it has no user, and returns whether it did. Context: the
    /// lock of the windows is held.
    pub(super) fn begin_closing(&self) -> bool {
        let unused = self.users.load(Acquire) == 0;
        self.is_closing.store(unused, Relaxed);
        unused
    }

    /// Returns whether the window got no user since [`Self::begin_closing`]. Context: the lock of
    /// the windows is held.
    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.load(Relaxed)
    }

    /// Counts events without effect. Queues the window for a worker, which checks whether it is
    /// still needed, after [`IDLE_EVENTS`] of them, or after an unmap of the whole window.
    fn count_event(&self, event: &NotifierRange<'_>, changed: bool) {
        let all = event.reason == NotifierEvent::Unmap
            && event.range.intersect(&self.range) == Some(self.range);
        if changed && !all {
            if peek_u32(&self.idle) != 0 {
                self.idle.store(0, Relaxed);
            }
            return;
        }
        let idle = self.idle.fetch_add(1, Relaxed).wrapping_add(1);
        if all || idle % IDLE_EVENTS == 0 {
            // After an unmap of the whole window the check is not urgent: the device may also use
            // the next mapping at these addresses.
            self.space.windows().queue_check(self.range.start(), !all);
        }
    }
}

impl NotifierOps for NotifierWindow {
    /// The last flush that was started. It is linked to the others of the event.
    type Pending = StartedFlush;

    fn invalidate(
        &self,
        event: &NotifierRange<'_>,
        pending: &mut Option<StartedFlush>,
    ) -> ControlFlow<()> {
        let own = event.range.intersect(&self.range);
        let Some(own) = own else {
            return ControlFlow::Continue(());
        };
        // Most events lie within one window.
        let whole = own == event.range;
        let first = !whole && self.space.is_first_of(event);
        let only = whole || (first && !self.space.windows().any_behind(self.range, event.range));
        // The first of several windows removes the device PTEs of the whole event. The other
        // windows then find only PTEs that were installed concurrently.
        let event_here = if whole || (first && !only) {
            event
        } else {
            &event.within(own)
        };
        let mirrors = self.space.mirrors();
        // No other window and no other mirror gets the event.
        let alone = only && mirrors.are_few();
        let mut changed = false;
        for mirror in mirrors.entered(None) {
            let result = mirror.invalidate(event_here, alone);
            match result {
                ControlFlow::Break(()) => {
                    if let Some(flush) = pending.take() {
                        flush.wait_all();
                    }
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(result) => {
                    changed |= result.changed;
                    if let Some(flush) = result.flush {
                        StartedFlush::add(pending, mirror, flush);
                    }
                }
            }
        }
        self.count_event(event, changed);
        ControlFlow::Continue(())
    }

    fn finish(&self, flush: StartedFlush) {
        flush.wait_all();
    }
}
