// SPDX-License-Identifier: GPL-2.0

//! Table pages, and the chunks in which they are allocated.

use super::{
    format::{
        fan,
        Format, //
    },
    image::Images,
    tree::{
        self,
        PteCell, //
    }, //
};
use crate::{
    kernel::{
        shrinker::owner::{
            self,
            ReclaimOwner,
            Reclaimable, //
        },
        word::{
            peek_u32,
            store_u32, //
        },
        zeroed, //
    },
    mm::table_memory::TableMemory, //
};
use core::marker::PhantomData;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            AtomicFlag, //
        },
        Arc, //
    }, //
};

/// Maximum number of table pages that are allocated together.
pub(super) const CHUNK: usize = owner::OBJECT_MAX_PAGES;

// A new page is zeroed.
const _: () = assert!(tree::EMPTY == 0);

/// Index of no table page.
pub(super) const NIL: u32 = u32::MAX;

/// Bounds of a table page without entries: the first slot is beyond the last.
const NO_BOUNDS: u32 = 0xffff_0000;

/// Metadata of a table page.
pub(super) struct PageMeta {
    /// Number of entries that are not empty.
    used: Atomic<u32>,
    /// First slot (high half) and last slot (low half) that may be used. A pass over a large range
    /// visits only these slots.
    bounds: Atomic<u32>,
    /// For a page in a list, the next page. For a table of level 0, the addresses that it covers,
    /// and whether it was written recently (`cold`).
    pub(super) word: Atomic<usize>,
}

/// Table pages that are allocated together.
pub(super) struct TableChunk<F: Format> {
    pub(super) cells: KVVec<PteCell>,
    pub(super) meta: KVVec<PageMeta>,
    /// Whether the pages are only for tables above level 0.
    pub(super) above: bool,
    /// Images of the pages, if the device has table memory.
    pub(super) images: Option<Images<F>>,
    /// Number of pages in the pool's list of free pages. Changed under the lock of that list.
    pub(super) free: Atomic<usize>,
    /// Object by which reclaim finds the pool. It is hidden, under the lock of the list, before the
    /// chunk is freed. The first chunk is never freed, and its object is not used.
    pub(super) reclaimable: Reclaimable,
    /// Whether the chunk is about to be freed.
    pub(super) going: AtomicFlag,
}

impl<F: Format> TableChunk<F> {
    /// Allocates a chunk of `pages` pages for the pool of `owner`, with `above` for tables above
    /// level 0 only.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available.
    /// - The errors of [`Images::new`].
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn new(
        memory: &TableMemory,
        owner: &Arc<ReclaimOwner>,
        pages: usize,
        above: bool,
    ) -> Result<Self> {
        let cells = zeroed::words(pages * fan::<F>(), GFP_KERNEL_ACCOUNT)?;
        let mut meta = KVVec::with_capacity(pages, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..pages {
            let new = PageMeta {
                used: Atomic::new(0),
                bounds: Atomic::new(NO_BOUNDS),
                word: Atomic::new(0),
            };
            meta.push(new, GFP_KERNEL_ACCOUNT)?;
        }
        Ok(Self {
            cells,
            meta,
            above,
            images: Images::new(memory, pages)?,
            free: Atomic::new(0),
            reclaimable: Reclaimable::new(owner)?,
            going: AtomicFlag::new(false),
        })
    }

    /// Returns the metadata of table page `index`, which must be in the chunk.
    #[inline]
    pub(super) fn meta(&self, index: u32) -> Option<&PageMeta> {
        // CAST: From 32 bits to more.
        self.meta.get(index as usize % CHUNK)
    }

    /// Returns the number of pages.
    pub(super) fn pages(&self) -> usize {
        self.meta.len()
    }

    /// Returns the number of bytes of the pages, including their images and metadata.
    pub(super) fn bytes(&self) -> usize {
        self.cells.len() * size_of::<PteCell>()
            + self.meta.len() * size_of::<PageMeta>()
            + self.images.as_ref().map_or(0, Images::bytes)
    }
}

/// A table page.
pub(super) struct TablePage<'p, F: Format> {
    pub(super) cells: &'p [PteCell],
    pub(super) meta: &'p PageMeta,
    pub(super) _format: PhantomData<F>,
}

impl<'p, F: Format> TablePage<'p, F> {
    pub(super) fn load(&self, slot: usize) -> u64 {
        self.cells.get(slot).map_or(tree::EMPTY, tree::load)
    }

    pub(super) fn store(&self, slot: usize, word: u64) {
        if let Some(cell) = self.cells.get(slot) {
            tree::store(cell, word);
        }
    }

    /// Returns the cells from slot `first` on.
    pub(super) fn cells(&self, first: usize) -> &'p [PteCell] {
        self.cells.get(first..).unwrap_or_default()
    }

    /// Returns the number of entries that are not empty. The caller must have exclusive access to
    /// the table.
    pub(super) fn used(&self) -> u32 {
        peek_u32(&self.meta.used)
    }

    pub(super) fn set_used(&self, used: u32) {
        store_u32(&self.meta.used, used);
        if used == 0 {
            store_u32(&self.meta.bounds, NO_BOUNDS);
        }
    }

    /// Returns the first and the last slot that may be used; the first is beyond the last if none
    /// is.
    pub(super) fn bounds(&self) -> (usize, usize) {
        let bounds = peek_u32(&self.meta.bounds);
        // CAST: From 16 bits to more.
        ((bounds >> 16) as usize, (bounds & 0xffff) as usize)
    }

    /// Widens the bounds to include the slots from `first` to `last`.
    pub(super) fn widen(&self, first: usize, last: usize) {
        let (low, high) = self.bounds();
        let low = low.min(first);
        let high = high.max(last);
        // CAST: A table has at most 2048 slots.
        store_u32(&self.meta.bounds, (low as u32) << 16 | high as u32);
    }
}
