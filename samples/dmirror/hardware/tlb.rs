// SPDX-License-Identifier: GPL-2.0

//! The TLB of an engine: finite, direct-mapped, tagged by address space.

use super::walk::{
    Translation,
    DEVICE_PAGE_SHIFT, //
};
use kernel::prelude::*;
use rust_hmm::{
    kernel::hash::hash_64,
    mm::addr::PageRange, //
};

/// Sizes of translations that a line can have, as log2 of device pages: 4 KiB, 64 KiB, 2 MiB.
const LINE_ORDERS: [u32; 3] = [0, 4, 9];

/// Number of device pages from which on a flush searches all lines instead of each page's.
const MAX_SINGLE_FLUSHES: usize = 512;

/// Size of the line that can have a translation of `1 << order` pages, as log2 of device pages.
pub(crate) fn line_order(order: u32) -> u32 {
    let fits = |line: &u32| *line <= order;
    LINE_ORDERS.into_iter().rev().find(fits).unwrap_or(0)
}

/// One translation.
#[derive(Clone, Copy)]
struct TlbLine {
    /// Address space; 0 is none.
    tag: u64,
    /// First device page of the mapping.
    page: usize,
    /// Result of the walk for that page.
    found: Translation,
}

/// A TLB. Each translation is resolved again before it is used.
pub(crate) struct Tlb {
    lines: KVec<Option<TlbLine>>,
    /// Number of valid lines. Most flushes find none, and end early.
    used: usize,
}

impl Tlb {
    /// Creates a TLB of at least one line.
    pub(crate) fn new(lines: usize) -> Result<Self> {
        Ok(Self {
            lines: KVec::from_elem(None, lines.max(1), GFP_KERNEL)?,
            used: 0,
        })
    }

    fn index(&self, tag: u64, page: usize, order: u32) -> usize {
        let key = (page >> order) as u64 ^ (tag << 40) ^ (u64::from(order) << 56);
        hash_64(key, 32) as usize % self.lines.len()
    }

    /// Returns the translation of `addr`, if a line has it.
    pub(crate) fn lookup(&self, tag: u64, addr: usize) -> Option<Translation> {
        let page = addr >> DEVICE_PAGE_SHIFT;
        LINE_ORDERS.into_iter().find_map(|order| {
            let line = (*self.lines.get(self.index(tag, page, order))?)?;
            let first = page & !((1 << order) - 1);
            let offset = ((page - first) as u64) << DEVICE_PAGE_SHIFT;
            (line.tag == tag && line.page == first && line.found.order == order).then(|| {
                Translation {
                    address: line.found.address.wrapping_add(offset),
                    ..line.found
                }
            })
        })
    }

    /// Returns whether a line has a page of the leaf of `1 << order` pages around `addr` in another
    /// size.
    pub(crate) fn has_other_size(&self, tag: u64, addr: usize, order: u32) -> bool {
        let first = addr >> DEVICE_PAGE_SHIFT & !((1 << order) - 1);
        let mut lines = self.lines.iter().flatten();
        lines.any(|line| {
            line.tag == tag && line.found.order != order && line.covers(first, 1 << order)
        })
    }

    /// Keeps what a walk gave for `addr`.
    pub(crate) fn fill(&mut self, tag: u64, addr: usize, found: Translation) {
        let page = addr >> DEVICE_PAGE_SHIFT;
        let order = line_order(found.order);
        let first = page & !((1 << order) - 1);
        let offset = ((page - first) as u64) << DEVICE_PAGE_SHIFT;
        let index = self.index(tag, page, order);
        if let Some(line) = self.lines.get_mut(index) {
            self.used += usize::from(line.is_none());
            *line = Some(TlbLine {
                tag,
                page: first,
                found: Translation {
                    address: found.address.wrapping_sub(offset),
                    order,
                    ..found
                },
            });
        }
    }

    /// Forgets the translation of `addr`.
    pub(crate) fn forget(&mut self, tag: u64, addr: usize) {
        let page = addr >> DEVICE_PAGE_SHIFT;
        for order in LINE_ORDERS {
            let index = self.index(tag, page, order);
            if let Some(line) = self.lines.get_mut(index) {
                if line.is_some_and(|line| line.tag == tag && line.covers(page, 1)) {
                    *line = None;
                    self.used -= 1;
                }
            }
        }
    }

    /// Forgets all translations of `range`.
    #[inline]
    pub(crate) fn flush(&mut self, tag: u64, range: PageRange) {
        if self.used != 0 {
            self.flush_used(tag, range);
        }
    }

    // Not in the way of flushes that find none.
    #[inline(never)]
    fn flush_used(&mut self, tag: u64, range: PageRange) {
        let first = range.start() >> DEVICE_PAGE_SHIFT;
        let count = (range.end() >> DEVICE_PAGE_SHIFT) - first;
        if count < self.lines.len().min(MAX_SINGLE_FLUSHES) {
            for page in first..first + count {
                self.forget(tag, page << DEVICE_PAGE_SHIFT);
            }
            return;
        }
        for line in &mut self.lines {
            if line.is_some_and(|line| line.tag == tag && line.covers(first, count)) {
                *line = None;
                self.used -= 1;
            }
        }
    }
}

impl TlbLine {
    fn covers(&self, first: usize, count: usize) -> bool {
        let end = self.page.saturating_add(1 << self.found.order);
        self.page < first.saturating_add(count) && first < end
    }
}
