// SPDX-License-Identifier: GPL-2.0

//! Page tables in the memory of a PCI function, accessed through one of its BARs.
//!
//! For a GPU whose walker reads its tables from its own memory. The CPU writes them through an
//! uncached mapping, so that writes arrive in order. Because writes are posted, the library reads
//! from the same memory before it starts a flush: the read completes after the writes have arrived.
//!
//! C headers: [`include/linux/io.h`](srctree/include/linux/io.h),
//! [`include/linux/pci.h`](srctree/include/linux/pci.h)

use super::{
    dma::DmaUser,
    pci::PciMemory,
    vma::fatal_signal_pending, //
};
use crate::{
    bindings,
    kernel::{
        deferred::{
            Deferred,
            DropWaits, //
        },
        lock_classes,
        rcu_slot::{
            RcuSlot,
            Retired, //
        },
        shrinker::owner::ReclaimOwner, //
    }, //
};
use core::ptr::NonNull;
use kernel::{
    bitmap::BitmapVec,
    ffi::c_void,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        rcu::{
            self,
            Guard, //
        },
        Arc,
        Mutex, //
    }, //
};

/// Alignment of the start and the end of the part. It is at least the size of a table in any
/// format.
const BAR_TABLES_ALIGN: u64 = 64 * 1024;

/// Number of pages requested from a page table at once if no page of the part is free. After
/// these, the next page table is asked. They are table pages, whose size is that of the format, and
/// not pages of the CPU.
const REQUEST_PAGES: usize = 512;

/// Mapping of a part of a function's memory for the CPU.
///
/// # Invariants
///
/// `size` bytes of memory of a device are mapped at `base`, uncached, until this is dropped.
struct BarMapping {
    base: NonNull<c_void>,
    size: usize,
}

impl BarMapping {
    /// Maps `size` bytes of memory of a device at bus address `start`.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available.
    ///
    /// # Context
    ///
    /// May sleep.
    ///
    /// # Safety
    ///
    /// The memory must be claimed, and must not be released before the returned object is dropped.
    unsafe fn new(start: u64, size: usize) -> Result<Self> {
        // SAFETY: By the function's requirements.
        let base = unsafe { bindings::rust_hmm_bar_map(start, size) };
        // INVARIANT: Just mapped.
        let base = NonNull::new(base).ok_or(ENOMEM)?;
        Ok(Self { base, size })
    }
}

// SAFETY: The mapping may be used and unmapped by any thread.
unsafe impl Send for BarMapping {}
// SAFETY: A shared reference gives access to the memory by whole words only.
unsafe impl Sync for BarMapping {}

impl Drop for BarMapping {
    fn drop(&mut self) {
        // SAFETY: Mapped by the type invariant. `drop` has exclusive access, so that the mapping is
        // not in use.
        unsafe { bindings::rust_hmm_bar_unmap(self.base.as_ptr()) };
    }
}

/// State of a part. Its mapping is removed when the owner drops it or the memory is released,
/// whichever is first.
#[pin_data]
pub(super) struct Region {
    mapping: RcuSlot<BarMapping>,
    /// Address of the start of the part for the device.
    address: u64,
    /// Bitmap of the pages that are used by tables.
    #[pin]
    used: Mutex<BitmapVec>,
    /// Owners of the page tables in the part.
    #[pin]
    owners: Mutex<KVec<Arc<ReclaimOwner>>>,
    /// Index of the owner from which pages are requested next.
    hand: Atomic<usize>,
    // Held while the part is unmapped, so that a release of the memory waits for an owner that
    // unmaps it.
    #[pin]
    closing: Mutex<()>,
}

/// Registration of a page table whose pages may be requested for another page table.
pub(super) struct TableUser {
    region: Arc<Region>,
    owner: Arc<ReclaimOwner>,
}

impl Drop for TableUser {
    fn drop(&mut self) {
        let mut owners = self.region.owners.lock();
        let is_own = |owner: &Arc<ReclaimOwner>| Arc::ptr_eq(owner, &self.owner);
        if let Some(index) = owners.iter().position(is_own) {
            let _ = owners.remove(index);
        }
    }
}

