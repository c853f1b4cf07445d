// SPDX-License-Identifier: GPL-2.0

//! A window: a block of 2 MiB of a space in which a device uses memory, and of whose changes the mirrors are told.

use super::{Entered, Space};
use crate::mm::{
    addr::{PageRange, PMD_SIZE},
    notifier::{Event, IntervalNotifier, Reason, Subscriber},
    rcu_map::RcuArc,
    word::peek_u32,
};
use core::ops::ControlFlow;
use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::{Relaxed, Release},
        Atomic, //
    },
};

/// Mirrors whose flushes are waited for in the second pass of the core, so that those of all windows overlap.
const FEW: usize = 4;

/// Events in a row that concerned nobody, after which a window is doubted.
const IDLE: u32 = 16;

/// A block of 2 MiB with a notifier.
pub(crate) struct Window {
    space: RcuArc<Space>,
    range: PageRange,
    /// Faults and migrations that use it. Those who begin hold the lock of the windows.
    users: Atomic<usize>,
    /// Nobody has begun to use it since a worker began to look whether it can go. Under the lock of the windows.
    is_closing: Atomic<bool>,
    /// Events in a row that have changed nothing.
    idle: Atomic<u32>,
}

/// What is told of the changes.
pub(crate) type WindowNotifier = IntervalNotifier<Window>;

/// Number of the window with `addr`.
pub(super) fn index_of(addr: usize) -> usize {
    addr / PMD_SIZE
}

impl Window {
    /// The window of `space` with `addr`, used once. `EINVAL`: there are no such addresses.
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

    /// Its addresses.
    pub(crate) fn range(&self) -> PageRange {
        self.range
    }

    /// Whether it is one of `space`.
    pub(crate) fn is_of(&self, space: &Space) -> bool {
        core::ptr::eq(&*self.space, space)
    }

    /// Begins to use it. Context: the lock of the windows is held.
    pub(super) fn enter(&self) {
        self.users.fetch_add(1, Relaxed);
        self.is_closing.store(false, Relaxed);
    }

    /// Ends a use.
    pub(super) fn leave(&self) {
        // What the user has installed is seen by who finds no user.
        self.users.fetch_sub(1, Release);
    }

    /// How many use it.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(super) fn users(&self) -> usize {
        self.users.load(Relaxed)
    }

    /// Begins to close it, if nobody uses it. Context: the lock of the windows is held.
    pub(super) fn begin_closing(&self) -> bool {
        let unused = self.users.load(kernel::sync::atomic::ordering::Acquire) == 0;
        self.is_closing.store(unused, Relaxed);
        unused
    }

    /// Whether nobody has begun to use it since [`Self::begin_closing`]. Context: the lock of the windows is held.
    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.load(Relaxed)
    }

    /// Notes whether an event has changed something, and has a worker look whether the window is still needed.
    fn note(&self, event: &Event<'_>, changed: bool) {
        let all =
            event.reason == Reason::Unmap && event.range.intersect(&self.range) == Some(self.range);
        if changed && !all {
            if peek_u32(&self.idle) != 0 {
                self.idle.store(0, Relaxed);
            }
            return;
        }
        let idle = self.idle.fetch_add(1, Relaxed).wrapping_add(1);
        if all || idle % IDLE == 0 {
            // What is mapped next at the addresses may be used by the device, too.
            self.space.windows().doubt(self.range.start(), !all);
        }
    }
}

/// Mirrors with flushes that were begun, and the places where these are.
pub(crate) struct Flushes([Option<(Entered, usize)>; FEW]);

impl Flushes {
    fn wait(self) {
        for (mirror, place) in self.0.into_iter().flatten() {
            mirror.finish(place);
        }
    }

    /// Adds one, or waits for it if there is no room.
    fn add(&mut self, mirror: Entered, flush: usize) {
        match self.0.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some((mirror, flush)),
            None => mirror.finish(flush),
        }
    }
}

impl Subscriber for Window {
    type Pending = Flushes;

    fn invalidate(&self, event: &Event<'_>, pending: &mut Option<Flushes>) -> ControlFlow<()> {
        let own = event.range.intersect(&self.range);
        let Some(own) = own else {
            return ControlFlow::Continue(());
        };
        // Most events are of one window.
        let whole = own == event.range;
        let first = !whole && self.space.is_first_of(event);
        let only = whole || (first && !self.space.windows().any_behind(self.range, event.range));
        // The first of several windows removes all entries of the event at once; where the others look after it, there
        // are none but those that came meanwhile.
        let event_here = match whole || (first && !only) {
            true => event,
            false => &event.within(own),
        };
        let mirrors = self.space.mirrors();
        // No other window is told of it, and no other mirror.
        let alone = only && mirrors.are_few();
        let mut changed = false;
        for mirror in mirrors.entered(None) {
            let told = mirror.invalidate(event_here, alone);
            match told {
                ControlFlow::Break(()) => {
                    if let Some(flushes) = pending.take() {
                        flushes.wait();
                    }
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(told) => {
                    changed |= told.changed;
                    if let Some(flush) = told.flush {
                        let flushes = pending.get_or_insert_with(|| Flushes([const { None }; FEW]));
                        flushes.add(mirror, flush);
                    }
                }
            }
        }
        self.note(event, changed);
        ControlFlow::Continue(())
    }

    fn finish(&self, flushes: Flushes) {
        flushes.wait();
    }
}
