// SPDX-License-Identifier: GPL-2.0

//! The table: lookups, and updates of existing entries. `install` makes new ones.

use super::{
    dma::Translator,
    entry::{Entry, Leaf},
    flush::FlushBatch,
    format::{check, fan, last_address, shift, Format},
    grow::ROOT,
    list::List,
    pass::{Changes, Each, Pass, Remove, Visitor},
    pool::Pool,
    tree::{self, Slot},
    walk::Near,
};
use crate::mm::{
    addr::{PageRange, PMD_PAGES, PMD_SIZE},
    dma::{Owned, Windows},
    shrinker::{owner::Owner, Shrink},
    table_memory::TableMemory, //
};
use core::cell::Cell;
use kernel::{
    page::{PAGE_SHIFT, PAGE_SIZE},
    prelude::*,
    sync::{rcu, Arc}, //
};

/// Walks a table, without a lock, while it changes.
pub struct Reader<F: Format> {
    pub(super) pool: Arc<Pool<F>>,
    pub(super) root: u32,
}

impl<F: Format> Clone for Reader<F> {
    fn clone(&self) -> Self {
        Self {
            pool: self.pool.clone(),
            root: self.root,
        }
    }
}

#[inline]
pub(super) fn slot_of<F: Format>(level: u32, addr: usize) -> usize {
    (addr >> shift::<F>(level)) & (fan::<F>() - 1)
}

/// The addresses that the entry of `level` for `addr` covers.
#[inline]
pub(super) fn span_of<F: Format>(level: u32, addr: usize) -> (usize, usize) {
    let size = 1 << shift::<F>(level);
    let start = addr & !(size - 1);
    (start, start | (size - 1))
}

/// `first..=last`, both within a page table, as a range of whole pages.
#[inline]
pub(super) fn range_of(first: usize, last: usize) -> Option<PageRange> {
    PageRange::new(first, last.checked_add(1)?).ok()
}

impl<F: Format> Reader<F> {
    /// What the table says of the page at `addr`. Context: any.
    ///
    /// It may be out of date at once. For it to stay true, the caller must be somebody whom the end
    /// of a flush waits for.
    pub fn walk(&self, addr: usize) -> Option<Leaf> {
        self.pool.walk(self.root, addr).0
    }

    /// Address of the image of the root; `None` without table memory, or if the device is closed.
    /// Context: any.
    pub(crate) fn root_address(&self) -> Option<u64> {
        self.pool.address(&rcu::read_lock(), self.root)
    }

    /// What reclaim asks for table pages, if it is registered. Context: any.
    pub(crate) fn owner(&self) -> &Arc<Owner> {
        &self.pool.owner
    }

    /// Number of table pages, in use or not. Context: any.
    pub(crate) fn table_pages(&self) -> usize {
        self.pool.pages()
    }

    /// Frees up to `pages` free table pages, or a few more. Returns how many. Context: reclaim.
    // Not inlined: reclaim has little stack left.
    #[inline(never)]
    pub(crate) fn free_tables(&self, pages: usize) -> usize {
        self.pool.scan(pages)
    }

    /// The first page from `addr` on, but not behind `last`, that has a translation, and that. What
    /// has none is skipped table by table.
    fn next(&self, mut addr: usize, last: usize) -> Option<(usize, Leaf)> {
        let last = last.min(last_address::<F>());
        while addr <= last {
            let mut index = self.root;
            let mut gap = addr | (PAGE_SIZE - 1);
            let guard = rcu::read_lock();
            for level in (0..F::LEVELS).rev() {
                let word = self.pool.load(&guard, index, slot_of::<F>(level, addr));
                let (start, end) = span_of::<F>(level, addr);
                match tree::decode(word) {
                    Slot::Empty => {
                        gap = end;
                        break;
                    }
                    Slot::Table(child) => index = child,
                    Slot::Leaf(first) => {
                        let leaf = Leaf {
                            entry: first.plus((addr - start) >> PAGE_SHIFT),
                            order: F::BITS * level,
                        };
                        return Some((addr, leaf));
                    }
                }
            }
            addr = gap.checked_add(1)?;
        }
        None
    }

    /// Room for what an update needs; to be filled before the lock is taken.
    pub fn spares(&self) -> Spares<F> {
        Spares {
            pool: self.pool.clone(),
            pages: List::EMPTY,
            scratch: KVec::new(),
        }
    }
}

