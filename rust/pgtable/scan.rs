// SPDX-License-Identifier: GPL-2.0

//! Lockless scan of a table, in parts of bounded size.

use super::{
    entry::DevicePte,
    format::{
        last_address,
        range_of,
        shift,
        slot_of,
        span_of,
        Format, //
    },
    reader::TableReader,
    tree::{
        self,
        Slot, //
    }, //
};
use crate::mm::addr::PageRange;
use kernel::{
    page::PAGE_MASK,
    sync::rcu, //
};

impl<F: Format> TableReader<F> {
    /// Calls `f` for the translations from `from` on, in ascending order, with the range that each
    /// covers from there on, its entry, and whether it is a huge leaf. Stops when `f` returns
    /// false, or when `tables` parts were scanned. A part is a table page or a gap. Returns the
    /// address at which to continue, which includes the translation that `f` refused; `None` at the
    /// end of the table.
    ///
    /// The table may change concurrently. An entry that is reported was present at some time during
    /// the scan. The exception is an entry whose table page was detached, reused for other
    /// addresses, and attached at the same place again between two loads.
    ///
    /// # Context
    ///
    /// Any; `f` must not sleep.
    pub(crate) fn scan(
        &self,
        from: usize,
        tables: usize,
        mut f: impl FnMut(PageRange, DevicePte, bool) -> bool,
    ) -> Option<usize> {
        let last = last_address::<F>();
        let mut addr = from & PAGE_MASK;
        for _ in 0..tables {
            if addr > last {
                return None;
            }
            match self.scan_part(addr, &mut f) {
                Ok(end) => addr = end.checked_add(1)?,
                Err(refused) => return Some(refused),
            }
        }
        Some(addr)
    }

    /// Scans the part that contains `addr`. Returns the last address of the part, or as an error
    /// the address of the first translation that `f` refused.
    fn scan_part(
        &self,
        addr: usize,
        f: &mut impl FnMut(PageRange, DevicePte, bool) -> bool,
    ) -> Result<usize, usize> {
        let mut index = self.root;
        let guard = rcu::read_lock();
        for level in (1..F::LEVELS).rev() {
            let (start, end) = span_of::<F>(level, addr);
            let word = self.pool.load(&guard, index, slot_of::<F>(level, addr));
            match tree::decode(word) {
                Slot::Empty => return Ok(end),
                Slot::Table(child) => index = child,
                Slot::Leaf(_) if !self.leads_to(&guard, addr, level, index) => return Ok(end),
                Slot::Leaf(first) => {
                    let entry = first.plus((addr - start) >> shift::<F>(0));
                    return match range_of(addr, end) {
                        Some(range) if !f(range, entry, true) => Err(addr),
                        _ => Ok(end),
                    };
                }
            }
        }
        let (start, end) = span_of::<F>(1, addr);
        let Some(page) = self.pool.page(&guard, index) else {
            return Ok(end);
        };
        let (low, high) = page.bounds();
        let first = slot_of::<F>(0, addr).max(low);
        let size = 1usize << shift::<F>(0);
        let mut at = start.wrapping_add(first << shift::<F>(0));
        for cell in page
            .cells(first)
            .iter()
            .take((high + 1).saturating_sub(first))
        {
            if let (Slot::Leaf(entry), Some(range)) = (
                tree::decode(tree::load(cell)),
                range_of(at, at | (size - 1)),
            ) {
                if !self.leads_to(&guard, addr, 0, index) {
                    break;
                }
                if !f(range, entry, false) {
                    return Err(at);
                }
            }
            at = at.wrapping_add(size);
        }
        Ok(end)
    }

    /// Whether a walk to `addr` still reaches table page `index` at `level`.
    ///
    /// A detached table page may be reused for other addresses immediately, because RCU protects
    /// its memory, not its contents. Therefore an entry is reported only if this returns true after
    /// the entry was read.
    fn leads_to(&self, guard: &rcu::Guard, addr: usize, level: u32, index: u32) -> bool {
        let mut at = self.root;
        for above in (level + 1..F::LEVELS).rev() {
            let word = self.pool.load(guard, at, slot_of::<F>(above, addr));
            match tree::decode(word) {
                Slot::Table(child) => at = child,
                _ => return false,
            }
        }
        at == index
    }
}
