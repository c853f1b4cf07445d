// SPDX-License-Identifier: GPL-2.0

//! Thrashing history, shared by the mirrors of a process that migrate to the same memory.

use super::{
    parameters::Parameters,
    thrash::{
        ThrashDetector,
        ThrashHint, //
    },
    PageSet, //
};
use crate::{
    kernel::lock_classes,
    mm::addr::PageRange, //
};
use kernel::{
    prelude::*,
    sync::Mutex, //
};

/// History of the pages that faults of a process have migrated to a device memory, and of repeated
/// faults on them.
///
/// All mirrors of the process with that memory share it. Therefore the limit on migrations of
/// a thrashing page applies to all of them together.
///
/// # Context
///
/// All methods may sleep.
#[pin_data]
pub struct Bounces {
    #[pin]
    detector: Mutex<ThrashDetector>,
}

impl Bounces {
    /// Creates an empty history.
    pub(crate) fn new() -> impl PinInit<Self> {
        let (name, key) = lock_classes::bounces();
        pin_init!(Self {
            detector <- Mutex::new(ThrashDetector::new(), name, key),
        })
    }

    /// See [`ThrashDetector::has_moved`].
    pub(super) fn has_moved(&self, range: PageRange) -> bool {
        self.detector.lock().has_moved(range)
    }

    /// See [`ThrashDetector::fault`].
    pub(super) fn fault(
        &self,
        range: PageRange,
        resident: &PageSet,
        full: bool,
        now: u64,
        by: &Parameters,
    ) -> ThrashHint {
        self.detector.lock().fault(range, resident, full, now, by)
    }

    /// See [`ThrashDetector::comes_along`].
    pub(super) fn comes_along(
        &self,
        range: PageRange,
        resident: &PageSet,
        now: u64,
        by: &Parameters,
    ) -> bool {
        self.detector.lock().comes_along(range, resident, now, by)
    }

    /// Records that the pages of `range` have moved to the device, or were there already.
    pub(crate) fn moved(&self, range: PageRange, now: u64) {
        let mut detector = self.detector.lock();
        for piece in range.pmd_pieces() {
            detector.moved(piece, now);
        }
    }
}
