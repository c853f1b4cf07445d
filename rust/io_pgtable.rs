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
    bindings,
    deferred::{
        Deferred,
        DropWaits, //
    },
    locks,
    mirror::{Device, Place, TableGuard},
    mm::{addr::PageRange, device_pages::DeviceRange},
};
use batch::{Batch, Run};
use kernel::{
    faux,
    iommu::pgtable::{prot, Config, ARM64LPAES1},
    page::{PAGE_SHIFT, PAGE_SIZE},
    prelude::*,
    sync::{
        lock::{spinlock::SpinLockBackend, Guard},
        Arc, SpinLock,
    },
};

mod batch;

/// Bits of an address.
const BITS: u32 = 48;

/// Calls of the format to take pages out, each for those of one table at most, while the lock is held.
const STEPS: usize = 64;

/// Walks while the lock is held.
const WALKS: usize = 64;

/// What was asked of the format and its lock, to be counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Times that the lock was taken.
    pub locks: u64,
    /// Calls that map pages in a row.
    pub maps: u64,
    /// Calls that took such out.
    pub unmaps: u64,
}

/// A page table in the format of 64-bit Arm, first stage, with pages of 4 KiB, for addresses of 48 bits.
///
/// It knows nothing of its own: [`Self::follow`] takes what the mirror has.
///
/// # Context
///
/// The drop may sleep, because it may unregister the device. In a callback, with a table lock held and in atomic context
/// a worker does that.
pub struct LpaeTable {
    parts: Deferred<Parts>,
}

/// The table, its lock and its device.
///
/// # Invariants
///
/// `table` is changed and read only under `lock`; it goes before `device`, for which its memory is allocated.
#[pin_data]
struct Parts {
    table: IoPageTable<ARM64LPAES1>,
    #[pin]
    lock: SpinLock<Calls>,
    _device: Arc<faux::Registration>,
}

