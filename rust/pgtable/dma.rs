// SPDX-License-Identifier: GPL-2.0

//! Tables of DMA addresses: what an entry says, and what the engine reads in it.
//!
//! The engine knows system pages by their frame numbers, because it has to mark them dirty and compare them with what the
//! CPU's page table says. A device knows them by DMA addresses. Between the two is this: what is read from the table is
//! translated on the way to the engine, and pages are mapped and retired on the way to the table. In tables that hold
//! frame numbers all of it compiles to nothing.

use super::{
    entry::{Entry, Leaf},
    format::Format,
    table::Table,
};
use crate::mm::{
    addr::{PageRange, PMD_PAGES},
    dma::{Cursor, Windows},
};
use core::marker::PhantomData;
use kernel::{prelude::*, sync::Arc};

/// The format `F`, with DMA addresses for system pages: for devices that a [`DmaDevice`](crate::mm::dma::DmaDevice)
/// stands for, see [`Device::dma`](crate::mirror::Device::dma).
pub enum OfDma<F> {
    /// Never made.
    #[doc(hidden)]
    Never(core::convert::Infallible, PhantomData<fn() -> F>),
}

impl<F: Format> Format for OfDma<F> {
    type Word = F::Word;

    const LEVELS: u32 = F::LEVELS;
    const BITS: u32 = F::BITS;
    const LEAVES: &'static [u32] = F::LEAVES;
    const DMA: bool = true;

    fn break_before_make() -> bool {
        F::break_before_make()
    }

    fn can_hold(entry: Entry) -> bool {
        F::can_hold(entry)
    }

    fn can_link(address: u64) -> bool {
        F::can_link(address)
    }

    fn table(level: u32, address: u64) -> Self::Word {
        F::table(level, address)
    }

    fn leaf(order: u32, entry: Entry) -> Self::Word {
        F::leaf(order, entry)
    }
}

/// Pages of a range that were mapped just now.
pub(super) struct Fresh {
    start: PageRange,
    pages: [u64; PMD_PAGES / 64],
}

/// Translates for one pass over a table.
pub(super) struct Translator<'t, F> {
    cursor: Option<Cursor<'t>>,
    _format: PhantomData<F>,
}

fn is_system(entry: Entry) -> bool {
    entry.is_valid() && !entry.is_device()
}

impl<'t, F: Format> Translator<'t, F> {
    #[inline]
    pub(super) fn new(windows: Option<&'t Arc<Windows>>) -> Self {
        let cursor = match F::DMA {
            true => windows.map(|windows| windows.cursor()),
            false => None,
        };
        Self {
            cursor,
            _format: PhantomData,
        }
    }

    /// What the engine reads where the table says `raw` for `addr`.
    #[inline]
    pub(super) fn seen(&mut self, addr: usize, raw: Entry) -> Entry {
        if !F::DMA || !is_system(raw) {
            return raw;
        }
        self.frame(addr, raw)
    }

    // Not in the loops of tables without.
    #[inline(never)]
    fn frame(&mut self, addr: usize, raw: Entry) -> Entry {
        match self.cursor.as_mut().and_then(|cursor| cursor.frame(addr)) {
            Some(frame) => raw.with_number(frame),
            // Each system page in the table has a place in a window.
            None => Entry::NONE,
        }
    }

    /// What the table is to say where the engine wants `new` instead of `old`, which the table has as `raw`.
    ///
    /// # Errors
    ///
    /// * `EBUSY`: the place is not free yet: the flush that unmaps its page has not completed. A
    ///   device fault does not see this: the entry of a system page is removed either with its
    ///   flush under the table lock, or in an invalidation or a migration, for which faults on
    ///   the page wait.
    /// * `ENOMEM`, `ENODEV`: the page cannot be mapped.
    /// * `EINVAL`: the format has no such entries.
    ///
    /// After an error the old entry is retired, and the new one must not be installed.
    #[inline]
    pub(super) fn replace(
        &mut self,
        span: PageRange,
        raw: Entry,
        old: Entry,
        new: Entry,
    ) -> Result<Entry> {
        if !F::DMA {
            return Ok(new);
        }
        self.exchange(span, raw, old, new)
    }

    #[inline(never)]
    fn exchange(&mut self, span: PageRange, raw: Entry, old: Entry, new: Entry) -> Result<Entry> {
        if is_system(old) && is_system(new) && old.number() == new.number() {
            let entry = new.with_number(raw.number());
            if F::can_hold(entry) {
                return Ok(entry);
            }
            self.retire(span, old);
            return Err(EINVAL);
        }
        self.retire(span, old);
        if !is_system(new) {
            return Ok(new);
        }
        self.map(span, new).map(|(entry, _)| entry)
    }

    /// The entry `old` of `span` goes.
    #[inline]
    pub(super) fn retire(&mut self, span: PageRange, old: Entry) {
        if F::DMA && is_system(old) {
            self.retire_all(span);
        }
    }

    #[inline(never)]
    fn retire_all(&mut self, span: PageRange) {
        if let Some(cursor) = self.cursor.as_mut() {
            for index in 0..span.pages() {
                cursor.retire(span.address(index));
            }
        }
    }

    /// Maps the pages of `span`, of which `new` is the first, so that one entry names them all.
    pub(super) fn map(&mut self, span: PageRange, new: Entry) -> Result<(Entry, Fresh)> {
        let mut fresh = Fresh {
            start: span,
            pages: [0; PMD_PAGES / 64],
        };
        let result = self.map_each(span, new, &mut fresh);
        match result {
            Ok(entry) => Ok((entry, fresh)),
            Err(error) => {
                self.release(&fresh);
                Err(error)
            }
        }
    }

    fn map_each(&mut self, span: PageRange, new: Entry, fresh: &mut Fresh) -> Result<Entry> {
        let cursor = self.cursor.as_mut().ok_or(ENODEV)?;
        let mut first = 0;
        for index in 0..span.pages() {
            let (addr, frame) = (span.address(index), new.number().wrapping_add(index));
            let (address, is_fresh) = cursor.map(addr, frame)?;
            if let Some(word) = fresh.pages.get_mut(index / 64).filter(|_| is_fresh) {
                *word |= 1 << (index % 64);
            }
            if index == 0 {
                first = address.frame();
            }
            // One entry for all of them: they must be as one for the device, too.
            if address.frame() != first + index || first % span.pages() != 0 {
                return Err(EBUSY);
            }
        }
        let entry = new.with_number(first);
        if !F::can_hold(entry) {
            return Err(EINVAL);
        }
        Ok(entry)
    }

    /// Unmaps what was mapped just now, and did not come into the table.
    pub(super) fn release(&mut self, fresh: &Fresh) {
        if let Some(cursor) = self.cursor.as_mut() {
            for index in 0..fresh.start.pages() {
                let word = fresh.pages.get(index / 64).copied().unwrap_or(0);
                if word & (1 << (index % 64)) != 0 {
                    cursor.release(fresh.start.address(index));
                }
            }
        }
    }
}

impl<F: Format> Table<F> {
    /// As the engine sees what the table says.
    #[inline]
    pub(super) fn translate(&self, addr: usize, leaf: Option<Leaf>) -> Option<Leaf> {
        if !F::DMA {
            return leaf;
        }
        let leaf = leaf?;
        let entry = Translator::<F>::new(self.windows()).seen(addr, leaf.entry);
        Some(Leaf { entry, ..leaf })
    }
}

#[cfg(CONFIG_KUNIT = "y")]
mod tests;