/// A table in the part.
///
/// # Invariants
///
/// The memory is mapped as [`BarMapping`] says, for as long as the read section in which this was
/// made.
pub(super) struct BarTable(pub(super) NonNull<c_void>);

impl DmaUser for Region {
    fn close(&self) -> usize {
        let _closing = self.closing.lock();
        let mut gone = Retired::<_, 1>::empty();
        gone.take(&self.mapping);
        // Waits for concurrent writes, and unmaps the part.
        drop(gone);
        0
    }
}

impl Region {
    /// Creates a region of `pages` pages at the device address `address`, without a mapping.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available.
    ///
    /// # Context
    ///
    /// May sleep.
    fn new(pages: usize, address: u64) -> Result<Arc<Self>> {
        let (used, used_class) = lock_classes::bar_tables_used();
        let (owners, owners_class) = lock_classes::bar_tables_owners();
        let (closing, closing_class) = lock_classes::bar_tables_closing();
        let bits = BitmapVec::new(pages, GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                mapping: RcuSlot::empty(),
                address,
                used <- Mutex::new(bits, used, used_class),
                owners <- Mutex::new(KVec::new(), owners, owners_class),
                hand: Atomic::new(0),
                closing <- Mutex::new((), closing, closing_class),
            }),
            GFP_KERNEL,
        )
    }

    /// Allocates `bytes` zeroed bytes, a power of two and at least a page. Returns their device
    /// address.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no pages are free, and other page tables gave none up.
    /// - `ENODEV`: the memory was released.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn alloc(&self, bytes: usize) -> Result<u64> {
        let count = bytes.div_ceil(PAGE_SIZE).max(1);
        let first = match self.take(count) {
            Some(first) => first,
            None => self.take_from_others(count).ok_or(ENOMEM)?,
        };
        let address = self.address + (first * PAGE_SIZE) as u64;
        let cleared = {
            let guard = rcu::read_lock();
            let table = self.table(&guard, address, bytes);
            // SAFETY: `table` has checked that `bytes` bytes are mapped at that address.
            table.map(|table| unsafe { bindings::rust_hmm_bar_clear(table.0.as_ptr(), bytes) })
        };
        if cleared.is_none() {
            self.free(address, bytes);
            return Err(ENODEV);
        }
        Ok(address)
    }

    /// Allocates `count` free pages, a power of two, aligned to `count`.
    fn take(&self, count: usize) -> Option<usize> {
        let mut used = self.used.lock();
        let mut first = 0;
        loop {
            first = used.next_zero_bit(first)?.next_multiple_of(count);
            let end = first.checked_add(count).filter(|end| *end <= used.len())?;
            match used.next_bit(first).filter(|next| *next < end) {
                Some(next) => first = next,
                None => {
                    (first..end).for_each(|page| used.set_bit(page));
                    return Some(first);
                }
            }
        }
    }

    /// As [`Self::take`] if no pages are free: page tables give up free table pages, then cold
    /// ones.
    // Not inlined, because it is rare.
    #[inline(never)]
    fn take_from_others(&self, count: usize) -> Option<usize> {
        // The second scan of a table finds it cold, and each request scans one batch.
        let rounds = 2 * self.used.lock().len().div_ceil(REQUEST_PAGES);
        for _ in 0..rounds {
            let owners = self.owners.lock().len();
            for _ in 0..owners {
                if fatal_signal_pending() {
                    return None;
                }
                // Not under the lock, because dropping a `TableUser` takes it.
                if let Some(owner) = self.next_owner() {
                    owner.request(REQUEST_PAGES);
                }
                if let Some(first) = self.take(count) {
                    return Some(first);
                }
            }
        }
        None
    }

    fn next_owner(&self) -> Option<Arc<ReclaimOwner>> {
        let owners = self.owners.lock();
        // Relaxed: changed under this lock only.
        let index = self.hand.load(Relaxed).checked_rem(owners.len())?;
        self.hand.store(index + 1, Relaxed);
        owners.get(index).cloned()
    }

    /// Registers a page table until the returned object is dropped.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn join(this: &Arc<Self>, owner: &Arc<ReclaimOwner>) -> Result<TableUser> {
        this.owners.lock().push(owner.clone(), GFP_KERNEL_ACCOUNT)?;
        Ok(TableUser {
            region: this.clone(),
            owner: owner.clone(),
        })
    }

    /// Frees memory that [`Self::alloc`] has returned. The device must no longer access it.
    ///
    /// # Context
    ///
    /// May sleep. May be called from reclaim.
    pub(super) fn free(&self, address: u64, bytes: usize) {
        // CAST: The offset is within the mapped memory, whose size is a `usize`.
        let first = address.wrapping_sub(self.address) as usize / PAGE_SIZE;
        let mut used = self.used.lock();
        let end = used.len().min(first + bytes.div_ceil(PAGE_SIZE).max(1));
        (first..end).for_each(|page| used.clear_bit(page));
    }

    /// Returns the `bytes` bytes at the device address `address`; `None` if they are not within the
    /// memory, or if the memory was unmapped. Context: any.
    pub(super) fn table(&self, guard: &Guard, address: u64, bytes: usize) -> Option<BarTable> {
        let mapping = self.mapping.get(guard)?;
        let at = usize::try_from(address.checked_sub(self.address)?).ok()?;
        at.checked_add(bytes).filter(|end| *end <= mapping.size)?;
        // INVARIANT: Within the mapping, which stays for as long as the guard.
        // SAFETY: `at` is within the mapping, as checked above.
        Some(BarTable(unsafe { mapping.base.byte_add(at) }))
    }

    /// Reads the word at the device address `address`, a multiple of 8. Context: any.
    pub(super) fn read(&self, address: u64) -> Option<u64> {
        let guard = rcu::read_lock();
        let word = self.table(&guard, address, size_of::<u64>())?;
        // SAFETY: Mapped by the type invariant. Aligned, because the start of the part is.
        (address % 8 == 0).then(|| unsafe { bindings::rust_hmm_bar_read64(word.0.as_ptr()) })
    }

    /// Waits until all writes have arrived at the device. Context: any.
    pub(super) fn publish(&self) {
        let _ = self.read(self.address);
    }
}

