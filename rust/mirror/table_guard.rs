// SPDX-License-Identifier: GPL-2.0

//! Memory access by software through the device page table, with the table lock held.
//!
//! An invalidation takes the table lock before it removes an entry. Therefore the pages of valid
//! entries stay until the lock is released.

use super::{
    Device,
    Mirror,
    MirrorShared,
    MirrorState,
    PageAddress,
    PageMemory,
    PageMemoryMut, //
};
use crate::{
    kernel::reentry::ReentryGuard,
    mm::{
        addr::PageRange,
        device_pages::{
            DeviceRange,
            MemoryKind, //
        },
        dma::{
            DeviceAddress,
            DmaAddress, //
        },
        folio::{
            CpuPages,
            CpuPagesMut, //
        }, //
    },
    pgtable::{
        DevicePte,
        Format,
        Leaf, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::lock::mutex::MutexGuard, //
};

/// Guard of the table lock. Entries do not change until it is dropped.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::mirror::Device;
/// use rust_hmm::mirror::Mirror;
/// use rust_hmm::mirror::PageMemoryMut;
/// use rust_hmm::mm::addr::PageRange;
/// use rust_hmm::mm::range_fault::Access;
///
/// /// Adds to a word of the process, as a device without a TLB.
/// fn add<D: Device>(mirror: &Mirror<D>, page: PageRange, offset: usize) -> Result<u64> {
///     for _ in 0..100 {
///         let table = mirror.lock_table()?;
///         if let Some(PageMemoryMut::Cpu(pages)) = table.writable(page.start()) {
///             return pages.fetch_add_u64(offset, 1);
///         }
///         // A fault with the table lock held would fail with `EDEADLK`.
///         drop(table);
///         mirror.fault(page, Access::Write)?;
///     }
///     Err(EBUSY)
/// }
/// ```
pub struct TableGuard<'a, D: Device> {
    guard: MutexGuard<'a, MirrorState<D::Format>>,
    mirror: &'a Mirror<D>,
    /// Makes blocking functions of the library return `EDEADLK` while the lock is held.
    _within: ReentryGuard,
}

impl<D: Device> Mirror<D> {
    /// Takes the table lock. The caller must not access user memory while it is held, because a CPU
    /// fault may take the lock.
    ///
    /// # Errors
    ///
    /// - `EDEADLK` within a callback, or if the task already holds a table lock.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn lock_table(&self) -> Result<TableGuard<'_, D>> {
        let within = ReentryGuard::enter_to_wait()?;
        Ok(TableGuard {
            guard: self.inner().lock(),
            mirror: self,
            _within: within,
        })
    }
}

impl<D: Device> MirrorShared<D> {
    /// Returns the pfn of a valid `entry`, or its device range if the page is in private memory.
    #[inline(always)]
    fn resolve(&self, entry: DevicePte) -> Option<core::result::Result<usize, DeviceRange>> {
        if entry.is_device() {
            self.resolve_device(entry)
        } else {
            Some(Ok(entry.number()))
        }
    }

    /// As [`Self::resolve`], for an entry of device memory.
    #[inline(never)]
    fn resolve_device(&self, entry: DevicePte) -> Option<core::result::Result<usize, DeviceRange>> {
        let (memory, local) = self.page_of(entry.number())?;
        memory.touch_page(local);
        match memory.kind() {
            MemoryKind::Private => Some(Err(DeviceRange {
                first: entry.number(),
                count: 1,
            })),
            MemoryKind::Coherent { .. } => memory.pfn(local).map(Ok),
        }
    }

    /// Returns the address that the device uses for the page of `leaf`. Returns `None` for system
    /// memory if the table holds page frame numbers.
    pub(super) fn target(&self, leaf: &Leaf) -> Option<PageAddress> {
        let number = leaf.entry.number();
        if !leaf.entry.is_device() {
            return D::Format::DMA.then(|| PageAddress::Dma(DmaAddress::from_frame(number)));
        }
        let (memory, local) = self.page_of(number)?;
        memory.touch_page(local);
        // CAST: Both have 64 bits.
        let address = number.checked_mul(PAGE_SIZE)? as u64;
        Some(PageAddress::Device(DeviceAddress::new(address)))
    }

