// SPDX-License-Identifier: GPL-2.0

//! A page table of the kernel's own, ARM64 LPAE as GPUs of Arm and Apple use it, that follows a mirror.
//!
//! The library's table ([`pgtable`](crate::pgtable)) stays what decides: under its lock, pages that it has are
//! put into this one, and flushes take them out. So a driver whose hardware walks a format that
//! [`kernel::iommu::pgtable`] knows need not write one.
//!
//! `alloc_io_pgtable_ops()` is not in every kernel, and this module's users are: all of it is inlined into the driver
//! that uses it.
//!
//! C header: [`include/linux/io-pgtable.h`](srctree/include/linux/io-pgtable.h)

use crate::{
    bindings, locks,
    mirror::{Device, Place, TableGuard},
    mm::{addr::PageRange, device_pages::DeviceRange, page::CpuPages},
};
use kernel::{
    faux,
    iommu::pgtable::{prot, Config, ARM64LPAES1},
    page::{PAGE_SHIFT, PAGE_SIZE},
    prelude::*,
    sync::{Arc, SpinLock},
};

/// Bits of an address.
const BITS: u32 = 48;

/// A page table in the format of 64-bit Arm, first stage, with pages of 4 KiB, for addresses of 48 bits.
///
/// It knows nothing of its own: [`Self::follow`] takes what the mirror has.
///
/// # Invariants
///
/// `table` is changed and read only under `lock`; it goes before `device`, for which its memory is allocated.
#[pin_data]
pub struct LpaeTable {
    table: IoPageTable<ARM64LPAES1>,
    #[pin]
    lock: SpinLock<()>,
    _device: Arc<faux::Registration>,
}

/// Whether a page can be at `physical`.
#[inline]
fn is_page(physical: u64) -> bool {
    physical != 0 && physical >> BITS == 0 && physical % PAGE_SIZE as u64 == 0
}

impl LpaeTable {
    /// An empty table, of a device in software.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, also if the kernel does not know the format. Context: may sleep.
    #[inline]
    pub fn new(device: Arc<faux::Registration>) -> Result<Pin<KBox<Self>>> {
        let config = Config {
            quirks: 0,
            pgsize_bitmap: PAGE_SIZE,
            ias: BITS,
            oas: BITS,
            coherent_walk: true,
        };
        // SAFETY: The table is dropped before our reference of the registration, which keeps the device bound.
        let table = unsafe { io_page_table(&device, config) }?;
        let (name, key) = locks::io_pgtable();
        KBox::pin_init(
            pin_init!(Self {
                table,
                lock <- SpinLock::new((), name, key),
                _device: device,
            }),
            GFP_KERNEL,
        )
    }

    /// Where the hardware finds it: the value of `TTBR0`.
    #[inline]
    pub fn root(&self) -> u64 {
        // SAFETY: A number. Who gives it to hardware is a driver, and has that stop before the table goes.
        unsafe { self.table.ttbr() }
    }

    /// The physical address behind `addr`, and 0 if there is none. Under the lock.
    #[inline]
    fn walk(&self, addr: usize) -> u64 {
        if addr >> BITS != 0 {
            return 0;
        }
        let ops = self.table.raw_ops();
        // SAFETY: The operation is never null, and the table is alive.
        unsafe { (*ops).iova_to_phys.map_or(0, |walk| walk(ops, addr)) }
    }

    /// The physical address to which the hardware's walk of `addr` comes. Context: any but interrupts.
    #[inline]
    pub fn physical(&self, addr: usize) -> Option<u64> {
        let _guard = self.lock.lock();
        Some(self.walk(addr)).filter(|physical| *physical != 0)
    }

    /// Bytes of the aligned block at `addr` for which there is no table; `None` if `addr` is mapped. Under the lock.
    #[inline]
    fn gap(&self, addr: usize) -> Option<usize> {
        let ops = self.table.raw_ops();
        let mut found = bindings::arm_lpae_io_pgtable_walk_data { ptes: [0; 4] };
        // SAFETY: The table is alive, and this format records the entries of a walk there.
        let _ = unsafe {
            (*ops)
                .pgtable_walk
                .map(|walk| walk(ops, addr, (&raw mut found).cast()))
        };
        // The walk ends at the first entry that is not valid.
        let level = found.ptes.iter().position(|entry| entry & 1 == 0)?;
        Some(PAGE_SIZE << (9 * (3 - level)))
    }

    /// Takes `range` out: for [`Device::flush_start`], before the hardware's TLB is told. Costs what is mapped, not
    /// what the range is long. Context: any but interrupts.
    #[inline]
    pub fn unmap(&self, range: PageRange) {
        let end = range.end().min(1 << BITS);
        let mut addr = range.start();
        while addr < end {
            // Others may want the lock meanwhile.
            let _guard = self.lock.lock();
            match self.gap(addr) {
                Some(bytes) => addr = (addr & !(bytes - 1)).saturating_add(bytes),
                None => {
                    self.unmap_page(addr);
                    addr += PAGE_SIZE;
                }
            }
        }
    }

