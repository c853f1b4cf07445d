// SPDX-License-Identifier: GPL-2.0

//! The tree over the pages of 2 MiB, whose dense subtrees are migrated whole.

use crate::policy::PageSet;
use core::ops::Range;
use kernel::page::PAGE_SIZE;

/// Size of a leaf of the tree in bytes: enough that the copy and not the fault takes most of the
/// time, and a size of leaf that most GPUs have.
const LEAF_BYTES: usize = 64 << 10;

/// Size of a tree in bytes: the device waits for the copy of all of it.
pub(super) const TREE_BYTES: usize = 2 << 20;

/// Pages of a leaf.
pub(super) const LEAF_PAGES: usize = LEAF_BYTES / PAGE_SIZE;

/// Pages of a tree.
pub(super) const TREE_PAGES: usize = TREE_BYTES / PAGE_SIZE;

/// Returns the pages to migrate for a fault on `touched`: the largest subtree of which more than
/// `threshold` per cent are resident or touched, and at least the touched leaves.
pub(in crate::policy) fn region(
    resident: &PageSet,
    touched: Range<usize>,
    threshold: usize,
) -> Range<usize> {
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
