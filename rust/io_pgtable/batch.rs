// SPDX-License-Identifier: GPL-2.0

//! Pages that are put into a page table together: the lock is taken once for all of them.

use kernel::page::PAGE_SIZE;

/// Runs that a batch holds at most.
const RUNS: usize = 32;

/// Pages that it holds at most, in all its runs: the lock is a spinlock.
const PAGES: usize = 512;

/// Pages at addresses in a row, of which the physical addresses are in a row, with the same rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) addr: usize,
    pub(super) physical: u64,
    pub(super) pages: usize,
    pub(super) rights: u32,
}

impl Run {
    /// The address behind the last page.
    #[inline]
    pub(super) fn end(&self) -> usize {
        self.addr + self.pages * PAGE_SIZE
    }

    /// Whether a page would make it longer.
    #[inline]
    fn is_followed_by(&self, addr: usize, physical: u64, rights: u32) -> bool {
        let bytes = (self.pages * PAGE_SIZE) as u64;
        addr == self.end() && physical == self.physical + bytes && rights == self.rights
    }
}

/// Runs, in the order in which they came.
pub(super) struct Batch {
    runs: [Run; RUNS],
    len: usize,
    pages: usize,
}

impl Batch {
    #[inline]
    pub(super) fn new() -> Self {
        Self {
            runs: [Run::default(); RUNS],
            len: 0,
            pages: 0,
        }
    }

    #[inline]
    pub(super) fn runs(&self) -> &[Run] {
        self.runs.get(..self.len).unwrap_or_default()
    }

    /// Adds a page, and says whether there was room for it.
    #[inline]
    pub(super) fn add(&mut self, addr: usize, physical: u64, rights: u32) -> bool {
        if self.pages == PAGES {
            return false;
        }
        let last = self.runs.get_mut(..self.len).and_then(<[Run]>::last_mut);
        if let Some(run) = last.filter(|run| run.is_followed_by(addr, physical, rights)) {
            run.pages += 1;
        } else if let Some(free) = self.runs.get_mut(self.len) {
            *free = Run {
                addr,
                physical,
                pages: 1,
                rights,
            };
            self.len += 1;
        } else {
            return false;
        }
        self.pages += 1;
        true
    }
}

#[kernel::macros::kunit_tests(rust_hmm_io_pgtable)]
mod tests {
    use super::*;

    const BASE: usize = 1 << 30;

    /// Adds pages at addresses in a row, while there is room.
    fn fill(batch: &mut Batch, page: impl Fn(usize) -> (u64, u32)) -> usize {
        let mut added = 0;
        loop {
            let (physical, rights) = page(added);
            if !batch.add(BASE + added * PAGE_SIZE, physical, rights) {
                return added;
            }
            added += 1;
        }
    }

    #[test]
    fn what_is_in_a_row_is_one_run() {
        let mut batch = Batch::new();
        let added = fill(&mut batch, |page| (((page + 7) * PAGE_SIZE) as u64, 1));
        let run = Run {
            addr: BASE,
            physical: (7 * PAGE_SIZE) as u64,
            pages: PAGES,
            rights: 1,
        };
        assert_eq!(added, PAGES);
        assert_eq!(batch.runs(), [run]);
        assert_eq!(run.end(), BASE + PAGES * PAGE_SIZE);
    }

    #[test]
    fn what_is_not_is_as_many() {
        // Every other page elsewhere; the same page; other rights; other addresses.
        let mut batch = Batch::new();
        assert_eq!(
            fill(&mut batch, |page| ((page * 2 * PAGE_SIZE) as u64, 1)),
            RUNS
        );
        let mut batch = Batch::new();
        assert_eq!(fill(&mut batch, |_| (PAGE_SIZE as u64, 1)), RUNS);
        let mut batch = Batch::new();
        let added = fill(&mut batch, |page| {
            ((page * PAGE_SIZE) as u64, page as u32 / 2)
        });
        assert_eq!((added, batch.runs().len()), (2 * RUNS, RUNS));
        assert!(batch.runs().iter().all(|run| run.pages == 2));
        let mut batch = Batch::new();
        assert!(batch.add(BASE, 0, 1) && batch.add(BASE + 2 * PAGE_SIZE, PAGE_SIZE as u64, 1));
        assert_eq!(batch.runs().len(), 2);
    }
}