    /// Takes a page out, if it is there. Under the lock.
    #[inline]
    fn unmap_page(&self, addr: usize) {
        if self.walk(addr) != 0 {
            // SAFETY: The lock is held, and all pages were mapped one by one: this one is.
            let _ = unsafe { self.table.unmap_pages(addr, PAGE_SIZE, 1) };
        }
    }

    /// Maps what the mirror has of `range`, with the same rights: after a fault. `vram` tells at which physical
    /// address the device finds pages of its memory. Returns the pages from the start on that are there now.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINVAL`: beyond what the format can hold, or no page. Context: the mirror's table lock is held, as `guard` says.
    #[inline]
    pub fn follow<D: Device>(
        &self,
        guard: &TableGuard<'_, D>,
        range: PageRange,
        vram: impl Fn(DeviceRange) -> u64,
    ) -> Result<usize> {
        for index in 0..range.pages() {
            let addr = range.address(index);
            let physical = match guard.readable(addr) {
                None => return Ok(index),
                Some(Place::Cpu(pages)) => (pages.first_pfn() << PAGE_SHIFT) as u64,
                Some(Place::Device(pages)) => vram(pages),
            };
            // Else the format takes it for something else.
            if addr >> BITS != 0 || !is_page(physical) {
                return Err(EINVAL);
            }
            let rights = match guard.writable(addr) {
                Some(_) => prot::READ | prot::WRITE,
                None => prot::READ,
            } | prot::CACHE
                | prot::NOEXEC;
            let _guard = self.lock.lock();
            // It may have other rights by now.
            self.unmap_page(addr);
            // SAFETY: The lock is held, and there is no mapping. The page stays as long as the entry, and who takes
            // that away unmaps this one.
            let (_, result) = unsafe {
                self.table
                    .map_pages(addr, physical, PAGE_SIZE, 1, rights, GFP_NOWAIT)
            };
            result?;
        }
        Ok(range.pages())
    }

    /// The page at which the hardware's walk of `addr` ends, which is that of the mirror's entry: for a device in
    /// software. `None` if there is no mapping.
    ///
    /// # Errors
    ///
    /// `EIO` if it is another page: this table was not told of a change. Context: the mirror's table lock is held, as
    /// `guard` says.
    #[inline]
    pub fn page<'g, D: Device>(
        &self,
        guard: &'g TableGuard<'_, D>,
        addr: usize,
    ) -> Result<Option<CpuPages<'g>>> {
        let Some(physical) = self.physical(addr) else {
            return Ok(None);
        };
        match guard.readable(addr) {
            Some(Place::Cpu(pages)) if (pages.first_pfn() << PAGE_SHIFT) as u64 == physical => {
                Ok(Some(pages))
            }
            _ => Err(EIO),
        }
    }
}

// What differs between the series. Not in `compat`, which would go to the kernel crate with `mm`.

/// A page table of the kernel's own, in format `F`.
#[cfg(not(hmm_series_7_3))]
type IoPageTable<F> = kernel::iommu::pgtable::IoPageTable<F>;
/// As above.
#[cfg(hmm_series_7_3)]
type IoPageTable<F> = kernel::iommu::pgtable::IoPageTable<'static, F>;

/// Makes one for a software device.
///
/// # Safety
///
/// It must be dropped before the registration.
#[cfg(not(hmm_series_7_3))]
#[inline]
unsafe fn io_page_table<F: kernel::iommu::pgtable::IoPageTableFmt>(
    device: &kernel::faux::Registration,
    config: kernel::iommu::pgtable::Config,
) -> Result<IoPageTable<F>> {
    let device: &kernel::device::Device = device.as_ref();
    // SAFETY: As long as it is registered it is bound; by the function's requirements that is long enough.
    unsafe { IoPageTable::new_raw(device.as_bound(), config) }
}

/// As above.
///
/// # Safety
///
/// As above.
#[cfg(hmm_series_7_3)]
#[inline]
unsafe fn io_page_table<F: kernel::iommu::pgtable::IoPageTableFmt>(
    device: &kernel::faux::Registration,
    config: kernel::iommu::pgtable::Config,
) -> Result<IoPageTable<F>> {
    use kernel::{
        device::{Bound, Device},
        faux,
    };
    let device: &faux::Device<Bound> = device.as_ref();
    let device: &Device<Bound> = device.as_ref();
    // SAFETY: It stays as long as it is registered, by the function's requirements.
    IoPageTable::new(unsafe { &*core::ptr::from_ref(device) }, config)
}
