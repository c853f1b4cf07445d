// SPDX-License-Identifier: GPL-2.0

//! Pool of the table pages of one table.
//!
//! Table pages are identified by index. Pages in use stay in memory, so that a concurrent walk
//! never accesses freed memory. Free pages are cached until the kernel reclaims the memory; a late
//! walk then finds no translation.

use super::{
    chunk::{
        TableChunk,
        TablePage,
        CHUNK,
        NIL, //
    },
    directory::ChunkDirectory,
    format::{
        fan,
        Format, //
    },
    image::Images,
    list::{
        PageList,
        PageLists, //
    },
    sizes::FlushClock,
    tree, //
};
use crate::{
    inject::{
        fails,
        FailPoint, //
    },
    kernel::{
        lock_classes,
        shrinker::owner::ReclaimOwner, //
    },
    mm::table_memory::{
        self,
        TableMemory,
        TableRegistration, //
    }, //
};
use core::marker::PhantomData;
use kernel::{
    page::PAGE_SHIFT,
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        rcu::{
            self,
            Guard, //
        },
        Arc,
        SpinLock, //
    }, //
};

mod reclaim;
mod split;

/// All table pages of one table.
#[pin_data(PinnedDrop)]
pub(super) struct Pool<F: Format> {
    pub(super) chunks: ChunkDirectory<TableChunk<F>>,
    /// Memory of the images, for a device with a hardware walker.
    pub(super) memory: TableMemory,
    /// Orders flushes and entries that change their size.
    pub(super) clock: FlushClock,
    /// Object from which reclaim requests table pages.
    pub(super) owner: Arc<ReclaimOwner>,
    /// Lets other tables of the device request pages of this one.
    _joined: TableRegistration,
    /// Number of chunks, including those that are being added.
    pub(super) count: Atomic<usize>,
    /// Number of pages of these chunks.
    pub(super) pages: Atomic<usize>,
    /// Upper bound of the slots of chunks: slots from here on were never used.
    pub(super) top: Atomic<usize>,
    /// Number of pages of the chunks whose pages are all free. Changed under the lock of `free`.
    whole: Atomic<usize>,
    /// Number of huge leaves in the table. Written only with exclusive access to the table.
    huge: Atomic<usize>,
    #[pin]
    pub(super) free: SpinLock<PageLists>,
}

/// Accounts `pages` added (`sign` is 1) or removed (-1) table pages, which have `bytes` bytes.
pub(super) fn account(pages: usize, bytes: usize, sign: i64) {
    let signed = |value: usize| sign * i64::try_from(value).unwrap_or(0);
    table_memory::account(signed(pages), signed(bytes));
}

#[pinned_drop]
impl<F: Format> PinnedDrop for Pool<F> {
    fn drop(self: Pin<&mut Self>) {
        account(self.pages(), self.bytes(), -1);
    }
}

