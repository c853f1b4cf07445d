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
        PMD_ORDER,
        PMD_PAGES,
        PMD_SIZE, //
    },
    notifier::{
        IntervalNotifier,
        NotifierOps,
        NotifierTable,
        Seq, //
    },
    vma::{
        fatal_signal_pending,
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
    page::PAGE_SHIFT,
    prelude::*,
    sync::{
        aref::ARef,
        lock::mutex::MutexGuard, //
    }, //
};

/// Access for which pages are collected.
///
/// # Examples
///
/// ```
/// use rust_hmm::mm::range_fault::Access;
///
/// /// Returns the access for a device fault. A read must not request a write, which breaks COW.
/// fn access(is_write: bool) -> Access {
///     if is_write {
///         Access::Write
///     } else {
///         Access::Read
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// None: report the present pages without faulting any in.
    Snapshot,
    /// Read: fault pages in without breaking sharing.
    Read,
    /// Write: fault pages in writable, which breaks copy-on-write.
    Write,
    /// Read, where the fault may drop the mmap lock (userfaultfd).
    ReadUnlocked,
}

impl Access {
    fn flags(self) -> usize {
        match self {
            Self::Snapshot => 0,
            Self::Read | Self::ReadUnlocked => bindings::hmm_pfn_flags_HMM_PFN_REQ_FAULT,
            Self::Write => {
                bindings::hmm_pfn_flags_HMM_PFN_REQ_FAULT
                    | bindings::hmm_pfn_flags_HMM_PFN_REQ_WRITE
            }
        }
    }
}

/// One entry of the result: a page frame number with flags. See `enum hmm_pfn_flags`.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct HmmPfn(usize);

impl HmmPfn {
    const VALID: usize = bindings::hmm_pfn_flags_HMM_PFN_VALID;
    const WRITE: usize = bindings::hmm_pfn_flags_HMM_PFN_WRITE;
    const ERROR: usize = bindings::hmm_pfn_flags_HMM_PFN_ERROR;
    const PFN: usize = (1 << Self::ORDER_SHIFT) - 1;
    const ORDER_SHIFT: u32 = bindings::hmm_pfn_flags_HMM_PFN_ORDER_SHIFT as u32;

    /// Returns whether a page is present. If not, a fault may make one present.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub const fn is_valid(self) -> bool {
        self.0 & Self::VALID != 0
    }

    /// Returns whether the page may be written.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub const fn is_writable(self) -> bool {
        self.0 & Self::WRITE != 0
    }

    /// Returns whether the page is inaccessible: not mapped, no access rights, special or poisoned.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub const fn is_error(self) -> bool {
        self.0 & Self::ERROR != 0
    }

    /// Returns the order of the CPU's mapping: 0 for a PTE, [`PMD_ORDER`] for a huge page.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub const fn map_order(self) -> u32 {
        ((self.0 >> Self::ORDER_SHIFT) & 0x1f) as u32
    }

    /// Returns the page frame number.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub const fn pfn(self) -> usize {
        self.0 & Self::PFN
    }

    /// Returns whether the page is in the memory of a device. Must be called on a validated result.
    pub(crate) fn is_device(self) -> bool {
        // SAFETY: The frame of a valid entry has a `struct page`: the core reports no others.
        self.is_valid() && !unsafe { bindings::rust_hmm_pfn_pgmap(self.pfn()) }.is_null()
    }

    /// Returns whether the page is in device-private memory. Must be called on a validated result.
    pub(crate) fn is_device_private(self) -> bool {
        if !self.is_valid() {
            return false;
        }
        // SAFETY: The frame of a valid entry has a `struct page`: the core reports no others.
        let map = unsafe { bindings::rust_hmm_pfn_pgmap(self.pfn()) };
        // SAFETY: The result is validated, so the page is in use, and its pagemap is not freed.
        !map.is_null() && unsafe { (*map).type_ } == bindings::memory_type_MEMORY_DEVICE_PRIVATE
    }

    /// Returns the entry for the virtual page number `page` in the same huge page. A small page
    /// keeps its entry.
    ///
    /// Also corrects the frame of the first page of a range, if `page` is that page: for a range
    /// that starts inside a huge page of device memory, the core reports the frames from the start
    /// of that huge page on (`hmm_vma_handle_absent_pmd()`, 7.2 and 7.3). Huge pages are aligned
    /// both virtually and physically, so that the correction is valid for all huge pages.
    // Not inlined into loops over small pages.
    #[inline(never)]
    const fn of_page(self, page: usize) -> Self {
        if !self.is_in_huge_page() {
            return self;
        }
        let offset = PMD_PAGES - 1;
        Self((self.0 & !offset) | (page & offset))
    }

    const fn is_in_huge_page(self) -> bool {
        self.is_valid() && self.map_order() == PMD_ORDER
    }

    /// Creates an entry from the raw value of `hmm_range_fault()`.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(crate) const fn from_raw(raw: usize) -> Self {
        Self(raw)
    }
}

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
/// be dropped with the lock of a [`NotifierTable`] held.
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
        Ok(Collected {
            notifier,
            seq,
            range,
            pfns,
        })
    }

    /// Returns whether `range` lies in a huge page of another device, judging by the snapshot
    /// `pfns`.
    ///
    /// A snapshot reports such a huge page as an error (`hmm_vma_handle_absent_pmd()`, 7.2 and
    /// 7.3), but a small page of another device as absent. The VMA shows whether the error means
    /// missing access rights or a missing mapping. A change of the VMA invalidates the range, so
    /// that the result is validated with the snapshot.
    fn is_huge_elsewhere(&self, range: PageRange, pfns: &[usize]) -> Result<bool> {
        if !pfns.iter().all(|raw| HmmPfn(*raw).is_error()) {
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
            for (index, pfn) in pfns.iter().map(|raw| HmmPfn(*raw)).enumerate() {
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

/// Result of a range fault that is not validated, and therefore cannot be read.
#[must_use = "it must be validated by `lock`"]
pub struct Collected<'a, S: NotifierOps> {
    notifier: &'a IntervalNotifier<S>,
    seq: Seq,
    range: PageRange,
    pfns: &'a [usize],
}

impl<'a, S: NotifierOps> Collected<'a, S> {
    /// Takes the lock of `member` and validates the result.
    ///
    /// # Errors
    ///
    /// - [`Retry`]: the range was invalidated concurrently, or a fatal signal is pending. The
    ///   caller must collect again.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn lock<M: NotifierTable<S>>(
        self,
        member: &'a M,
    ) -> Result<Validated<'a, M::Protected>, Retry> {
        if fatal_signal_pending() {
            return Err(Retry);
        }
        // INVARIANT: Validated under the lock.
        Ok(Validated {
            guard: self.notifier.lock_if_valid(member, self.seq)?,
            range: self.range,
            pfns: self.pfns,
        })
    }
}