/// What one [`Table::install`] may need, reserved in advance.
pub struct Spares<F: Format> {
    pool: Arc<Pool<F>>,
    pub(super) pages: List,
    pub(super) scratch: KVec<Entry>,
}

impl<F: Format> Spares<F> {
    pub(super) fn is_of(&self, pool: &Arc<Pool<F>>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }

    /// Makes it complete. Context: may sleep; no lock of this crate may be held.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn refill(&mut self) -> Result {
        // One for each level below the root, and for each table of level 0 that 2 MiB need.
        let want = usize::try_from(F::LEVELS)? + PMD_PAGES.div_ceil(fan::<F>());
        if self.scratch.is_empty() {
            self.scratch.resize(fan::<F>(), Entry::NONE, GFP_KERNEL)?;
        }
        if self.pages.len() >= want && !self.pool.is_short() {
            return Ok(());
        }
        self.pool.reserve(&mut self.pages, want)
    }
}

impl<F: Format> Drop for Spares<F> {
    fn drop(&mut self) {
        self.pool.release(&mut self.pages);
    }
}

/// A device page table, to be changed by one at a time.
pub struct Table<F: Format> {
    pub(super) pool: Arc<Pool<F>>,
    pub(super) root: u32,
    pub(super) live: usize,
    /// The chunk at which the search for cold ones ended.
    pub(super) hand: usize,
    /// Of a table of DMA addresses.
    dma: Option<Owned>,
}

