// SPDX-License-Identifier: GPL-2.0

//! The page table: lookups and updates of existing entries. New entries are in `install`.

use super::{
    dma::DmaTranslator,
    entry::{
        DevicePte,
        Leaf, //
    },
    flush::FlushBatch,
    format::{
        check,
        has_leaves,
        last_address,
        range_of,
        shift,
        slot_of,
        Format, //
    },
    grow::ROOT_PAGE,
    pool::Pool,
    reader::TableReader,
    tree::{
        self,
        Slot, //
    },
    update::{
        ForEach,
        Unmap,
        Update,
        UpdateStats,
        Visitor, //
    },
    walk::WalkCache, //
};
use crate::mm::{
    addr::{
        PageRange,
        PMD_SIZE, //
    },
    dma::{
        DmaWindows,
        OwnedWindows, //
    },
    table_memory::TableMemory, //
};
use core::cell::Cell;
use kernel::{
    page::PAGE_SHIFT,
    prelude::*,
    sync::{
        rcu,
        Arc, //
    }, //
};

/// Returns the required alignment of the address of the device's own memory in bytes: leaves whose
/// device page numbers are aligned must have aligned addresses.
const fn memory_align<F: Format>() -> usize {
    // In bytes, because it does not depend on the pages of the CPU: no format of the library has
    // larger runs of small entries (the Contiguous bit of Arm with a granule of 16 KiB), nor larger
    // leaves, except for leaves of level 1, which are considered below.
    const MINIMUM: usize = 2 << 20;
    let leaf = 1 << shift::<F>(1);
    // A leaf that is larger than a block is never installed.
    if has_leaves::<F>(1) && leaf > MINIMUM && leaf <= PMD_SIZE {
        leaf
    } else {
        MINIMUM
    }
}

/// A device page table. Updates need exclusive access, usually by the table lock.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::mm::addr::PageRange;
/// use rust_hmm::pgtable::DevicePte;
/// use rust_hmm::pgtable::Radix4;
/// use rust_hmm::pgtable::Table;
///
/// let mut table = Table::<Radix4>::new()?;
/// let mut prealloc = table.reader().prealloc();
/// prealloc.refill()?;
/// let mut batch = table.batch();
/// let page = PageRange::from_pages(0x1_0000, 1)?;
/// table.install(page, &mut prealloc, &mut batch, |_, entry| {
///     *entry = DevicePte::system(0x1234, false);
/// })?;
/// assert_eq!(table.get(0x1_0000).number(), 0x1234);
/// // No entry was replaced, so that nothing has to be flushed.
/// assert!(batch.is_empty());
/// # Ok::<(), Error>(())
/// ```
pub struct Table<F: Format> {
    pub(super) pool: Arc<Pool<F>>,
    pub(super) root: u32,
    pub(super) live: usize,
    /// Chunk at which the most recent search for cold tables ended.
    pub(super) hand: usize,
    /// Table in which the last lookup by [`Self::get_near`] has ended. Most lookups are sequential,
    /// or of a page that was looked up before. Each update forgets it, because it may remove that
    /// table. No lookup is concurrent with an update: a table is not [`Sync`].
    pub(super) near: Cell<WalkCache>,
    /// DMA mappings of the pages, in a table of DMA addresses.
    dma: Option<OwnedWindows>,
}

