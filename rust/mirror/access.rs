// SPDX-License-Identifier: GPL-2.0

//! Access through the table by software, as a software device does it: under the table lock, so
//! that what an entry names cannot go away.

use super::{Device, Mirror, State};
use crate::{
    mm::{
        addr::PageRange,
        device_pages::{DeviceRange, Kind},
        page::{CpuPages, CpuPagesMut},
    },
    pgtable::Entry,
};
use core::marker::PhantomData;
use kernel::{
    page::PAGE_SIZE,
    sync::lock::mutex::MutexGuard, //
};

/// Where a page to read is.
pub enum Place<'a> {
    /// In memory that the CPU can address.
    Cpu(CpuPages<'a>),
    /// In device-private memory.
    Device(DeviceRange),
}

/// Where a page to write is.
pub enum PlaceMut<'a> {
    /// In memory that the CPU can address.
    Cpu(CpuPagesMut<'a>),
    /// In device-private memory.
    Device(DeviceRange),
}

/// The table lock, held: entries stay true until it is dropped.
pub struct TableGuard<'a, D: Device> {
    guard: MutexGuard<'a, State>,
    mirror: &'a Mirror<D>,
    _nts: PhantomData<*mut ()>,
}

impl<D: Device> Mirror<D> {
    /// Takes the table lock. Context: may sleep. Do not access user memory while it is held.
    pub fn lock_table(&self) -> TableGuard<'_, D> {
        TableGuard {
            guard: self.notifier.lock(),
            mirror: self,
            _nts: PhantomData,
        }
    }
}

impl<D: Device> TableGuard<'_, D> {
    /// The pfn, or the device range, that `entry` of our table names.
    fn resolve(&self, entry: Entry) -> Option<core::result::Result<usize, DeviceRange>> {
        if !entry.is_device() {
            return Some(Ok(entry.number()));
        }
        let memory = self.mirror.device().memory()?;
        match memory.kind() {
            Kind::Private => Some(Err(DeviceRange {
                first: entry.number(),
                count: 1,
            })),
            Kind::Coherent { .. } => memory.pfn(entry.number()).map(Ok),
        }
    }

    /// Where the page at `addr` is, if the device may read it.
    pub fn readable(&self, addr: usize) -> Option<Place<'_>> {
        let entry = self.guard.table.get(addr);
        if !entry.is_valid() {
            return None;
        }
        Some(match self.resolve(entry)? {
            // SAFETY: A valid entry names a page that the CPU has mapped; it cannot be unmapped
            // before the notifier took the lock, which we hold as long as `self` is borrowed.
            Ok(pfn) => Place::Cpu(unsafe { CpuPages::new(pfn, 1) }),
            Err(range) => Place::Device(range),
        })
    }

    /// Where the page at `addr` is, if the device may write it.
    pub fn writable(&self, addr: usize) -> Option<PlaceMut<'_>> {
        let entry = self.guard.table.get(addr);
        if !entry.is_valid() || !entry.is_writable() {
            return None;
        }
        Some(match self.resolve(entry)? {
            // SAFETY: As in `readable`; the entry is writable, so that the CPU's is, too.
            Ok(pfn) => PlaceMut::Cpu(unsafe { CpuPagesMut::new(pfn, 1) }),
            Err(range) => PlaceMut::Device(range),
        })
    }

    /// Number of pages from the start of `range` on that the device may read without a fault.
    pub fn present(&self, range: PageRange) -> usize {
        (0..range.pages())
            .take_while(|index| {
                let addr = range.start() + index * PAGE_SIZE;
                self.guard.table.get(addr).is_valid()
            })
            .count()
    }

    /// Whether the device has exclusive access to any page of `range`.
    pub fn any_exclusive(&mut self, range: PageRange) -> bool {
        let mut found = false;
        self.guard
            .table
            .for_each(range, |_, entry| found |= entry.is_exclusive());
        found
    }
}