impl DropWaits for Parts {}

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
            // What is not there ends a call that takes pages out.
            quirks: bindings::RUST_HMM_QUIRK_NO_WARN,
            pgsize_bitmap: PAGE_SIZE,
            ias: BITS,
            oas: BITS,
            coherent_walk: true,
        };
        // SAFETY: The table is dropped before our reference of the registration, which keeps the device bound.
        let table = unsafe { io_page_table(&device, config) }?;
        let (name, key) = locks::io_pgtable();
        let parts = try_pin_init!(Parts {
            table,
            lock <- SpinLock::new(Calls::default(), name, key),
            _device: device,
        }? Error);
        let parts = Deferred::pinned(parts, GFP_KERNEL)?;
        Ok(KBox::pin(Self { parts }, GFP_KERNEL)?)
    }

    /// Where the hardware finds it: the value of `TTBR0`.
    #[inline]
    pub fn root(&self) -> u64 {
        // SAFETY: A number. Who gives it to hardware is a driver, and has that stop before the table goes.
        unsafe { self.parts.table.ttbr() }
    }

    /// The physical address behind `addr`, and 0 if there is none. Under the lock.
    #[inline]
    fn walk(&self, addr: usize) -> u64 {
        if addr >> BITS != 0 {
            return 0;
        }
        let ops = self.parts.table.raw_ops();
        // SAFETY: The operation is never null, and the table is alive.
        unsafe { (*ops).iova_to_phys.map_or(0, |walk| walk(ops, addr)) }
    }

    /// The physical address to which the hardware's walk of `addr` comes. Context: any but interrupts.
    #[inline]
    pub fn physical(&self, addr: usize) -> Option<u64> {
        let _calls = self.lock();
        Some(self.walk(addr)).filter(|physical| *physical != 0)
    }

    #[inline]
    fn lock(&self) -> Guard<'_, Calls, SpinLockBackend> {
        let mut calls = self.parts.lock.lock();
        calls.locks += 1;
        calls
    }

    /// What was asked of the format until now. Context: any but interrupts.
    #[inline]
    pub fn calls(&self) -> Calls {
        *self.parts.lock.lock()
    }

    /// Bytes of the aligned block at `addr` for which there is no table; `None` if `addr` is mapped. Under the lock.
    #[inline]
    fn gap(&self, addr: usize) -> Option<usize> {
        let ops = self.parts.table.raw_ops();
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

    /// Takes out the pages in a row from `addr` on, as far as one table goes, or steps over a block where there are
    /// none. Returns the address behind them, which may be behind `end`. Under the lock.
    #[inline]
    fn take_out(&self, calls: &mut Calls, addr: usize, end: usize) -> usize {
        let pages = (end - addr) >> PAGE_SHIFT;
        // SAFETY: The lock is held. All pages were mapped as such, and with the quirk that we set the function ends
        // at the first that is not mapped.
        let bytes = unsafe { self.parts.table.unmap_pages(addr, PAGE_SIZE, pages) };
        if bytes != 0 {
            calls.unmaps += 1;
            return addr + bytes;
        }
        let gap = self.gap(addr).unwrap_or(PAGE_SIZE);
        (addr & !(gap - 1)).saturating_add(gap)
    }

    /// Takes `range` out: for [`Device::flush_start`], before the hardware's TLB is told. Costs what is mapped, not
    /// what the range is long. Context: any but interrupts.
    #[inline]
    pub fn unmap(&self, range: PageRange) {
        let end = range.end().min(1 << BITS);
        let mut addr = range.start();
        while addr < end {
            // Others may want the lock meanwhile.
            let mut calls = self.lock();
            for _ in 0..STEPS {
                if addr < end {
                    addr = self.take_out(&mut calls, addr, end);
                }
            }
        }
    }

    /// Maps a run in the place of what is there, which may have other rights by now. Under the lock.
    #[inline]
    fn put(&self, calls: &mut Calls, run: &Run) -> Result {
        let mut addr = run.addr;
        while addr < run.end() {
            addr = self.take_out(calls, addr, run.end());
        }
        addr = run.addr;
        while addr < run.end() {
            let done = addr - run.addr;
            let pages = run.pages - (done >> PAGE_SHIFT);
            calls.maps += 1;
            // SAFETY: The lock is held, and there is no mapping. The pages stay as long as their entries, and who
            // takes those away unmaps these.
            let (bytes, result) = unsafe {
                let physical = run.physical + done as u64;
                self.parts
                    .table
                    .map_pages(addr, physical, PAGE_SIZE, pages, run.rights, GFP_NOWAIT)
            };
            result?;
            addr += bytes;
        }
        Ok(())
    }

    /// Maps the runs of a batch.
    #[inline]
    fn put_all(&self, batch: &Batch) -> Result {
        let mut calls = self.lock();
        let mut runs = batch.runs().iter();
        runs.try_for_each(|run| self.put(&mut calls, run))
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
        let mut batch = Batch::new();
        let mut pages = 0;
        while pages < range.pages() {
            let addr = range.address(pages);
            let Some(physical) = physical_of(guard, addr, &vram) else {
                break;
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
            if !batch.add(addr, physical, rights) {
                self.put_all(&batch)?;
                batch = Batch::new();
                continue;
            }
            pages += 1;
        }
        self.put_all(&batch)?;
        Ok(pages)
    }

    /// Pages of `range` from the start on for which the hardware's walk ends where the mirror's entry says; `vram` as
    /// in [`Self::follow`]. For a device in software, which may read these by the mirror's.
    ///
    /// # Errors
    ///
    /// `EIO` if a walk ends elsewhere: this table was not told of a change. Context: the mirror's table lock is held, as
    /// `guard` says.
    #[inline]
    pub fn present<D: Device>(
        &self,
        guard: &TableGuard<'_, D>,
        range: PageRange,
        vram: impl Fn(DeviceRange) -> u64,
    ) -> Result<usize> {
        let mut pages = 0;
        while pages < range.pages() {
            let mut found = [0; WALKS];
            {
                let _calls = self.lock();
                for (index, physical) in (pages..range.pages()).zip(&mut found) {
                    *physical = self.walk(range.address(index));
                }
            }
            for (index, physical) in (pages..range.pages()).zip(found) {
                if physical == 0 {
                    return Ok(index);
                }
                if physical_of(guard, range.address(index), &vram) != Some(physical) {
                    return Err(EIO);
                }
                pages = index + 1;
            }
        }
        Ok(pages)
    }
}

/// Where the device finds the page of the mirror's entry at `addr`; `None` if it may not read it.
#[inline]
fn physical_of<D: Device>(
    guard: &TableGuard<'_, D>,
    addr: usize,
    vram: impl Fn(DeviceRange) -> u64,
) -> Option<u64> {
    guard.readable(addr).map(|place| match place {
        Place::Cpu(pages) => (pages.first_pfn() << PAGE_SHIFT) as u64,
        Place::Device(pages) => vram(pages),
    })
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