impl<F: Format> Table<F> {
    /// An empty table. Context: may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new() -> Result<Self> {
        Self::with(None, TableMemory::none())
    }

    /// An empty table; with DMA addresses if its format says so, and then with windows. `memory`
    /// says where the device reads it. Context: may sleep.
    ///
    /// # Errors
    ///
    /// * `ENOMEM`
    /// * `ENODEV`: the device of `memory` is closed.
    /// * `EINVAL`: the format holds DMA addresses and there are no windows, or the other way round;
    ///   or it cannot express where tables are; or pages of device memory do not begin at a
    ///   multiple of 2 MiB.
    pub(crate) fn with(windows: Option<Arc<Windows>>, memory: TableMemory) -> Result<Self> {
        let dma = windows.map(Owned);
        if dma.is_some() != F::DMA || memory.device_pages() % PMD_SIZE as u64 != 0 {
            return Err(EINVAL);
        }
        const { check::<F>() };
        let has_images = memory.is_some();
        let pool = Pool::new(memory)?;
        if has_images {
            // A driver may give its address to the device at once.
            pool.make_root()?;
        }
        Ok(Self {
            pool,
            root: ROOT,
            live: 0,
            hand: 0,
            dma,
        })
    }

    /// Where the pages of a table of DMA addresses are.
    #[inline]
    pub(super) fn windows(&self) -> Option<&Arc<Windows>> {
        self.dma.as_ref().map(|owned| &owned.0)
    }

    /// The side that walks it.
    pub fn reader(&self) -> Reader<F> {
        Reader {
            pool: self.pool.clone(),
            root: self.root,
        }
    }

    /// Gathers what updates of this table make necessary.
    pub fn batch(&self) -> FlushBatch<F> {
        FlushBatch::new(&self.pool)
    }

    /// The entry for the page at `addr`.
    pub fn get(&self, addr: usize) -> Entry {
        self.leaf(addr).map_or(Entry::NONE, |leaf| leaf.entry)
    }

    /// As [`Self::get`], after other looks of the same hold of the table lock, which have left
    /// `near`.
    #[inline(always)]
    pub(crate) fn get_near(&self, addr: usize, near: &Cell<Near>) -> Entry {
        let leaf = self.pool.walk_near(self.root, addr, near);
        let leaf = self.translate(addr, leaf);
        leaf.map_or(Entry::NONE, |leaf| leaf.entry)
    }

    /// The translation for the page at `addr`.
    pub fn leaf(&self, addr: usize) -> Option<Leaf> {
        self.translate(addr, self.pool.walk(self.root, addr).0)
    }

    /// Number of pages that have an entry.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Number of pages from the start of `range` on that have an entry.
    pub fn present(&self, range: PageRange) -> usize {
        let mut done = 0;
        while done < range.pages() {
            let addr = range.address(done);
            let Some(leaf) = self.leaf(addr) else {
                break;
            };
            let in_leaf = (1usize << leaf.order) - 1;
            done += in_leaf + 1 - ((addr >> PAGE_SHIFT) & in_leaf);
            if leaf.order == 0 {
                // Its neighbours are in the same table.
                done += self.present_after(addr);
            }
        }
        done.min(range.pages())
    }

    /// Number of pages behind the one at `addr`, which has a small entry, that have one, too, within a
    /// table.
    fn present_after(&self, addr: usize) -> usize {
        let mut index = self.root;
        let guard = rcu::read_lock();
        for level in (1..F::LEVELS).rev() {
            match tree::decode(self.pool.load(&guard, index, slot_of::<F>(level, addr))) {
                Slot::Table(child) => index = child,
                _ => return 0,
            }
        }
        let cells = self.pool.page(&guard, index).map(|page| page.cells(0));
        let behind = cells.and_then(|cells| cells.get(slot_of::<F>(0, addr) + 1..));
        behind.map_or(0, |cells| {
            let is_leaf = |cell: &&_| matches!(tree::decode(tree::load(cell)), Slot::Leaf(_));
            cells.iter().take_while(is_leaf).count()
        })
    }

    /// Whether `f` holds for the entry of any page in `range`, as the device sees it; of a huge leaf only one is asked.
    ///
    /// The cost is that of the tables that exist, not of the range.
    pub fn any(&self, range: PageRange, mut f: impl FnMut(Entry) -> bool) -> bool {
        let reader = self.reader();
        let last = range.end() - 1;
        let mut addr = range.start();
        while let Some((found, leaf)) = reader.next(addr, last) {
            if f(leaf.entry) {
                return true;
            }
            let size = 1usize << (leaf.order + PAGE_SHIFT as u32);
            match (found | (size - 1)).checked_add(1) {
                Some(behind) => addr = behind,
                None => break,
            }
        }
        false
    }

    /// Calls `f` for every leaf in `range`, with the addresses that it covers and the entry of its
    /// first page, which `f` may change or remove. A huge leaf of which only a part is in `range` is
    /// split before; if no table is left for that, `f` gets it as a whole.
    ///
    /// The cost is that of the tables that exist, not of the range. With a batch of another table nothing
    /// is done.
    pub fn for_each(
        &mut self,
        range: PageRange,
        batch: &mut FlushBatch<F>,
        f: impl FnMut(PageRange, &mut Entry),
    ) {
        self.for_each_split(range, batch, |_| false, f);
    }

    /// As [`Self::for_each`]; huge leaves for which `split` says so are split before, too.
    pub fn for_each_split(
        &mut self,
        range: PageRange,
        batch: &mut FlushBatch<F>,
        split: impl FnMut(PageRange) -> bool,
        f: impl FnMut(PageRange, &mut Entry),
    ) {
        self.pass(range, batch, Each { split, f });
    }

    /// Removes every leaf in `range`. Calls `f` with the entry of each one's first page, and the number of
    /// its pages. A huge leaf of which only a part is in `range` is split before, as by
    /// [`Self::for_each`]; this is the same in a fraction of the time. Returns the number of pages.
    pub fn remove_all(
        &mut self,
        range: PageRange,
        batch: &mut FlushBatch<F>,
        f: impl FnMut(Entry, usize),
    ) -> usize {
        self.pass(range, batch, Remove(f))
    }

    /// Returns the number of pages that were removed.
    fn pass(
        &mut self,
        range: PageRange,
        batch: &mut FlushBatch<F>,
        visitor: impl Visitor<F>,
    ) -> usize {
        if !batch.is_of(&self.pool) {
            crate::alarm!(FlushOfAnotherTable, "nothing was changed");
            return 0;
        }
        let last = (range.end() - 1).min(last_address::<F>());
        if range.start() > last {
            return 0;
        }
        let changes = {
            let mut pass = Pass {
                pool: &self.pool,
                batch: &mut *batch,
                changes: Changes::default(),
                visitor,
                dma: Translator::new(self.dma.as_ref().map(|owned| &owned.0)),
            };
            pass.tree(self.root, range.start(), last);
            pass.changes
        };
        self.live = self.live.saturating_sub(changes.removed);
        let hull = changes.hull.and_then(|(start, end)| range_of(start, end));
        batch.record_all(hull, changes.outdated);
        changes.removed
    }
}
