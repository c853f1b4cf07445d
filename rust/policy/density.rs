// SPDX-License-Identifier: GPL-2.0

//! The default policy: density prefetch.
//!
//! It uses trees over the pages of 2 MiB, as UVM does, also if a PMD maps more. The leaves are
//! regions of 64 KiB. A fault migrates the largest subtree around it of which more than a threshold
//! is resident or touched. For a device that accesses memory sequentially, whole trees are
//! migrated, and more of them ahead of its accesses ([`Streams`]). Memory that was migrated and
//! faults again stays in place for some time ([`Bounces`](super::Bounces)).

use super::{
    block,
    block_start,
    parameters::Parameters,
    prefetch::Streams,
    thrash::ThrashHint,
    Decision,
    FaultInfo,
    PageSet,
    Policy, //
};
use crate::{
    kernel::lock_classes,
    mm::addr::{
        PageRange,
        PMD_PAGES, //
    }, //
};
use core::cell::LazyCell;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Mutex, //
};

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
mod tests;
mod tree;

pub(super) use tree::region;

use tree::{
    TREE_BYTES,
    TREE_PAGES, //
};

/// Reciprocal of the share of device memory that may be migrated ahead of a stream.
const AHEAD_SHARE: usize = 4;

/// The default policy. Each mirror must have its own.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::policy::Density;
/// use rust_hmm::policy::Parameters;
///
/// // Migrates sooner than by default: from 25 per cent of the pages on.
/// let policy = Density::new(Parameters { threshold: 25, ..Parameters::DEFAULT })?;
/// # Ok::<(), Error>(())
/// ```
#[pin_data]
pub struct Density {
    parameters: Parameters,
    #[pin]
    stream: Mutex<Streams>,
}

impl Density {
    /// Creates a policy.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new(parameters: Parameters) -> Result<Pin<KBox<Self>>> {
        let (name, key) = lock_classes::policy();
        KBox::pin_init(
            pin_init!(Self {
                parameters,
                stream <- Mutex::new(Streams::new(), name, key),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the pages to migrate, within the limits of the fault. `resident` returns the pages
    /// of its block that are on the device.
    fn window(
        &self,
        fault: &FaultInfo<'_>,
        blocks: usize,
        resident: impl FnOnce() -> PageSet,
    ) -> PageRange {
        let start = block_start(fault.range.start());
        let page = |addr: usize| (addr - start) / PAGE_SIZE;
        let range = match (fault.attributes.granularity(), blocks) {
            (Some(order), _) => {
                let size = PAGE_SIZE << order;
                let end = fault.range.end().checked_next_multiple_of(size);
                PageRange::new(
                    fault.range.start() & !(size - 1),
                    end.unwrap_or(fault.range.end()),
                )
            }
            (None, 0) => {
                let touched = page(fault.range.start())..page(fault.range.end()).min(PMD_PAGES);
                let pages = region(&resident(), touched, self.parameters.threshold);
                PageRange::new(
                    start + pages.start * PAGE_SIZE,
                    start + pages.end * PAGE_SIZE,
                )
            }
            (None, blocks) => {
                let max_trees = (fault.total / AHEAD_SHARE / TREE_PAGES).max(1);
                let start = fault.range.start() & !(TREE_BYTES - 1);
                PageRange::from_pages(start, blocks.min(max_trees) * TREE_PAGES)
            }
        };
        range
            .ok()
            .and_then(|range| range.intersect(&fault.limits))
            .map_or(fault.range, |range| range.union(&fault.range))
    }

    /// Returns the part of `range` around the faulting pages that does not thrash, and at least
    /// these pages. `resident` returns the pages of a block that are on the device.
    fn calm(
        &self,
        fault: &FaultInfo<'_>,
        range: PageRange,
        resident: impl Fn(usize) -> PageSet,
    ) -> PageRange {
        let mut calm = fault.range;
        for piece in range.pmd_pieces() {
            let there = if fault.bounces.has_moved(piece) {
                resident(block_start(piece.start()))
            } else {
                PageSet::EMPTY
            };
            let now = fault.now;
            let by = &self.parameters;
            if fault.bounces.comes_along(piece, &there, now, by) {
                calm = calm.union(&piece);
                continue;
            }
            if piece.start() <= fault.range.start() {
                // Discard the pieces before this one: the result must be contiguous with the
                // faulting pages.
                calm = fault.range;
            }
            if piece.end() <= fault.range.start() {
                continue;
            }
            break;
        }
        calm
    }
}

impl Policy for Density {
    fn place(&self, fault: &FaultInfo<'_>) -> Decision {
        let first = block_start(fault.range.start());
        let in_first = LazyCell::new(|| (fault.resident)(first));
        let there = if fault.bounces.has_moved(fault.range) {
            *in_first
        } else {
            PageSet::EMPTY
        };
        let full = fault.free < PMD_PAGES;
        let by = &self.parameters;
        let bounces = fault.bounces;
        let verdict = bounces.fault(fault.range, &there, full, fault.now, by);
        let stay = || {
            let around =
                block(fault.range.start()).and_then(|block| block.intersect(&fault.limits));
            Decision::Stay(around.map_or(fault.range, |all| all.union(&fault.range)))
        };
        if verdict == ThrashHint::Stay {
            return stay();
        }
        if let ThrashHint::Wait(ms) = verdict {
            return Decision::Later(ms);
        }
        let ahead = self.parameters.ahead;
        let blocks = self.stream.lock().fault(fault.range, ahead);
        let resident = |start| {
            if start == first {
                *in_first
            } else {
                (fault.resident)(start)
            }
        };
        let range = self.window(fault, blocks, || *in_first);
        let calm = self.calm(fault, range, resident);
        // A range with a granularity is migrated whole, or not at all.
        if calm != range && fault.attributes.granularity().is_some() {
            return stay();
        }
        Decision::Move {
            range: calm,
            evict: true,
        }
    }

    fn moved(&self, range: PageRange, _now: u64) {
        self.stream.lock().moved(range);
    }
}
