// SPDX-License-Identifier: GPL-2.0

//! Steps that bring pages into a device's memory, until the device is unplugged.

use super::steps::{Step, Steps};
use crate::locks;
use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::{Full, Relaxed},
        AtomicFlag, //
    },
};

/// The steps of one memory that may bring pages.
#[pin_data]
pub(super) struct Arrivals {
    /// The device was unplugged.
    closed: AtomicFlag,
    #[pin]
    steps: Steps,
}

impl Arrivals {
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            closed: AtomicFlag::new(false),
            steps <- Steps::new(locks::arrivals(), locks::arrivals_idle()),
        })
    }

    /// Whether the device was unplugged, so that no page may be brought to it.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// Begins a step.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the device was unplugged. Context: any.
    pub(super) fn begin(&self) -> Result<Arrival<'_>> {
        // Counted first: either this sees the flag, or the wait after it sees the count.
        let arrival = Arrival {
            _step: self.steps.begin(),
            arrivals: self,
        };
        if self.is_closed() {
            return Err(ENODEV);
        }
        Ok(arrival)
    }

    /// Makes [`Self::begin`] fail. Returns `false` if it was called before.
    pub(super) fn close(&self) -> bool {
        !self.closed.xchg(true, Full)
    }

    /// Waits for the steps that had begun before [`Self::close`]. Context: may sleep; no lock may
    /// be held.
    pub(super) fn wait(&self) {
        self.steps.wait();
    }
}

/// A step that may bring pages: device memory is allocated only with one of these. It lasts until
/// the pages are mapped, or freed. It is taken with the mmap lock held, so that unplug, which waits
/// for it, does not wait for that lock.
#[must_use = "nothing may be allocated without it"]
pub(crate) struct Arrival<'m> {
    _step: Step<'m>,
    arrivals: &'m Arrivals,
}

impl Arrival<'_> {
    /// Whether the device was unplugged since the step began: pages that have not moved yet had
    /// better stay in system memory.
    pub(crate) fn is_late(&self) -> bool {
        self.arrivals.is_closed()
    }
}