impl<F: Format> Pool<F> {
    pub(super) fn new(memory: TableMemory) -> Result<Arc<Self>> {
        let owner = ReclaimOwner::new()?;
        let joined = memory.join(&owner)?;
        Arc::pin_init(
            pin_init!(Self {
                chunks: ChunkDirectory::new(),
                memory,
                clock: FlushClock::new(),
                owner,
                _joined: joined,
                count: Atomic::new(0),
                pages: Atomic::new(0),
                top: Atomic::new(0),
                whole: Atomic::new(0),
                huge: Atomic::new(0),
                free <- {
                    let (name, key) = lock_classes::table_pool();
                    SpinLock::new(PageLists::EMPTY, name, key)
                },
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    pub(super) fn chunk<'g>(&'g self, guard: &'g Guard, index: u32) -> Option<&'g TableChunk<F>> {
        // CAST: From 32 bits to more.
        self.chunks.get(guard, index as usize / CHUNK)
    }

    pub(super) fn page<'g>(&'g self, guard: &'g Guard, index: u32) -> Option<TablePage<'g, F>> {
        let chunk = self.chunk(guard, index)?;
        // CAST: From 32 bits to more.
        let first = index as usize % CHUNK * fan::<F>();
        Some(TablePage {
            cells: chunk.cells.get(first..first + fan::<F>())?,
            meta: chunk.meta(index)?,
            _format: PhantomData,
        })
    }

    /// Returns whether the device has a hardware walker.
    #[inline]
    pub(super) fn has_images(&self) -> bool {
        self.memory.is_some()
    }

    /// Returns the frame number at which the walker finds the device's own memory.
    #[inline]
    pub(super) fn device_pages(&self) -> usize {
        // CAST: Addresses have 64 bits.
        (self.memory.device_pages() >> PAGE_SHIFT) as usize
    }

    /// Returns the images of the chunk of table `index`, and the index of its image in them.
    pub(super) fn images<'g>(
        &'g self,
        guard: &'g Guard,
        index: u32,
    ) -> Option<(&'g Images<F>, usize)> {
        let images = self.chunk(guard, index)?.images.as_ref()?;
        // CAST: From 32 bits to more.
        Some((images, index as usize % CHUNK))
    }

    /// Returns one entry of a table page. For walks, which need no other data of the page.
    #[inline]
    pub(super) fn load(&self, guard: &Guard, index: u32, slot: usize) -> u64 {
        // CAST: From 32 bits to more.
        let place = index as usize % CHUNK * fan::<F>() + slot;
        self.chunk(guard, index)
            .and_then(|chunk| chunk.cells.get(place))
            .map_or(tree::EMPTY, tree::load)
    }

    pub(super) fn push(&self, list: &mut PageList, index: u32) {
        let guard = rcu::read_lock();
        if let Some(chunk) = self.chunk(&guard, index) {
            list.push(chunk, index);
        }
    }

    pub(super) fn pop(&self, list: &mut PageList) -> Option<u32> {
        if list.is_empty() {
            return None;
        }
        let guard = rcu::read_lock();
        list.pop(self.chunk(&guard, list.head)?)
    }

    /// As [`Self::push`], to the lists of free pages. The caller must hold the lock of the lists.
    pub(super) fn push_free(&self, guard: &Guard, free: &mut PageLists, index: u32) {
        if let Some(chunk) = self.chunk(guard, index) {
            if chunk.free.fetch_add(1, Relaxed) + 1 == chunk.pages() {
                self.whole.fetch_add(chunk.pages(), Relaxed);
            }
            free.of(chunk.above).push(chunk, index);
        }
    }

    /// Moves a page for a table of level 0, or with `above` for one above it, from the lists of
    /// free pages to `list`. Returns `None` if there is none. The caller must hold the lock of the
    /// lists of free pages.
    fn pop_free(
        &self,
        guard: &Guard,
        free: &mut PageLists,
        list: &mut PageList,
        above: bool,
    ) -> Option<()> {
        let free = free.of(above && !free.above.is_empty());
        if free.is_empty() {
            return None;
        }
        let chunk = self.chunk(guard, free.head)?;
        // Only the first chunks, which are smaller, have pages for all levels.
        if above && chunk.pages() == CHUNK {
            return None;
        }
        let index = free.pop(chunk)?;
        if chunk.free.fetch_sub(1, Relaxed) == chunk.pages() {
            self.whole.fetch_sub(chunk.pages(), Relaxed);
        }
        list.push(chunk, index);
        Some(())
    }

    /// Moves free table pages to `lists` until they have `leaves` pages for tables of level 0 and
    /// `above` for those above, and allocates more as needed. Also allocates the pages to keep for
    /// splits, best effort.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available, or the pool has the maximum number of pages.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn reserve(&self, lists: &mut PageLists, leaves: usize, above: usize) -> Result {
        if fails(FailPoint::TablePage) {
            return Err(ENOMEM);
        }
        self.make_root()?;
        self.reserve_list(&mut lists.above, above, true)?;
        self.reserve_list(&mut lists.leaves, leaves, false)
    }

    /// Moves free table pages to `list` until it has `want`, and adds chunks if there are too few.
    /// With `above` the pages are for tables above level 0.
    fn reserve_list(&self, list: &mut PageList, want: usize, above: bool) -> Result {
        loop {
            if list.len < want {
                let guard = rcu::read_lock();
                let mut free = self.free.lock();
                while list.len < want && self.pop_free(&guard, &mut free, list, above).is_some() {}
            }
            let enough = list.len >= want;
            if enough && (above || !self.is_short()) {
                return Ok(());
            }
            match self.grow(above) {
                Err(_) if enough => return Ok(()),
                result => result?,
            }
        }
    }

    /// Frees the pages of `list`. No concurrent walk may access them.
    pub(super) fn release(&self, list: &mut PageList) {
        if list.is_empty() {
            return;
        }
        let guard = rcu::read_lock();
        let mut next = list.head;
        while next != NIL {
            let Some(page) = self.page(&guard, next) else {
                break;
            };
            if page.used() != 0 {
                for cell in page.cells {
                    tree::store(cell, tree::EMPTY);
                }
                page.set_used(0);
                if let Some((images, at)) = self.images(&guard, next) {
                    images.clear(&self.memory, &guard, at);
                }
            }
            if F::break_before_make() {
                if let Some((images, at)) = self.images(&guard, next) {
                    images.clear_sizes(at);
                }
            }
            next = page.meta.next();
        }
        let mut free = self.free.lock();
        while !list.is_empty() {
            let Some(index) = self
                .chunk(&guard, list.head)
                .and_then(|chunk| list.pop(chunk))
            else {
                break;
            };
            self.push_free(&guard, &mut free, index);
        }
    }

    /// Returns the number of free pages, for tests.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(super) fn free_pages(&self) -> usize {
        self.free.lock().len()
    }

    /// Returns the upper bound of the slots of chunks that were ever used, for tests.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(super) fn places(&self) -> usize {
        self.top.load(Relaxed)
    }

    /// Returns the number of pages, including free ones.
    pub(super) fn pages(&self) -> usize {
        self.pages.load(Relaxed)
    }

    /// Returns the number of bytes of these pages, including their images and metadata. The caller
    /// must have exclusive access to the pool.
    fn bytes(&self) -> usize {
        let guard = rcu::read_lock();
        (0..self.top.load(Relaxed))
            .filter_map(|number| self.chunks.get(&guard, number))
            .map(TableChunk::bytes)
            .sum()
    }
}
