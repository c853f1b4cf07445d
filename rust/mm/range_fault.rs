// SPDX-License-Identifier: GPL-2.0

//! Wrapper of `hmm_range_fault()` whose results can be read only after validation.
//!
//! [`AddressSpace::collect`] returns a [`Collected`], whose page frame numbers cannot be read.
//! [`Collected::lock`] takes the lock of a device page table and checks for a concurrent
//! invalidation. The [`Validated`] that it returns gives access to the page frame numbers and to
//! that table.
//!
//! C header: [`include/linux/hmm.h`](srctree/include/linux/hmm.h)

pub use super::notifier::Retry;
#[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
use super::pin::LockedVmCharge;
use super::{
    addr::{
        PageRange,
        PMD_PAGES,
        PMD_SIZE, //
    },
    notifier::{
        IntervalNotifier,
        NotifierOps,
        Seq, //
    },
    vma::{
        MemcgCharge,
        MmapGuard, //
    }, //
};
use crate::{
    bindings,
    inject::{
        fails,
        FailPoint, //
    },
    kernel::identity::PgmapOwner,
    mm::compat, //
};
use core::ptr;
use kernel::{
    mm::{
        virt::flags,
        Mm,
        MmWithUser, //
    },
    prelude::*,
    sync::aref::ARef, //
};

mod access;
mod collected;
mod pfn;

pub use access::Access;
pub use collected::{
    Collected,
    Validated, //
};
pub use pfn::HmmPfn;

/// Buffer for the result of one range fault: [`PMD_PAGES`] entries. Callers should reuse it. Each
/// fault clears only the entries that it uses, because clearing all is a noticeable cost.
pub struct PfnBuffer(KVec<usize>);

impl PfnBuffer {
    /// Allocates a buffer.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new() -> Result<Self> {
        Ok(Self(KVec::with_capacity(PMD_PAGES, GFP_KERNEL)?))
    }
}

/// A reference to an address space (`mm_users`) that prevents its teardown.
///
/// # Context
///
/// Dropping it may sleep, and may tear down the address space, which calls notifiers. It must not
/// be dropped with the lock of a [`NotifierTable`](super::notifier::NotifierTable) held.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::kernel::identity::PgmapOwner;
/// use rust_hmm::mm::addr::PageRange;
/// use rust_hmm::mm::notifier::IntervalNotifier;
/// use rust_hmm::mm::notifier::NotifierOps;
/// use rust_hmm::mm::notifier::NotifierTable;
/// use rust_hmm::mm::range_fault::Access;
/// use rust_hmm::mm::range_fault::AddressSpace;
/// use rust_hmm::mm::range_fault::PfnBuffer;
///
/// /// Counts the pages of `range` that the device may write.
/// fn writable<S: NotifierOps, M: NotifierTable<S, Protected: Unpin>>(
///     space: &AddressSpace,
///     notifier: &IntervalNotifier<S>,
///     table: &M,
///     range: PageRange,
/// ) -> Result<usize> {
///     let mut buffer = PfnBuffer::new()?;
///     let owner = PgmapOwner::NONE;
///     let collected = space.collect(notifier, range, Access::Read, owner, &mut buffer)?;
///     // An invalidation since then fails the check under the lock of the table.
///     let mut valid = collected.lock(table).map_err(|_| EBUSY)?;
///     let (_table, range, mut entry_at) = valid.parts();
///     let pages = (0..range.pages()).map(|index| entry_at(range.address(index)));
///     Ok(pages.filter(|pfn| pfn.is_writable()).count())
/// }
/// ```
pub struct AddressSpace {
    mm: ARef<MmWithUser>,
}

impl AddressSpace {
    /// Takes a reference to the address space of `mm`.
    ///
    /// # Errors
    ///
    /// - `EFAULT`: the process has exited, so that the address space is torn down.
    ///
    /// # Context
    ///
    /// Any.
    pub fn new(mm: &Mm) -> Result<Self> {
        if fails(FailPoint::Space) {
            return Err(EFAULT);
        }
        let mm = mm.mmget_not_zero().ok_or(EFAULT)?;
        Ok(Self { mm })
    }

    /// Charges allocations of the current task to the memory cgroup of the address space, while the
    /// returned object exists.
    pub(crate) fn charge(&self) -> MemcgCharge {
        MemcgCharge::to(&self.mm)
    }

    /// Returns the address space.
    pub(crate) fn mm(&self) -> &MmWithUser {
        &self.mm
    }

    /// Accounts `pages` as locked memory of the process; see [`LockedVmCharge::new`].
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: the limit is exceeded.
    #[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
    pub(crate) fn account(&self, pages: usize) -> Result<LockedVmCharge> {
        LockedVmCharge::new(&self.mm, pages)
    }

