// SPDX-License-Identifier: GPL-2.0

//! Access through the table by software, as a software device does it: under the table lock, so
//! that what an entry names cannot go away.

use super::{Device, Inner, Mirror, State};
use crate::{
    mm::{
        addr::PageRange,
        device_pages::{DeviceRange, Kind},
        dma::{DeviceAddress, DmaAddress},
        page::{CpuPages, CpuPagesMut},
    },
    pgtable::{Entry, Format, Leaf, Near},
    within::Within,
};
use core::cell::Cell;
use kernel::{page::PAGE_SIZE, prelude::*, sync::lock::mutex::MutexGuard};

/// Where a page to read is.
pub enum Place<'a> {
    /// In memory that the CPU can address.
    Cpu(CpuPages<'a>),
    /// In device-private memory. Of several tiles, the one that has it says where; see
    /// [`Memory::locate`](crate::memory::Memory::locate).
    Device(DeviceRange),
}

/// Where a page to write is.
pub enum PlaceMut<'a> {
    /// In memory that the CPU can address.
    Cpu(CpuPagesMut<'a>),
    /// In device-private memory. Of several tiles, the one that has it says where; see
    /// [`Memory::locate`](crate::memory::Memory::locate).
    Device(DeviceRange),
}

/// Where the device itself finds a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// In system memory.
    Dma(DmaAddress),
    /// In its own memory.
    Device(DeviceAddress),
}

/// The table lock, held: entries stay true until it is dropped.
pub struct TableGuard<'a, D: Device> {
    guard: MutexGuard<'a, State<D::Format>>,
    mirror: &'a Mirror<D>,
    /// Where the last look has ended: most are of one page after the other.
    near: Cell<Near>,
    /// Who holds it must not wait for what needs it.
    _within: Within,
}

impl<D: Device> Mirror<D> {
    /// Takes the table lock. Do not access user memory while it is held.
    ///
    /// # Errors
    ///
    /// `EDEADLK` within a callback, or if the task holds it, or that of another mirror. Context: may
    /// sleep.
    pub fn lock_table(&self) -> Result<TableGuard<'_, D>> {
        let within = Within::enter_to_wait()?;
        Ok(TableGuard {
            guard: self.inner().lock(),
            mirror: self,
            near: Cell::new(Near::NONE),
            _within: within,
        })
    }
}

impl<D: Device> Inner<D> {
    /// The pfn, or the device range, that a valid `entry` names.
    #[inline(always)]
    fn resolve(&self, entry: Entry) -> Option<core::result::Result<usize, DeviceRange>> {
        match entry.is_device() {
            false => Some(Ok(entry.number())),
            true => self.resolve_device(entry),
        }
    }

    /// The same of the device's own memory.
    #[inline(never)]
    fn resolve_device(&self, entry: Entry) -> Option<core::result::Result<usize, DeviceRange>> {
        let (memory, local) = self.page_of(entry.number())?;
        memory.touch_page(local);
        match memory.kind() {
            Kind::Private => Some(Err(DeviceRange {
                first: entry.number(),
                count: 1,
            })),
            Kind::Coherent { .. } => memory.pfn(local).map(Ok),
        }
    }

    /// Where the device finds the page of `leaf`, from its table. `None` of system memory if the table holds page
    /// frames.
    pub(super) fn target(&self, leaf: &Leaf) -> Option<Target> {
        let number = leaf.entry.number();
        if !leaf.entry.is_device() {
            return D::Format::DMA.then(|| Target::Dma(DmaAddress::from_frame(number)));
        }
        let (memory, local) = self.page_of(number)?;
        memory.touch_page(local);
        // CAST: Both have 64 bits.
        let address = number.checked_mul(PAGE_SIZE)? as u64;
        Some(Target::Device(DeviceAddress::new(address)))
    }

    /// Where the page of `entry` is, to be read.
    ///
    /// # Safety
    ///
    /// `entry` must be in our table, and must not be removed, or its removal not be over, for `'a`.
    pub(super) unsafe fn place<'a>(&self, entry: Entry) -> Option<Place<'a>> {
        Some(match self.resolve(entry)? {
            // SAFETY: A valid entry names a page that the CPU has mapped, or that a migration
            // holds; it cannot go before the removal of the entry is over.
            Ok(pfn) => Place::Cpu(unsafe { CpuPages::new(pfn, 1) }),
            Err(range) => Place::Device(range),
        })
    }

    /// As [`Self::place`], to be written.
    ///
    /// # Safety
    ///
    /// As [`Self::place`], and `entry` must be writable.
    pub(super) unsafe fn place_mut<'a>(&self, entry: Entry) -> Option<PlaceMut<'a>> {
        Some(match self.resolve(entry)? {
            // SAFETY: As in `place`; the entry is writable, so that the CPU's is, too.
            Ok(pfn) => PlaceMut::Cpu(unsafe { CpuPagesMut::new(pfn, 1) }),
            Err(range) => PlaceMut::Device(range),
        })
    }
}

impl<D: Device> TableGuard<'_, D> {
    /// The entry for the page at `addr`.
    #[inline]
    fn entry(&self, addr: usize) -> Entry {
        self.guard.table.get_near(addr, &self.near)
    }

    /// Where the page at `addr` is, if the device may read it.
    #[inline]
    pub fn readable(&self, addr: usize) -> Option<Place<'_>> {
        let entry = self.entry(addr);
        if !entry.is_valid() {
            return None;
        }
        // SAFETY: In the table, whose lock is held as long as `self` is borrowed.
        unsafe { self.mirror.inner().place(entry) }
    }

    /// Where the page at `addr` is, if the device may write it.
    #[inline]
    pub fn writable(&self, addr: usize) -> Option<PlaceMut<'_>> {
        let entry = self.entry(addr);
        if !entry.is_valid() || !entry.is_writable() {
            return None;
        }
        // SAFETY: As in `readable`, and it is writable.
        unsafe { self.mirror.inner().place_mut(entry) }
    }

    /// Where the device finds the page at `addr`, if it may read it, or with `write` write it. Good until an
    /// invalidation of the page has been flushed: who starts the access now, while the guard exists, and has flushes
    /// of the page wait for its end, is safe.
    pub fn target(&self, addr: usize, write: bool) -> Option<Target> {
        let leaf = self.guard.table.reader().walk(addr)?;
        if write && !leaf.entry.is_writable() {
            return None;
        }
        self.mirror.inner().target(&leaf)
    }

    /// Number of pages from the start of `range` on that the device may read without a fault.
    pub fn present(&self, range: PageRange) -> usize {
        self.guard.table.present(range)
    }

    /// Whether the device has exclusive access to any page of `range`.
    pub fn any_exclusive(&self, range: PageRange) -> bool {
        self.guard.table.any(range, |entry| entry.is_exclusive())
    }
}
