// SPDX-License-Identifier: GPL-2.0

//! A table page, and the chunk that it is allocated with.

use super::{
    format::{fan, Format},
    image::Images,
    tree::{self, Cell}, //
};
use crate::mm::{
    shrinker::owner::{self, Owner, Reclaimable},
    table_memory::TableMemory,
    word::{peek_u32, store_u32},
    zeroed, //
};
use core::marker::PhantomData;
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, AtomicFlag},
        Arc, //
    },
};

/// Most table pages that are allocated together.
pub(super) const CHUNK: usize = owner::PAGES;

// A new page is zeroed.
const _: () = assert!(tree::EMPTY == 0);

/// No table page.
pub(super) const NIL: u32 = u32::MAX;

/// Bounds of a table page without entries: none are wider.
const NO_BOUNDS: u32 = 0xffff_0000;

/// What is known of a table page besides its entries.
pub(super) struct Meta {
    /// Entries that are not empty.
    used: Atomic<u32>,
    /// The first and the last slot, as halves, outside of which none is used: the part of a large range
    /// to look at.
    bounds: Atomic<u32>,
    /// Next in a list; or of a table of level 0 what it covers, and whether it was written
    /// (`cold`).
    pub(super) word: Atomic<usize>,
}

/// Pages that are allocated together.
pub(super) struct Chunk<F: Format> {
    pub(super) cells: KVVec<Cell>,
    pub(super) meta: KVVec<Meta>,
    /// The images of its pages, with table memory.
    pub(super) images: Option<Images<F>>,
    /// Pages of it in the list of free ones. Changed under that list's lock.
    pub(super) free: Atomic<usize>,
    /// How reclaim finds the pool. Hidden under that lock before the chunk goes. The first chunk,
    /// which stays, is not found.
    pub(super) reclaimable: Reclaimable,
    /// It is about to go.
    pub(super) going: AtomicFlag,
}

impl<F: Format> Chunk<F> {
    /// One of `pages` pages, in the pool `owner`. Context: may sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; those of [`Images::new`].
    pub(super) fn new(memory: &TableMemory, owner: &Arc<Owner>, pages: usize) -> Result<Self> {
        let cells = zeroed::words(pages * fan::<F>(), GFP_KERNEL_ACCOUNT)?;
        let mut meta = KVVec::with_capacity(pages, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..pages {
            let new = Meta {
                used: Atomic::new(0),
                bounds: Atomic::new(NO_BOUNDS),
                word: Atomic::new(0),
            };
            meta.push(new, GFP_KERNEL_ACCOUNT)?;
        }
        Ok(Self {
            cells,
            meta,
            images: Images::new(memory, pages)?,
            free: Atomic::new(0),
            reclaimable: Reclaimable::new(owner)?,
            going: AtomicFlag::new(false),
        })
    }

    /// What is known of table page `index`, which is in the chunk.
    #[inline]
    pub(super) fn meta(&self, index: u32) -> Option<&Meta> {
        // CAST: From 32 bits to more.
        self.meta.get(index as usize % CHUNK)
    }

    /// Its pages.
    pub(super) fn pages(&self) -> usize {
        self.meta.len()
    }
}

/// A table page.
pub(super) struct Page<'p, F: Format> {
    pub(super) cells: &'p [Cell],
    pub(super) meta: &'p Meta,
    pub(super) _format: PhantomData<F>,
}

impl<'p, F: Format> Page<'p, F> {
    pub(super) fn load(&self, slot: usize) -> u64 {
        self.cells.get(slot).map_or(tree::EMPTY, tree::load)
    }

    pub(super) fn store(&self, slot: usize, word: u64) {
        if let Some(cell) = self.cells.get(slot) {
            tree::store(cell, word);
        }
    }

    /// The cells from slot `first` on.
    pub(super) fn cells(&self, first: usize) -> &'p [Cell] {
        self.cells.get(first..).unwrap_or_default()
    }

    /// Number of entries that are not empty. Only who changes the table may ask.
    pub(super) fn used(&self) -> u32 {
        peek_u32(&self.meta.used)
    }

    pub(super) fn set_used(&self, used: u32) {
        store_u32(&self.meta.used, used);
        if used == 0 {
            store_u32(&self.meta.bounds, NO_BOUNDS);
        }
    }

    /// The first and the last slot that may be used; the first is beyond the last if none is.
    pub(super) fn bounds(&self) -> (usize, usize) {
        let bounds = peek_u32(&self.meta.bounds);
        // CAST: From 16 bits to more.
        ((bounds >> 16) as usize, (bounds & 0xffff) as usize)
    }

    /// Slots from `first` to `last` may be used from now on.
    pub(super) fn widen(&self, first: usize, last: usize) {
        let (low, high) = self.bounds();
        let (low, high) = (low.min(first), high.max(last));
        // CAST: A table has at most 1024 slots.
        store_u32(&self.meta.bounds, (low as u32) << 16 | high as u32);
    }
}
