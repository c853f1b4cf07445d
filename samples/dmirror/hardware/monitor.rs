// SPDX-License-Identifier: GPL-2.0

//! The monitor of the bus: finds the virtual address of an access, of which an engine states only
//! the bus address.
//!
//! The driver may not trust the table of a device, so that it compares each access with the tree of
//! the library, for which it needs the virtual address. A walk shows it: the index of each word
//! that the engine reads, beginning with the root, is 9 or 11 bits of the address. For accesses by
//! the TLB, the monitor remembers which virtual page was translated to which bus address. A lookup
//! may fail, but it never returns a page whose translation was another one, or was flushed.

use super::{
    tlb::{
        self,
        Tlb, //
    },
    walk::{
        Format,
        Translation,
        DEVICE_PAGE_SHIFT, //
    }, //
};
use kernel::prelude::*;
use rust_hmm::{
    kernel::hash::hash_64,
    mm::addr::PageRange, //
};

/// The reads of an engine during one access.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    /// The first virtual address that the last word translates.
    addr: usize,
    /// Log2 of the bytes that it translates.
    bits: u32,
}

impl Seen {
    /// Nothing was read.
    pub(crate) const NOTHING: Self = Self {
        addr: 0,
        bits: u32::MAX,
    };

    /// The engine reads the word at `address` of a table of `format`, on a walk from `root`.
    /// Returns an address that the word translates; `None` if a walk does not read it.
    pub(crate) fn read(&mut self, format: Format, root: u64, address: u64) -> Option<usize> {
        let within = (1 << format.table_bits()) - 1;
        if address & !within == root {
            *self = Self {
                addr: 0,
                bits: format.root_bits(),
            };
        }
        if self.bits > format.root_bits() || self.bits <= format.table_bits() {
            return None;
        }
        self.bits -= format.index_bits();
        let index = (address & within) / 8;
        self.addr |= usize::try_from(index).ok()? << self.bits;
        Some(self.addr)
    }

    /// The engine requests the translation of the page at `addr`.
    pub(crate) fn requested(&mut self, addr: usize) {
        *self = Self {
            addr: addr >> DEVICE_PAGE_SHIFT << DEVICE_PAGE_SHIFT,
            bits: DEVICE_PAGE_SHIFT,
        };
    }

    /// Returns the virtual address of an access to bus address `address`, if the engine has
    /// translated it in this access.
    pub(crate) fn address_of(&self, address: u64) -> Option<usize> {
        // Nothing was read. After each read a part of the address is known.
        if self.bits >= usize::BITS {
            return None;
        }
        let within = (1 << self.bits) - 1;
        Some(self.addr | usize::try_from(address & within).ok()?)
    }
}

/// Translations of an engine, by bus address.
pub(crate) struct Monitor {
    /// Flushed as the TLB of the engine.
    given: Tlb,
    /// The virtual page of the line of `given` that has a bus address.
    pages: KVec<usize>,
}

impl Monitor {
    /// Creates a monitor for an engine whose TLB has `lines` lines.
    pub(crate) fn new(lines: usize) -> Result<Self> {
        Ok(Self {
            given: Tlb::new(lines)?,
            pages: KVec::from_elem(0, lines.max(1), GFP_KERNEL)?,
        })
    }

    /// Returns the place in `pages` of the block of `1 << order` device pages at bus address
    /// `address`.
    fn place(&mut self, tag: u64, address: u64, order: u32) -> Option<&mut usize> {
        let key = address >> (DEVICE_PAGE_SHIFT + order) ^ tag << 40 ^ u64::from(order) << 56;
        let at = hash_64(key, 32) as usize % self.pages.len();
        self.pages.get_mut(at)
    }

    /// Remembers that the engine has translated `addr` to `found`.
    pub(crate) fn record(&mut self, tag: u64, addr: usize, found: Translation) {
        let order = tlb::line_order(found.order);
        if let Some(place) = self.place(tag, found.address, order) {
            *place = addr >> DEVICE_PAGE_SHIFT >> order << order;
        }
        self.given.fill(tag, addr, page_of(found));
    }

    /// Returns an address that was translated to `found`, and not flushed since.
    pub(crate) fn find(&mut self, tag: u64, found: Translation) -> Option<usize> {
        let order = tlb::line_order(found.order);
        let within = (1 << (DEVICE_PAGE_SHIFT + order)) - 1;
        let first = *self.place(tag, found.address, order)? << DEVICE_PAGE_SHIFT;
        let addr = first | usize::try_from(found.address & within).ok()?;
        let line = Translation {
            order,
            ..page_of(found)
        };
        (self.given.lookup(tag, addr) == Some(line)).then_some(addr)
    }

    /// Forgets all translations of `range`.
    #[inline]
    pub(crate) fn flush(&mut self, tag: u64, range: PageRange) {
        self.given.flush(tag, range);
    }
}

/// The translation of the page that has the byte at `found`.
fn page_of(found: Translation) -> Translation {
    Translation {
        address: found.address >> DEVICE_PAGE_SHIFT << DEVICE_PAGE_SHIFT,
        ..found
    }
}
