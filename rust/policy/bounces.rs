// SPDX-License-Identifier: GPL-2.0

//! What the mirrors of a process whose device memory is the same share about memory that bounces.

use super::{
    density::Parameters,
    thrash::{Detector, Verdict},
    Mask,
};
use crate::{locks, mm::addr::PageRange};
use kernel::{prelude::*, sync::Mutex};

/// What has moved to a memory of a device by the faults of a process, and was wanted again. Its
/// mirrors that are at home there share it, so that a page which leaves in between moves as often
/// as it may by all of them together.
///
/// Methods may sleep.
#[pin_data]
pub struct Bounces {
    #[pin]
    detector: Mutex<Detector>,
}

impl Bounces {
    /// Nothing is known yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        let (name, key) = locks::bounces();
        pin_init!(Self {
            detector <- Mutex::new(Detector::new(), name, key),
        })
    }

    /// See [`Detector::has_moved`].
    pub(super) fn has_moved(&self, range: PageRange) -> bool {
        self.detector.lock().has_moved(range)
    }

    /// See [`Detector::fault`].
    pub(super) fn fault(
        &self,
        range: PageRange,
        resident: &Mask,
        full: bool,
        now: u64,
        by: &Parameters,
    ) -> Verdict {
        self.detector.lock().fault(range, resident, full, now, by)
    }

    /// See [`Detector::comes_along`].
    pub(super) fn comes_along(
        &self,
        range: PageRange,
        resident: &Mask,
        now: u64,
        by: &Parameters,
    ) -> bool {
        self.detector.lock().comes_along(range, resident, now, by)
    }

    /// The pages of `range` have moved to the device, or were there.
    pub(crate) fn moved(&self, range: PageRange, now: u64) {
        let mut detector = self.detector.lock();
        for piece in range.pmd_pieces() {
            detector.moved(piece, now);
        }
    }
}
