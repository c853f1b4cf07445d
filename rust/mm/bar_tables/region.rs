// SPDX-License-Identifier: GPL-2.0

//! A part of a function's memory: allocates its pages to tables, and gives access to the tables.

use super::mapping::BarMapping;
use crate::{
    bindings,
    kernel::{
        lock_classes,
        rcu_slot::{
            RcuSlot,
            Retired, //
        },
        shrinker::owner::ReclaimOwner, //
    },
    mm::{
        dma::DmaUser,
        vma::fatal_signal_pending, //
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

/// Number of pages requested from a page table at once if no page of the part is free. After
/// these, the next page table is asked. They are table pages, whose size is that of the format, and
/// not pages of the CPU.
const REQUEST_PAGES: usize = 512;

/// State of a part. Its mapping is removed when the owner drops it or the memory is released,
/// whichever is first.
#[pin_data]
pub(in crate::mm) struct Region {
    pub(super) mapping: RcuSlot<BarMapping>,
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
pub(in crate::mm) struct TableUser {
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
pub(in crate::mm) struct BarTable(pub(in crate::mm) NonNull<c_void>);

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
    pub(super) fn new(pages: usize, address: u64) -> Result<Arc<Self>> {
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
    pub(in crate::mm) fn alloc(&self, bytes: usize) -> Result<u64> {
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
    pub(super) fn take(&self, count: usize) -> Option<usize> {
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
    pub(super) fn take_from_others(&self, count: usize) -> Option<usize> {
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
    pub(in crate::mm) fn join(this: &Arc<Self>, owner: &Arc<ReclaimOwner>) -> Result<TableUser> {
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
    pub(in crate::mm) fn free(&self, address: u64, bytes: usize) {
        // CAST: The offset is within the mapped memory, whose size is a `usize`.
        let first = address.wrapping_sub(self.address) as usize / PAGE_SIZE;
        let mut used = self.used.lock();
        let end = used.len().min(first + bytes.div_ceil(PAGE_SIZE).max(1));
        (first..end).for_each(|page| used.clear_bit(page));
    }

    /// Returns the `bytes` bytes at the device address `address`; `None` if they are not within the
    /// memory, or if the memory was unmapped. Context: any.
    pub(in crate::mm) fn table(
        &self,
        guard: &Guard,
        address: u64,
        bytes: usize,
    ) -> Option<BarTable> {
        let mapping = self.mapping.get(guard)?;
        let at = usize::try_from(address.checked_sub(self.address)?).ok()?;
        at.checked_add(bytes).filter(|end| *end <= mapping.size)?;
        // INVARIANT: Within the mapping, which stays for as long as the guard.
        // SAFETY: `at` is within the mapping, as checked above.
        Some(BarTable(unsafe { mapping.base.byte_add(at) }))
    }

    /// Reads the word at the device address `address`, a multiple of 8. Context: any.
    pub(in crate::mm) fn read(&self, address: u64) -> Option<u64> {
        let guard = rcu::read_lock();
        let word = self.table(&guard, address, size_of::<u64>())?;
        // SAFETY: Mapped by the type invariant. Aligned, because the start of the part is.
        (address % 8 == 0).then(|| unsafe { bindings::rust_hmm_bar_read64(word.0.as_ptr()) })
    }

    /// Waits until all writes have arrived at the device. Context: any.
    pub(in crate::mm) fn publish(&self) {
        let _ = self.read(self.address);
    }
}