/// A part of the memory of a PCI function for page tables; see
/// [`TableMemory::in_bar`](super::table_memory::TableMemory::in_bar).
///
/// The part is unmapped when this object is dropped or the memory is released, for example because
/// the driver is unbound. After that, changes of the page table are not visible to the device. The
/// driver must stop the walker before.
///
/// # Context
///
/// The drop may sleep. In a callback and in atomic context it returns at once, and a worker unmaps
/// the part.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::sync::Arc;
/// use rust_hmm::mm::bar_tables::BarTables;
/// use rust_hmm::mm::pci::PciMemory;
/// use rust_hmm::mm::table_memory::TableMemory;
///
/// /// Reserves the first MiB of a BAR, which the device finds at its address 0.
/// fn table_memory(bar: &Arc<PciMemory>) -> Result<TableMemory> {
///     let tables = BarTables::new(bar, 0, 1 << 20, 0)?;
///     Ok(TableMemory::in_bar(&tables))
/// }
/// ```
pub struct BarTables(Deferred<OwnedBarTables>);

struct OwnedBarTables {
    region: Arc<Region>,
    memory: Arc<PciMemory>,
}

impl DropWaits for OwnedBarTables {}

impl BarTables {
    /// Reserves `bytes` bytes from `at` on of `memory`, which the driver must not use otherwise.
    /// `address` is their address for the device.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: an argument is not a multiple of 64 KiB, or the part is not within the memory.
    /// - `ENODEV`: the memory was released.
    /// - `ENOMEM`: no memory is available.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new(memory: &Arc<PciMemory>, at: u64, bytes: u64, address: u64) -> Result<Arc<Self>> {
        let end = at.checked_add(bytes).ok_or(EINVAL)?;
        if bytes == 0
            || end > memory.size()
            || address.checked_add(bytes).is_none()
            || [at, bytes, address]
                .iter()
                .any(|number| number % BAR_TABLES_ALIGN != 0)
        {
            return Err(EINVAL);
        }
        let size = usize::try_from(bytes)?;
        let region = Region::new(size / PAGE_SIZE, address)?;
        let region = memory.add_user(|start| {
            // SAFETY: The memory is claimed, and is not released before `region` is closed.
            let mapping = unsafe { BarMapping::new(start + at, size) }?;
            let mapping = KBox::new(mapping, GFP_KERNEL)?;
            region.mapping.put(mapping).map_err(|_| EBUSY)?;
            Ok(region)
        })?;
        let owned = OwnedBarTables {
            region,
            memory: memory.clone(),
        };
        let tables = Deferred::new(|| Ok(owned), GFP_KERNEL)?;
        Ok(Arc::new(Self(tables), GFP_KERNEL)?)
    }

    pub(super) fn region(&self) -> &Arc<Region> {
        &self.0.region
    }

    /// Reads the word at the device address `address`, a multiple of 8, for software that emulates
    /// a walker. Returns `None` beyond the end, or if the memory was released.
    ///
    /// # Context
    ///
    /// Any.
    pub fn read(&self, address: u64) -> Option<u64> {
        self.region().read(address)
    }
}

