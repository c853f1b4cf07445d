// SPDX-License-Identifier: GPL-2.0

//! Migration steps that allocate device memory, counted until the device is unplugged.

use super::steps::{
    StepGuard,
    Steps, //
};
use crate::kernel::lock_classes;
use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::{
            Full,
            Relaxed,
            Release, //
        },
        AtomicFlag, //
    }, //
};

/// Counter of the migration steps of one device memory that may allocate in it.
#[pin_data]
pub(super) struct Arrivals {
    /// Whether the device was unplugged.
    closed: AtomicFlag,
    /// Whether an unplug has failed, so that it may be repeated.
    failed: AtomicFlag,
    #[pin]
    steps: Steps,
}

impl Arrivals {
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            closed: AtomicFlag::new(false),
            failed: AtomicFlag::new(false),
            steps <- Steps::new(lock_classes::arrivals(), lock_classes::arrivals_idle()),
        })
    }

    /// Returns whether the device was unplugged. No page may be migrated to it then.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        // Relaxed: the flag publishes no data. `begin` loads it after the full barrier of the
        // count. Tasks that install entries load it with the table lock held, under which
        // `unplug()` removes all entries after it has set the flag. For others it is a hint.
        self.closed.load(Relaxed)
    }

    /// Begins a step.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the device was unplugged.
    ///
    /// # Context
    ///
    /// Any.
    pub(super) fn begin(&self) -> Result<Arrival<'_>> {
        // Count the step before the check: either this sees the flag, or `wait()` sees the count.
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
        // Only one caller gets `true`. The count of waits in `wait`, which follows, is the full
        // barrier against `begin`. The one here is not needed.
        !self.closed.xchg(true, Full)
    }

    /// Records that the unplug has failed after [`Self::close`]. Steps still fail.
    pub(super) fn set_failed(&self) {
        // Release: the next caller waits for steps, and only one task may do so at a time.
        self.failed.store(true, Release);
    }

    /// Returns whether the last unplug has failed. Only one caller gets `true`, and repeats it.
    pub(super) fn take_failed(&self) -> bool {
        // Acquire is needed. See `set_failed`.
        self.failed.xchg(false, Full)
    }

    /// Waits for the steps that began before [`Self::close`].
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    pub(super) fn wait(&self) {
        self.steps.wait();
    }
}

/// A step that may allocate device memory. No device memory is allocated without a reference to
/// one.
///
/// It lasts until the pages are mapped or freed. It begins with the mmap lock held, so that unplug,
/// which waits for it, never waits for the mmap lock.
#[must_use = "nothing may be allocated without it"]
pub(crate) struct Arrival<'m> {
    _step: StepGuard<'m>,
    arrivals: &'m Arrivals,
}

impl Arrival<'_> {
    /// Returns whether the device was unplugged after the step began. Pages that have not moved yet
    /// should then stay in system memory.
    pub(crate) fn is_late(&self) -> bool {
        self.arrivals.is_closed()
    }
}