    /// Takes the mmap lock; see [`MmapGuard::lock`].
    ///
    /// # Errors
    ///
    /// - Those of [`MmapGuard::lock`].
    ///
    /// # Context
    ///
    /// As for [`MmapGuard::lock`].
    pub fn mmap_lock(&self) -> Result<MmapGuard<'_>> {
        MmapGuard::lock(&self.mm)
    }

    /// Takes the mmap lock on behalf of the library; see [`MmapGuard::lock_here`].
    pub(crate) fn mmap_lock_here(&self) -> Result<MmapGuard<'_>> {
        MmapGuard::lock_here(&self.mm)
    }

    /// Collects the pages of `range` from the CPU page table, faulting them in as `access`
    /// requires.
    ///
    /// `range` must lie in one block of [`PMD_SIZE`] bytes and in the range of `notifier`. Device
    /// pages of `owner` are reported; device pages of other owners are migrated to system memory
    /// first.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: `range` crosses a block boundary, or is not within the range of `notifier`.
    /// - `EFAULT`: the range is not mapped or not readable, or has special pages.
    /// - `EPERM`: the mapping is not writable.
    /// - `ENOMEM`, `EHWPOISON`: the fault failed with this error (7.3).
    /// - `EBUSY`: the range was invalidated concurrently. The caller should retry.
    /// - `EINTR`: a fatal signal is pending.
    ///
    /// # Context
    ///
    /// May sleep. The caller must not hold any lock.
    pub fn collect<'a, S: NotifierOps>(
        &self,
        notifier: &'a IntervalNotifier<S>,
        range: PageRange,
        access: Access,
        owner: PgmapOwner,
        buffer: &'a mut PfnBuffer,
    ) -> Result<Collected<'a, S>> {
        let is_told = notifier.range().intersect(&range) == Some(range);
        if !is_told || range.start() / PMD_SIZE != (range.end() - 1) / PMD_SIZE {
            return Err(EINVAL);
        }
        buffer.0.clear();
        // Does not allocate: the range has at most `PMD_PAGES` pages, which is the capacity.
        buffer.0.resize(range.pages(), 0, GFP_KERNEL)?;
        let pfns = buffer.0.as_mut_slice();
        let mut raw = bindings::hmm_range {
            notifier: notifier.as_raw(),
            notifier_seq: 0,
            start: range.start(),
            end: range.end(),
            hmm_pfns: pfns.as_mut_ptr(),
            default_flags: access.flags(),
            pfn_flags_mask: 0,
            dev_private_owner: owner.as_ptr(),
        };
        let seq = if access == Access::ReadUnlocked {
            // SAFETY: `raw` describes our buffer and an inserted notifier of this address space.
            unsafe { self.range_fault_unlocked(notifier, &mut raw, range)? }
        } else {
            // SAFETY: `raw` describes our buffer and an inserted notifier of this address space.
            let mut result = unsafe { self.range_fault(notifier, &mut raw) };
            if result == Err(EFAULT) && access != Access::Snapshot {
                compat::fault_error(&self.mm, range, access == Access::Write)?;
                // SAFETY: `raw` describes our buffer and an inserted notifier of this address
                // space.
                result = unsafe { self.range_fault(notifier, &mut raw) };
            }
            result?
        };
        if access == Access::Snapshot && self.is_huge_elsewhere(range, pfns)? {
            pfns.fill(0);
        }
        Ok(Collected::new(notifier, seq, range, pfns))
    }

    /// Returns whether `range` lies in a huge page of another device, judging by the snapshot
    /// `pfns`.
    ///
    /// A snapshot reports such a huge page as an error (`hmm_vma_handle_absent_pmd()`, 7.2 and
    /// 7.3), but a small page of another device as absent. The VMA shows whether the error means
    /// missing access rights or a missing mapping. A change of the VMA invalidates the range, so
    /// that the result is validated with the snapshot.
    fn is_huge_elsewhere(&self, range: PageRange, pfns: &[usize]) -> Result<bool> {
        if !pfns.iter().all(|raw| HmmPfn::from_raw(*raw).is_error()) {
            return Ok(false);
        }
        let mmap = self.mmap_lock_here()?;
        Ok(mmap.vma_lookup(range.start()).is_some_and(|vma| {
            vma.end() >= range.end() && vma.is_anonymous() && vma.flags() & flags::READ != 0
        }))
    }

    /// # Safety
    ///
    /// `raw` must describe a valid buffer, and name `notifier`.
    unsafe fn range_fault<S: NotifierOps>(
        &self,
        notifier: &IntervalNotifier<S>,
        raw: &mut bindings::hmm_range,
    ) -> Result<Seq> {
        let seq = notifier.read_begin()?;
        raw.notifier_seq = notifier.core_seq();
        let _guard = self.mmap_lock_here()?;
        // SAFETY: By the function's requirements; the notifier is inserted, and the mmap lock held.
        kernel::error::to_result(unsafe { bindings::hmm_range_fault(raw) })?;
        Ok(seq)
    }

    /// Faults pages in with handlers that may drop the mmap lock, as that of userfaultfd does.
    ///
    /// `hmm_range_fault()` cannot handle such mappings, and `hmm_range_fault_unlocked_timeout()` of
    /// 7.3 waits uninterruptibly for invalidations. Therefore pages that are missing in a snapshot
    /// are faulted in one by one, until a snapshot is complete.
    ///
    /// # Safety
    ///
    /// `raw` must describe a valid buffer for `range`, and name `notifier`.
    unsafe fn range_fault_unlocked<S: NotifierOps>(
        &self,
        notifier: &IntervalNotifier<S>,
        raw: &mut bindings::hmm_range,
        range: PageRange,
    ) -> Result<Seq> {
        raw.default_flags = 0;
        // Bounds the rounds, because concurrent reclaim or invalidations can remove pages again.
        for round in 0..=range.pages() {
            // SAFETY: By the function's requirements.
            let seq = unsafe { self.range_fault(notifier, raw)? };
            // SAFETY: The buffer is as long as the range, by the function's requirements.
            let pfns = unsafe { core::slice::from_raw_parts(raw.hmm_pfns, range.pages()) };
            let mut complete = true;
            for (index, pfn) in pfns.iter().map(|raw| HmmPfn::from_raw(*raw)).enumerate() {
                // A snapshot reports huge pages of other devices and huge migration entries as
                // errors. A fault resolves these. An error that remains after two rounds of faults
                // is permanent.
                if pfn.is_error() && round > 1 {
                    return Err(EFAULT);
                }
                if !pfn.is_valid() {
                    complete = false;
                    compat::fault_in(&self.mm, range.address(index), 0, true)?;
                }
            }
            if complete {
                return Ok(seq);
            }
        }
        Err(EBUSY)
    }

    /// Makes the first page of `range`, a page of the device's own memory, writable in place if it
    /// has no other user. Otherwise does the same as [`Self::fault_in_writable`].
    ///
    /// Other such pages of `range`, which must lie in one block of [`PMD_SIZE`] bytes, are made
    /// writable with it. This keeps a page on the device that was write-protected only by a change
    /// of protection, such as NUMA balancing.
    ///
    /// # Errors
    ///
    /// As [`Self::fault_in_writable`].
    pub(crate) fn make_writable(&self, range: PageRange) -> Result {
        let addr = range.start();
        let guard = self.mmap_lock_here()?;
        let vma = guard.vma_lookup(addr).ok_or(EFAULT)?;
        let table = (addr | (PMD_SIZE - 1)).saturating_add(1);
        let end = range.end().min(vma.end()).min(table);
        // SAFETY: The VMA is valid because the mmap lock is held. It contains the addresses, which
        // are in one page table.
        if unsafe { bindings::rust_hmm_vma_make_writable(vma.as_ptr(), addr, end) } {
            return Ok(());
        }
        drop(guard);
        self.fault_in_writable(addr)
    }

    /// Makes the page at `addr` writable as a CPU write would: migrates it to system memory and
    /// breaks copy-on-write.
    ///
    /// This is needed because a range fault does not enforce a write request on the caller's own
    /// device pages. One call may not suffice: the caller must collect again to check the result.
    ///
    /// # Errors
    ///
    /// - `EPERM`: the mapping is not writable.
    /// - `EFAULT`: the address is not mapped, or the device has lost the page.
    /// - `ENOMEM`, `EHWPOISON`: the fault failed with this error.
    /// - `EINTR`: a fatal signal is pending.
    ///
    /// # Context
    ///
    /// May sleep; takes the mmap lock. The caller must not hold a lock that a fault may need.
    pub fn fault_in_writable(&self, addr: usize) -> Result {
        let guard = self.mmap_lock_here()?;
        if guard.vma_lookup(addr).ok_or(EFAULT)?.flags() & flags::WRITE == 0 {
            return Err(EPERM);
        }
        // SAFETY: The address space is in use and its mmap lock is held; without `unlocked` it
        // stays held.
        kernel::error::to_result(unsafe {
            bindings::fixup_user_fault(
                self.mm.as_raw(),
                addr,
                bindings::fault_flag_FAULT_FLAG_WRITE,
                ptr::null_mut(),
            )
        })
    }
}