impl Drop for OwnedBarTables {
    fn drop(&mut self) {
        self.region.close();
        self.memory.remove_user(&self.region);
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_bar_tables)]
mod tests {
    use super::*;
    use crate::kernel::shrinker::{
        owner::OwnerRegistration,
        Shrink, //
    };

    const PAGES: usize = 8;
    const ADDRESS: u64 = 1 << 32;

    /// Owner that gives a page up after a number of requests.
    struct Giver {
        region: Arc<Region>,
        page: usize,
        requests: Atomic<usize>,
        gives_at: usize,
    }

    impl Shrink for Giver {
        fn count(&self) -> usize {
            1
        }

        fn scan(&self, _objects: usize) -> usize {
            if self.requests.fetch_add(1, Relaxed) + 1 != self.gives_at {
                return 0;
            }
            let address = ADDRESS + (self.page * PAGE_SIZE) as u64;
            self.region.free(address, PAGE_SIZE);
            1
        }
    }

    type Table = (Arc<Giver>, TableUser, OwnerRegistration);

    /// Registers a table that gives `page` up at request number `gives_at`.
    fn table(region: &Arc<Region>, page: usize, gives_at: usize) -> Result<Table> {
        let giver = Giver {
            region: region.clone(),
            page,
            requests: Atomic::new(0),
            gives_at,
        };
        let giver = Arc::new(giver, GFP_KERNEL)?;
        let owner = ReclaimOwner::new()?;
        let registration = ReclaimOwner::register(&owner, giver.clone())?;
        Ok((giver, Region::join(region, &owner)?, registration))
    }

    /// Creates a region without free pages.
    fn full() -> Result<Arc<Region>> {
        let region = Region::new(PAGES, ADDRESS)?;
        for _ in 0..PAGES {
            region.take(1).ok_or(ENOMEM)?;
        }
        Ok(region)
    }

    #[test]
    fn exhausted_region_reclaims_pages_of_tables() -> Result {
        let region = full()?;
        let first = table(&region, 3, 2)?;
        let second = table(&region, 5, 1)?;
        assert_eq!(region.take_from_others(1), Some(5));
        // The second request to the first owner, whose page is cold by then.
        assert_eq!(region.take_from_others(1), Some(3));
        assert_eq!(region.take_from_others(1), None);
        // Two rounds at most, because there is one batch.
        let requests = [&first, &second].map(|(giver, ..)| giver.requests.load(Relaxed));
        assert!(requests.iter().sum::<usize>() <= 8);
        Ok(())
    }

    #[test]
    fn destroyed_table_is_not_reclaimed() -> Result {
        let region = full()?;
        let (giver, member, _registration) = table(&region, 3, 1)?;
        drop(member);
        assert_eq!(region.take_from_others(1), None);
        assert_eq!(giver.requests.load(Relaxed), 0);
        // Nothing is mapped.
        region.free(ADDRESS, PAGE_SIZE);
        assert_eq!(region.alloc(PAGE_SIZE).err(), Some(ENODEV));
        assert_eq!(region.take(1), Some(0));
        Ok(())
    }
}
