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
use core::{
    cell::LazyCell,
    ops::Range, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Mutex, //
};

/// Parameters of the default policy. A driver may expose them as module parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Percentage of resident or touched pages above which a subtree is migrated whole, from 1 to
    /// 100. With a value above 100, that never happens.
    pub threshold: usize,
    /// Maximum amount of memory that is migrated ahead of a stream, in units of 2 MiB, the size of
    /// a tree on all kernels.
    pub ahead: usize,
    /// Number of faults on migrated pages of a block after which the block is pinned in place.
    pub thrash_count: u32,
    /// Maximum time in ms between the migration and such a fault.
    pub thrash_lapse: u64,
    /// Time in ms for which a thrashing block is pinned in place.
    pub thrash_pin: u64,
    /// Time in ms for which a device fault on a thrashing page sleeps before the page is migrated
    /// again, so that other users can access it. 0 disables this.
    pub thrash_delay: u64,
}

impl Parameters {
    /// Default values.
    pub const DEFAULT: Self = Self {
        threshold: 51,
        ahead: 8,
        thrash_count: 3,
        thrash_lapse: 500,
        thrash_pin: 500,
        thrash_delay: 2,
    };
}

/// Size of a leaf of the tree in bytes: enough that the copy and not the fault takes most of the
/// time, and a size of leaf that most GPUs have.
const LEAF_BYTES: usize = 64 << 10;

/// Size of a tree in bytes: the device waits for the copy of all of it.
const TREE_BYTES: usize = 2 << 20;

/// Pages of a leaf.
const LEAF_PAGES: usize = LEAF_BYTES / PAGE_SIZE;

/// Pages of a tree.
const TREE_PAGES: usize = TREE_BYTES / PAGE_SIZE;

/// Reciprocal of the share of device memory that may be migrated ahead of a stream.
const AHEAD_SHARE: usize = 4;

/// Returns the pages to migrate for a fault on `touched`: the largest subtree of which more than
/// `threshold` per cent are resident or touched, and at least the touched leaves.
pub(super) fn region(resident: &PageSet, touched: Range<usize>, threshold: usize) -> Range<usize> {
    let leaves = touched.start / LEAF_PAGES * LEAF_PAGES..touched.end.next_multiple_of(LEAF_PAGES);
    let mut used = *resident;
    used.add(leaves.clone());
    let mut best = leaves.clone();
    let mut size = LEAF_PAGES;
    while size <= TREE_PAGES {
        let start = leaves.start / size * size;
        let node = start..start + size;
        if node.end >= leaves.end && used.count(node.clone()) * 100 > threshold * size {
            best = node.start.min(best.start)..node.end.max(best.end);
        }
        size *= 2;
    }
    best
}

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

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_density)]
mod tests {
    use super::*;
    use crate::{
        mm::addr::{
            PMD_ORDER,
            PMD_SIZE, //
        },
        policy::Bounces, //
    };

    /// A multiple of [`PMD_SIZE`].
    const BASE: usize = 0x4000_0000;

    fn pages(first: usize, count: usize) -> Result<PageRange> {
        PageRange::from_pages(BASE + first * PAGE_SIZE, count)
    }

    fn bounces() -> Result<Pin<KBox<Bounces>>> {
        KBox::pin_init(Bounces::new(), GFP_KERNEL)
    }

    fn mask(pages: Range<usize>) -> PageSet {
        let mut mask = PageSet::EMPTY;
        mask.add(pages);
        mask
    }

    /// Pages of a leaf and of a tree.
    const L: usize = LEAF_PAGES;
    const T: usize = TREE_PAGES;

    #[test]
    fn fault_expands_to_its_leaf() {
        assert_eq!(region(&PageSet::EMPTY, 0..1, 51), 0..L);
        assert_eq!(region(&PageSet::EMPTY, 7 * L - 1..7 * L, 51), 6 * L..7 * L);
        assert_eq!(region(&PageSet::EMPTY, T - 1..T, 51), T - L..T);
        assert_eq!(
            region(&PageSet::EMPTY, PMD_PAGES - 1..PMD_PAGES, 51),
            PMD_PAGES - L..PMD_PAGES
        );
        // A range that crosses the border of two leaves.
        assert_eq!(region(&PageSet::EMPTY, L / 2..L + 1, 51), 0..2 * L);
    }

