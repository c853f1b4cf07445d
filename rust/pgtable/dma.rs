// SPDX-License-Identifier: GPL-2.0

//! Translation between page frame numbers and DMA addresses in device page tables.
//!
//! The library uses the frame numbers of system pages, because it marks pages dirty and compares
//! device PTEs with CPU PTEs. A device behind an IOMMU uses DMA addresses. This module converts
//! entries that are read from the table to frame numbers. It maps a page when its entry is
//! written, and retires the mapping when the entry is removed. For tables that hold frame numbers
//! all of this is compiled out.

use super::{
    entry::{
        DevicePte,
        Leaf, //
    },
    format::{
        can_hold,
        Format, //
    },
    table::Table, //
};
use crate::mm::{
    addr::{
        PageRange,
        PMD_PAGES, //
    },
    dma::{
        DmaWindows,
        WindowCursor, //
    }, //
};
use core::marker::PhantomData;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The format `F` with DMA addresses for system pages: for devices with a
/// [`DmaDevice`](crate::mm::dma::DmaDevice), see [`Device::dma`](crate::mirror::Device::dma).
///
/// # Examples
///
/// ```
/// use rust_hmm::pgtable::DmaFormat;
/// use rust_hmm::pgtable::Format;
/// use rust_hmm::pgtable::Radix4;
///
/// // `Device::Format` of a device behind an IOMMU.
/// assert!(<DmaFormat<Radix4> as Format>::DMA);
/// assert!(!<Radix4 as Format>::DMA);
/// ```
pub enum DmaFormat<F> {
    /// Never constructed: the type is used only as a type parameter.
    #[doc(hidden)]
    Never(core::convert::Infallible, PhantomData<fn() -> F>),
}

impl<F: Format> Format for DmaFormat<F> {
    type Word = F::Word;

    const LEVELS: u32 = F::LEVELS;
    const BITS: u32 = F::BITS;
    const PAGE_SHIFT: u32 = F::PAGE_SHIFT;
    const LEAVES: &'static [u32] = F::LEAVES;
    const DMA: bool = true;

    fn break_before_make() -> bool {
        F::break_before_make()
    }

    fn can_hold(entry: DevicePte) -> bool {
        F::can_hold(entry)
    }

    fn can_link(address: u64) -> bool {
        F::can_link(address)
    }

    fn table(level: u32, address: u64) -> Self::Word {
        F::table(level, address)
    }

    fn leaf(order: u32, entry: DevicePte) -> Self::Word {
        F::leaf(order, entry)
    }
}

/// Pages of a range that one call has newly mapped.
pub(super) struct NewMappings {
    start: PageRange,
    pages: [u64; PMD_PAGES / 64],
}

/// Translates entries during one pass over a table.
pub(super) struct DmaTranslator<'t, F> {
    cursor: Option<WindowCursor<'t>>,
    _format: PhantomData<F>,
}

fn is_system(entry: DevicePte) -> bool {
    entry.is_valid() && !entry.is_device()
}

impl<'t, F: Format> DmaTranslator<'t, F> {
    #[inline]
    pub(super) fn new(windows: Option<&'t Arc<DmaWindows>>) -> Self {
        let cursor = if F::DMA {
            windows.map(|windows| windows.cursor())
        } else {
            None
        };
        Self {
            cursor,
            _format: PhantomData,
        }
    }

    /// Converts the entry `raw` that the table has for `addr` to one with a frame number.
    #[inline]
    pub(super) fn seen(&mut self, addr: usize, raw: DevicePte) -> DevicePte {
        if !F::DMA || !is_system(raw) {
            return raw;
        }
        self.frame(addr, raw)
    }

    // Not inlined, to keep it out of the loops of tables without DMA addresses.
    #[inline(never)]
    fn frame(&mut self, addr: usize, raw: DevicePte) -> DevicePte {
        match self.cursor.as_mut().and_then(|cursor| cursor.frame(addr)) {
            Some(frame) => raw.with_number(frame),
            // Does not happen: each system page in the table is mapped in a window.
            None => DevicePte::NONE,
        }
    }

    /// Returns the entry to write to the table in order to replace `old` by `new`, mapping and
    /// retiring pages as needed. `raw` is `old` as the table holds it.
    ///
    /// # Errors
    ///
    /// * `EBUSY`: the DMA address is still in use, because the flush that unmaps the previous page
    ///   has not completed. A device fault does not get this error: the entry of a system page is
    ///   removed either together with its flush under the table lock, or in an invalidation or a
    ///   migration, for which faults on the page wait.
    /// * `ENOMEM`, `ENODEV`: the page cannot be mapped.
    /// * `EINVAL`: the format cannot encode the entry.
    ///
    /// After an error the old entry is retired, and the new one must not be installed.
    #[inline]
    pub(super) fn replace(
        &mut self,
        span: PageRange,
        raw: DevicePte,
        old: DevicePte,
        new: DevicePte,
    ) -> Result<DevicePte> {
        if !F::DMA {
            return Ok(new);
        }
        self.exchange(span, raw, old, new)
    }

    #[inline(never)]
    fn exchange(
        &mut self,
        span: PageRange,
        raw: DevicePte,
        old: DevicePte,
        new: DevicePte,
    ) -> Result<DevicePte> {
        if is_system(old) && is_system(new) && old.number() == new.number() {
            let entry = new.with_number(raw.number());
            if can_hold::<F>(entry) {
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

    /// Retires the mappings of `span`, whose entry `old` is removed. The pages are unmapped after
    /// the flush.
    #[inline]
    pub(super) fn retire(&mut self, span: PageRange, old: DevicePte) {
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

    /// Maps the pages of `span`, the first of which is `new`, at DMA addresses that one entry can
    /// cover. Returns that entry, and the pages that were not mapped before.
    ///
    /// # Errors
    ///
    /// As [`Self::replace`]. No page is newly mapped then.
    pub(super) fn map(
        &mut self,
        span: PageRange,
        new: DevicePte,
    ) -> Result<(DevicePte, NewMappings)> {
        let mut fresh = NewMappings {
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

    fn map_each(
        &mut self,
        span: PageRange,
        new: DevicePte,
        fresh: &mut NewMappings,
    ) -> Result<DevicePte> {
        let cursor = self.cursor.as_mut().ok_or(ENODEV)?;
        let mut first = 0;
        for index in 0..span.pages() {
            let addr = span.address(index);
            let frame = new.number().wrapping_add(index);
            let (address, is_fresh) = cursor.map(addr, frame)?;
            if let Some(word) = fresh.pages.get_mut(index / 64).filter(|_| is_fresh) {
                *word |= 1 << (index % 64);
            }
            if index == 0 {
                first = address.frame();
            }
            // One entry covers all pages, so their DMA addresses must be contiguous and aligned.
            if address.frame() != first + index || first % span.pages() != 0 {
                return Err(EBUSY);
            }
        }
        let entry = new.with_number(first);
        if !can_hold::<F>(entry) {
            return Err(EINVAL);
        }
        Ok(entry)
    }

    /// Unmaps the newly mapped pages of `fresh`, whose entry was not written to the table.
    pub(super) fn release(&mut self, fresh: &NewMappings) {
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
    /// Converts `leaf`, as read from the table for `addr`, to one with a frame number.
    #[inline]
    pub(super) fn translate(&self, addr: usize, leaf: Option<Leaf>) -> Option<Leaf> {
        if !F::DMA {
            return leaf;
        }
        let leaf = leaf?;
        let entry = DmaTranslator::<F>::new(self.windows()).seen(addr, leaf.entry);
        Some(Leaf { entry, ..leaf })
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
mod tests;