impl<F: Format> Table<F> {
    /// Creates an empty table.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new() -> Result<Self> {
        Self::with(None, TableMemory::none())
    }

    /// Creates an empty table. `windows` is required if, and only if, the format holds DMA
    /// addresses. Table pages have images in `memory`, if the device has a hardware walker.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available.
    /// - `ENODEV`: the device of `memory` is closed.
    /// - `EINVAL`: the format holds DMA addresses and there are no windows, or vice versa; or it
    ///   cannot encode the addresses of tables; or the device's own memory does not begin at a
    ///   multiple of 2 MiB and of the size of a leaf.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn with(windows: Option<Arc<DmaWindows>>, memory: TableMemory) -> Result<Self> {
        let dma = windows.map(OwnedWindows);
        // CAST: Both have 64 bits.
        let aligned = memory.device_pages() % memory_align::<F>() as u64 == 0;
        if dma.is_some() != F::DMA || !aligned {
            return Err(EINVAL);
        }
        const { check::<F>() };
        let has_images = memory.is_some();
        let pool = Pool::new(memory)?;
        if has_images {
            // The image of the root must exist before a driver passes its address to the device.
            pool.make_root()?;
        }
        Ok(Self {
            pool,
            root: ROOT_PAGE,
            live: 0,
            hand: 0,
            near: Cell::new(WalkCache::NONE),
            dma,
        })
    }

    /// Returns the DMA mappings of the pages, for a table of DMA addresses.
    #[inline]
    pub(super) fn windows(&self) -> Option<&Arc<DmaWindows>> {
        self.dma.as_ref().map(|owned| &owned.0)
    }

    /// Returns the interface for walks.
    ///
    /// # Context
    ///
    /// Any.
    pub fn reader(&self) -> TableReader<F> {
        TableReader {
            pool: self.pool.clone(),
            root: self.root,
        }
    }

    /// Creates an empty batch for updates of this table.
    ///
    /// # Context
    ///
    /// Any.
    pub fn batch(&self) -> FlushBatch<F> {
        FlushBatch::new(&self.pool)
    }

    /// Returns the entry of the page at `addr`.
    ///
    /// # Context
    ///
    /// Any but interrupts. Takes a spinlock in a table of DMA addresses.
    pub fn get(&self, addr: usize) -> DevicePte {
        self.leaf(addr).map_or(DevicePte::NONE, |leaf| leaf.entry)
    }

    /// As [`Self::get`], but looks into the table of the previous lookup first.
    #[inline(always)]
    pub(crate) fn get_near(&self, addr: usize) -> DevicePte {
        let leaf = self.pool.walk_near(self.root, addr, &self.near);
        let leaf = self.translate(addr, leaf);
        leaf.map_or(DevicePte::NONE, |leaf| leaf.entry)
    }

    /// Returns the translation of the page at `addr`.
    ///
    /// # Context
    ///
    /// Any but interrupts. Takes a spinlock in a table of DMA addresses.
    pub fn leaf(&self, addr: usize) -> Option<Leaf> {
        self.translate(addr, self.pool.walk(self.root, addr).0)
    }

    /// Returns the number of present pages.
    ///
    /// # Context
    ///
    /// Any.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Returns the number of consecutive present pages from the start of `range` on.
    ///
    /// # Context
    ///
    /// Any but interrupts. Takes a spinlock in a table of DMA addresses.
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
                // The following pages are in the same table.
                done += self.present_after(addr);
            }
        }
        done.min(range.pages())
    }

    /// Returns the number of consecutive present pages that follow the one at `addr`, which has a
    /// small entry, in the same table.
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

    /// Returns whether `f` is true for any entry in `range`, as the device sees it. `f` is called
    /// once for a huge leaf.
    ///
    /// The cost depends on the number of tables in the range and not on its size.
    ///
    /// # Context
    ///
    /// Any but interrupts. `f` must not sleep if the table lock is held.
    pub fn any(&self, range: PageRange, mut f: impl FnMut(DevicePte) -> bool) -> bool {
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

    /// Calls `f` for each leaf in `range`, with the addresses that the leaf covers and the entry of
    /// its first page. `f` may change or remove the entry. A huge leaf that is only partially in
    /// `range` is split before; if no free table page is left, `f` is called for the whole leaf.
    ///
    /// The cost depends on the number of tables in the range and not on its size. Does nothing if
    /// `batch` belongs to another table.
    ///
    /// # Context
    ///
    /// Any but interrupts. `f` must not sleep if the table lock is held.
    pub fn for_each(
        &mut self,
        range: PageRange,
        batch: &mut FlushBatch<F>,
        f: impl FnMut(PageRange, &mut DevicePte),
    ) {
        self.for_each_split(range, batch, |_| false, f);
    }

    /// As [`Self::for_each`], but also splits huge leaves for which `split` returns true.
    ///
    /// # Context
    ///
    /// As for [`Self::for_each`].
    pub fn for_each_split(
        &mut self,
        range: PageRange,
        batch: &mut FlushBatch<F>,
        split: impl FnMut(PageRange) -> bool,
        f: impl FnMut(PageRange, &mut DevicePte),
    ) {
        self.pass(range, batch, ForEach { split, f });
    }

    /// Removes all leaves in `range`. Calls `f` for each leaf with the entry of its first page and
    /// its number of pages. Returns the number of removed pages.
    ///
    /// A huge leaf that is only partially in `range` is split before, as by [`Self::for_each`].
    /// This function has the same effect as `for_each` with a function that removes each entry, but
    /// is faster.
    ///
    /// # Context
    ///
    /// As for [`Self::for_each`].
    pub fn remove_all(
        &mut self,
        range: PageRange,
        batch: &mut FlushBatch<F>,
        f: impl FnMut(DevicePte, usize),
    ) -> usize {
        self.pass(range, batch, Unmap(f))
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
        self.near.get_mut().forget();
        let changes = {
            let mut pass = Update {
                pool: &self.pool,
                batch: &mut *batch,
                changes: UpdateStats::default(),
                visitor,
                dma: DmaTranslator::new(self.dma.as_ref().map(|owned| &owned.0)),
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