    #[test]
    fn dense_subtree_migrates_whole() {
        // Two leaves of two are dense enough for the next level, then three of four, and so on.
        assert_eq!(region(&mask(0..L), L..L + 1, 51), 0..2 * L);
        assert_eq!(region(&mask(0..2 * L), 2 * L..2 * L + 1, 51), 0..4 * L);
        assert_eq!(region(&mask(0..4 * L), 4 * L..4 * L + 1, 51), 0..8 * L);
        assert_eq!(region(&mask(0..T / 2), T / 2..T / 2 + 1, 51), 0..T);
        // Exactly the threshold is not above it.
        assert_eq!(region(&mask(0..L), 2 * L..2 * L + 1, 50), 2 * L..3 * L);
        assert_eq!(region(&mask(0..L), 2 * L..2 * L + 1, 49), 0..4 * L);
        // Distant pages do not matter.
        assert_eq!(region(&mask(T / 2..T / 4 * 3), 0..1, 51), 0..L);
        // Thresholds for always and for never.
        assert_eq!(region(&PageSet::EMPTY, 4 * L + 1..4 * L + 2, 1), 0..T);
        assert_eq!(region(&mask(0..T - 1), T - 1..T, 101), T - L..T);
        // A tree is not larger, although a PMD may map more.
        assert_eq!(
            region(&mask(0..PMD_PAGES), PMD_PAGES - 1..PMD_PAGES, 51),
            PMD_PAGES - T..PMD_PAGES
        );
    }

    #[test]
    fn tree_matches_a_plain_count() {
        let mut random = 1u64;
        for _ in 0..60 {
            let mut used = PageSet::EMPTY;
            let mut plain = [false; PMD_PAGES];
            for _ in 0..20 {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
                let at = (random >> 33) as usize % PMD_PAGES;
                let len = (random >> 50) as usize % 40;
                used.add(at..at + len);
                plain
                    .iter_mut()
                    .skip(at)
                    .take(len)
                    .for_each(|page| *page = true);
            }
            let touched = (random >> 20) as usize % PMD_PAGES;
            let mut expected =
                touched / LEAF_PAGES * LEAF_PAGES..touched / LEAF_PAGES * LEAF_PAGES + LEAF_PAGES;
            plain
                .iter_mut()
                .skip(expected.start)
                .take(LEAF_PAGES)
                .for_each(|page| *page = true);
            for size in [1, 2, 4, 8, 16, 32].map(|leaves| leaves * LEAF_PAGES) {
                let start = touched / size * size;
                let count = plain
                    .iter()
                    .skip(start)
                    .take(size)
                    .filter(|page| **page)
                    .count();
                if count * 100 > 51 * size {
                    expected = start..start + size;
                }
            }
            assert_eq!(region(&used, touched..touched + 1, 51), expected);
        }
    }