    /// Returns the location of the page of `entry` for a read.
    ///
    /// # Safety
    ///
    /// `entry` must be in the table of this mirror. During `'a`, it must not be removed, or its
    /// removal must not be completed.
    pub(super) unsafe fn place<'a>(&self, entry: DevicePte) -> Option<PageMemory<'a>> {
        Some(match self.resolve(entry)? {
            // SAFETY: The page of a valid entry is mapped by the CPU or isolated by a migration. It
            // is not freed before the removal of the entry has completed, which is not during `'a`.
            Ok(pfn) => PageMemory::Cpu(unsafe { CpuPages::new(pfn, 1) }),
            Err(range) => PageMemory::Device(range),
        })
    }

    /// As [`Self::place`], for a write.
    ///
    /// # Safety
    ///
    /// As for [`Self::place`]. In addition, `entry` must be writable.
    pub(super) unsafe fn place_mut<'a>(&self, entry: DevicePte) -> Option<PageMemoryMut<'a>> {
        Some(match self.resolve(entry)? {
            // SAFETY: The page is not freed before the removal of the entry has completed, which is
            // not during `'a`. The entry is writable, so that the CPU's mapping is writable, too.
            Ok(pfn) => PageMemoryMut::Cpu(unsafe { CpuPagesMut::new(pfn, 1) }),
            Err(range) => PageMemoryMut::Device(range),
        })
    }
}

impl<D: Device> TableGuard<'_, D> {
    /// Returns the entry for the page at `addr`.
    // Always inlined, because a driver may copy page by page.
    #[inline(always)]
    fn entry(&self, addr: usize) -> DevicePte {
        self.guard.table.get_near(addr)
    }

    /// Returns the location of the page at `addr`, or `None` if the device must fault to read it.
    ///
    /// # Context
    ///
    /// Any. The guard holds the table lock.
    #[inline(always)]
    pub fn readable(&self, addr: usize) -> Option<PageMemory<'_>> {
        let entry = self.entry(addr);
        if !entry.is_valid() {
            return None;
        }
        // SAFETY: The entry is in the table. `self` holds the table lock, and the place borrows it,
        // so that the entry is not removed meanwhile.
        unsafe { self.mirror.inner().place(entry) }
    }

    /// Returns the location of the page at `addr`, or `None` if the device must fault to write it.
    ///
    /// # Context
    ///
    /// Any. The guard holds the table lock.
    #[inline]
    pub fn writable(&self, addr: usize) -> Option<PageMemoryMut<'_>> {
        let entry = self.entry(addr);
        if !entry.is_valid() || !entry.is_writable() {
            return None;
        }
        // SAFETY: The entry is in the table and writable. `self` holds the table lock, and the
        // place borrows it, so that the entry is not removed meanwhile.
        unsafe { self.mirror.inner().place_mut(entry) }
    }

    /// Returns the address that the device uses for the page at `addr`, if it may read the page, or
    /// write it with `write`.
    ///
    /// The address is valid until an invalidation of the page completes its flush. Therefore the
    /// caller must start the access before it drops the guard, and flushes of the page must wait
    /// for the end of the access.
    ///
    /// # Context
    ///
    /// Any. The guard holds the table lock.
    pub fn target(&self, addr: usize, write: bool) -> Option<PageAddress> {
        let leaf = self.guard.table.reader().walk(addr)?;
        if write && !leaf.entry.is_writable() {
            return None;
        }
        self.mirror.inner().target(&leaf)
    }

    /// Returns the number of consecutive pages from the start of `range` that the device may read
    /// without a fault.
    ///
    /// # Context
    ///
    /// Any. The guard holds the table lock.
    pub fn present(&self, range: PageRange) -> usize {
        self.guard.table.present(range)
    }

    /// Returns whether the device has exclusive access to any page of `range`.
    ///
    /// # Context
    ///
    /// Any. The guard holds the table lock.
    pub fn any_exclusive(&self, range: PageRange) -> bool {
        self.guard.table.any(range, |entry| entry.is_exclusive())
    }
}