/// Validated result of a range fault. It stays valid as long as this object holds the table lock.
///
/// # Invariants
///
/// `guard` is held since before the retry check, which succeeded.
pub struct Validated<'a, T> {
    guard: MutexGuard<'a, T>,
    range: PageRange,
    pfns: &'a [usize],
}

impl<T: Unpin> Validated<'_, T> {
    /// Returns the entry of the first page.
    pub(crate) fn first(&self) -> Option<HmmPfn> {
        let first = HmmPfn(*self.pfns.first()?);
        Some(first.of_page(self.range.start() >> PAGE_SHIFT))
    }

    /// Returns the data that the lock protects, the range, and a function that returns the entry of
    /// a page, whose address it gets. It must be called for the pages of the range in ascending
    /// order. If they belong to a huge page, it may be called for all pages of that.
    ///
    /// # Context
    ///
    /// Any. `self` holds the table lock.
    pub fn parts(&mut self) -> (&mut T, PageRange, impl FnMut(usize) -> HmmPfn + '_) {
        let first = self.pfns.first().map_or(HmmPfn(0), |raw| HmmPfn(*raw));
        // The range lies in one PMD: if the first page belongs to a huge page, all pages do, with
        // the same rights.
        let is_huge = first.is_in_huge_page();
        let mut pfns = self.pfns.iter();
        let entry_at = move |addr: usize| {
            if is_huge {
                first.of_page(addr >> PAGE_SHIFT)
            } else {
                pfns.next().map_or(HmmPfn(0), |raw| HmmPfn(*raw))
            }
        };
        (&mut *self.guard, self.range, entry_at)
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_pfn)]
mod tests {
    use super::*;

    #[test]
    fn frames_in_a_huge_page_are_corrected() {
        let huge = HmmPfn::VALID | ((PMD_ORDER as usize) << HmmPfn::ORDER_SHIFT);
        // As the core reports pages 160 and 161 of a huge page of device memory at frame 0x1200.
        let first = HmmPfn(huge | 0x1200);
        assert_eq!(first.of_page(0x7a00 + 160).pfn(), 0x1200 + 160);
        let fixed = HmmPfn(first.0 | HmmPfn::WRITE).of_page(0x7a00 + 161);
        assert_eq!(fixed.pfn(), 0x1200 + 161);
        assert!(fixed.is_writable() && fixed.map_order() == PMD_ORDER);
        // A correct frame is not changed, and neither is that of a small page.
        let right = HmmPfn(huge | (0x1200 + 7));
        assert_eq!(right.of_page(0x7a00 + 7).pfn(), 0x1200 + 7);
        let small = HmmPfn(HmmPfn::VALID | 0x1234);
        assert_eq!(small.of_page(0x7a00).pfn(), 0x1234);
    }

    #[test]
    fn arithmetic_matches_the_c_headers() {
        for order in [0usize, 9, 18, 31] {
            let raw = HmmPfn::VALID | HmmPfn::WRITE | (order << HmmPfn::ORDER_SHIFT) | 0x1234;
            let pfn = HmmPfn::from_raw(raw);
            // SAFETY: Arithmetic only.
            let c = unsafe { bindings::rust_hmm_kunit_map_order(raw) };
            assert_eq!(pfn.map_order(), c);
            assert_eq!(pfn.pfn(), 0x1234);
            assert!(pfn.is_valid() && pfn.is_writable() && !pfn.is_error());
        }
        assert!(HmmPfn::from_raw(HmmPfn::ERROR).is_error());
        assert!(!HmmPfn::default().is_valid());
    }
}