    fn fault_info<'a>(
        range: PageRange,
        resident: &'a dyn Fn(usize) -> PageSet,
        bounces: &'a Bounces,
    ) -> FaultInfo<'a> {
        FaultInfo {
            range,
            write: false,
            limits: range,
            attributes: crate::attributes::Attributes::DEFAULT,
            free: 4 * PMD_PAGES,
            total: 64 * TREE_PAGES,
            now: 0,
            resident,
            bounces,
        }
    }

    #[test]
    fn stream_needs_at_most_one_fault_per_block() -> Result {
        const BLOCKS: usize = 64;
        let policy = Density::new(Parameters::DEFAULT)?;
        let bounces = bounces()?;
        let all = PageRange::from_pages(BASE, BLOCKS * TREE_PAGES)?;
        let mut faults = 0;
        let mut next = all.start();
        let none = |_| PageSet::EMPTY;
        while next < all.end() {
            let mut fault = fault_info(PageRange::from_pages(next, 1)?, &none, &bounces);
            fault.limits = all;
            let Decision::Move { range, .. } = policy.place(&fault) else {
                return Err(EINVAL);
            };
            assert!(range.start() <= next && range.end() <= all.end());
            bounces.moved(range, 0);
            policy.moved(range, 0);
            next = range.end();
            faults += 1;
        }
        assert!(faults <= BLOCKS);
        // The amount ahead is limited to a share of the memory.
        let mut last = fault_info(PageRange::from_pages(all.end(), 1)?, &none, &bounces);
        last.limits = PageRange::from_pages(all.end(), BLOCKS * TREE_PAGES)?;
        last.total = 8 * TREE_PAGES;
        let Decision::Move { range, .. } = policy.place(&last) else {
            return Err(EINVAL);
        };
        assert!(range.pages() <= 2 * TREE_PAGES);
        Ok(())
    }

    /// Returns the pages that are migrated by `faults` on single pages of `all`, all at the same
    /// time. No page stays on the device.
    fn moves(
        (policy, bounces): (&Density, &Bounces),
        all: PageRange,
        faults: &[usize],
    ) -> Result<KVec<Range<usize>>> {
        let none = |_| PageSet::EMPTY;
        let mut moves = KVec::new();
        for number in faults {
            let touched = PageRange::from_pages(all.address(*number), 1)?;
            let mut fault = fault_info(touched, &none, bounces);
            fault.limits = all;
            if let Decision::Move { range, .. } = policy.place(&fault) {
                bounces.moved(range, 0);
                policy.moved(range, 0);
                let first = all.index_of(range.start()).ok_or(EINVAL)?;
                moves.push(first..first + range.pages(), GFP_KERNEL)?;
            }
        }
        Ok(moves)
    }

    #[test]
    fn prefetched_pages_do_not_move_more_often() -> Result {
        const P: usize = PMD_PAGES;
        let policy = Density::new(Parameters {
            thrash_delay: 0,
            ..Parameters::DEFAULT
        })?;
        let all = PageRange::from_pages(BASE, 4 * PMD_PAGES)?;
        let moves = moves((&policy, &*bounces()?), all, &[P - 1, P, P + L, P, P])?;
        let times = moves.iter().filter(|pages| pages.contains(&P)).count();
        assert_eq!(times, 3);
        Ok(())
    }

    #[test]
    fn stream_prefetches_no_immovable_block() -> Result {
        let policy = Density::new(Parameters {
            thrash_delay: 0,
            ..Parameters::DEFAULT
        })?;
        let all = PageRange::from_pages(BASE, 8 * PMD_PAGES)?;
        // Block 2 thrashes until it is pinned. Then a stream reaches it.
        let bounces = bounces()?;
        let bounced = moves((&policy, &bounces), all, &[2 * PMD_PAGES + 6; 4])?;
        assert_eq!(bounced.len(), 3);
        // Two trees before the block.
        let first = 2 * PMD_PAGES - 2 * T;
        let faults = [0, L, 2 * L, T, 2 * T].map(|page| first + page);
        let stream = moves((&policy, &bounces), all, &faults)?;
        let ends = [L, 2 * L, T, 2 * T].map(|page| first + page);
        assert!(stream.iter().map(|pages| pages.end).eq(ends));
        Ok(())
    }

    #[test]
    fn limits_and_granularity_are_respected() -> Result {
        let policy = Density::new(Parameters::DEFAULT)?;
        let bounces = bounces()?;
        let none = |_| PageSet::EMPTY;
        let mut fault = fault_info(pages(2, 1)?, &none, &bounces);
        fault.limits = pages(1, 2)?;
        let placed = |fault: &FaultInfo<'_>| match policy.place(fault) {
            Decision::Move { range, .. } => Ok(range),
            _ => Err(EINVAL),
        };
        // Both ends of the leaf are beyond the limits.
        assert_eq!(placed(&fault)?, pages(1, 2)?);
        fault.range = pages(5, 1)?;
        fault.limits = pages(0, 2 * PMD_PAGES)?;
        fault.attributes.set_granularity(Some(2))?;
        assert_eq!(placed(&fault)?, pages(4, 4)?);
        fault.attributes.set_granularity(Some(PMD_ORDER))?;
        assert_eq!(placed(&fault)?, pages(0, PMD_PAGES)?);
        assert_eq!(block_start(BASE + PMD_SIZE - 1), BASE);
        Ok(())
    }
}
