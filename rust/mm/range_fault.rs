// SPDX-License-Identifier: GPL-2.0

//! Range faults: what the CPU's page table says, in a form that can only be read when it is true.
//!
//! [`AddressSpace::collect`] gives a [`Collected`], whose page frame numbers cannot be read.
//! [`Collected::lock`] takes the lock of a device's page table and asks whether anything changed meanwhile; only
//! the [`Validated`] that it returns gives them out, together with that table.
//!
//! C header: [`include/linux/hmm.h`](srctree/include/linux/hmm.h)

pub use super::notifier::Retry;
use super::{
    addr::{PageRange, PMD_ORDER, PMD_PAGES, PMD_SIZE},
    notifier::{Cookie, IntervalNotifier, Member, Seq, Subscriber},
    pin::Accounted,
    space::{fatal_signal_pending, Charge, MmapGuard},
};
use crate::{
    bindings, compat,
    inject::{fails, Point},
};
use core::ptr;
use kernel::{
    mm::{virt::flags, Mm, MmWithUser},
    page::PAGE_SHIFT,
    prelude::*,
    sync::{aref::ARef, lock::mutex::MutexGuard}, //
};

/// What the device wants to do with the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Tell what is there; fault nothing in.
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

    /// Whether there is a page; else a fault might bring one.
    #[inline]
    pub const fn is_valid(self) -> bool {
        self.0 & Self::VALID != 0
    }

    /// Whether the page may be written.
    #[inline]
    pub const fn is_writable(self) -> bool {
        self.0 & Self::WRITE != 0
    }

    /// Whether the page can never be accessed: no mapping, no rights, special or poisoned.
    #[inline]
    pub const fn is_error(self) -> bool {
        self.0 & Self::ERROR != 0
    }

    /// Order of the CPU's mapping: 0 for 4 KiB, 9 for 2 MiB.
    #[inline]
    pub const fn map_order(self) -> u32 {
        ((self.0 >> Self::ORDER_SHIFT) & 0x1f) as u32
    }

    /// The page frame number.
    #[inline]
    pub const fn pfn(self) -> usize {
        self.0 & Self::PFN
    }

    /// The right frame of a page in a huge page.
    ///
    /// For a range that starts inside of a huge page of device memory, the core reports the frames
    /// from the start of that page on (`hmm_vma_handle_absent_pmd()`, 7.2 and 7.3). `first` is what
    /// it said of the first page of the range, which lies in the same huge page, `page` the number
    /// of the virtual page. Huge pages are aligned in both, so that this is right for all of them.
    // Not inlined into loops over small pages.
    #[inline(never)]
    const fn in_huge_page(self, first: usize, page: usize) -> Self {
        if !self.is_valid() || self.map_order() != PMD_ORDER {
            return self;
        }
        let offset = PMD_PAGES - 1;
        Self((self.0 & !Self::PFN) | (first & !offset) | (page & offset))
    }

    /// Whether the page is in the memory of a device. To be called on a validated result.
    pub(crate) fn is_device(self) -> bool {
        // SAFETY: A valid entry names a frame that has a `struct page`, for only such are reported.
        self.is_valid() && !unsafe { bindings::rust_hmm_pfn_pgmap(self.pfn()) }.is_null()
    }

    /// Whether the page is in memory of a device that the CPU cannot address. To be called on a
    /// validated result.
    pub(crate) fn is_device_private(self) -> bool {
        if !self.is_valid() {
            return false;
        }
        // SAFETY: A valid entry names a frame that has a `struct page`, for only such are reported.
        let map = unsafe { bindings::rust_hmm_pfn_pgmap(self.pfn()) };
        // SAFETY: That of a page in use, as the result is validated, and so is not freed.
        !map.is_null() && unsafe { (*map).type_ } == bindings::memory_type_MEMORY_DEVICE_PRIVATE
    }

    /// The same of page `page` of the virtual pages of the same huge page.
    #[inline]
    pub(crate) const fn of_page(self, page: usize) -> Self {
        self.in_huge_page(self.pfn(), page)
    }

    /// What the kernel would have said so.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(crate) const fn from_raw(raw: usize) -> Self {
        Self(raw)
    }
}

/// Room for the result of one range fault: [`PMD_PAGES`] entries. Reuse it. Its entries are cleared where they are used
/// only: with one page for 8 bytes that is a part of a fault's cost.
pub struct PfnBuffer(KVec<usize>);

impl PfnBuffer {
    /// Allocates a buffer. Context: may sleep.
    pub fn new() -> Result<Self> {
        Ok(Self(KVec::with_capacity(PMD_PAGES, GFP_KERNEL)?))
    }
}

/// An address space that is kept from being torn down, to collect from.
///
/// Context: dropping it may sleep and may tear the address space down, which invalidates; so never drop it with the lock of
/// a [`Member`] held.
pub struct AddressSpace {
    mm: ARef<MmWithUser>,
}

impl AddressSpace {
    /// Takes a reference of `mm`.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the process is gone.
    pub fn new(mm: &Mm) -> Result<Self> {
        if fails(Point::Space) {
            return Err(EFAULT);
        }
        let mm = mm.mmget_not_zero().ok_or(EFAULT)?;
        Ok(Self { mm })
    }

    /// Has the address space's control group pay for what its mirror needs, whoever allocates it.
    pub(crate) fn charge(&self) -> Charge {
        Charge::to(&self.mm)
    }

    /// The address space.
    pub(crate) fn mm(&self) -> &MmWithUser {
        &self.mm
    }

    /// Counts `pages` as locked by the process; see [`Accounted::new`].
    ///
    /// # Errors
    ///
    /// `ENOMEM` beyond the limit.
    pub(crate) fn account(&self, pages: usize) -> Result<Accounted> {
        Accounted::new(&self.mm, pages)
    }

    /// Waits for the mmap lock; see [`MmapGuard::lock`].
    pub fn mmap_lock(&self) -> Result<MmapGuard<'_>> {
        MmapGuard::lock(&self.mm)
    }

    /// The same for the library itself; see [`MmapGuard::lock_here`].
    pub(crate) fn mmap_lock_here(&self) -> Result<MmapGuard<'_>> {
        MmapGuard::lock_here(&self.mm)
    }

    /// Asks the CPU's page table for the pages of `range`, which must not cross a 2 MiB border, and of which `notifier`
    /// is told.
    ///
    /// Device pages that belong to `owner` are reported; those of others are brought back first.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it crosses such a border, or `notifier` is not told of all of it. `EFAULT`: no mapping, no read access, or special pages. `EPERM`: not writable.
    /// `ENOMEM`, `EHWPOISON`: as the fault said (7.3). `EBUSY`: it changed meanwhile; try again.
    /// `EINTR`: killed. Context: may sleep; no lock may be held.
    pub fn collect<'a, S: Subscriber>(
        &self,
        notifier: &'a IntervalNotifier<S>,
        range: PageRange,
        access: Access,
        owner: Cookie,
        buffer: &'a mut PfnBuffer,
    ) -> Result<Collected<'a, S>> {
        let is_told = notifier.range().intersect(&range) == Some(range);
        if !is_told || range.start() / PMD_SIZE != (range.end() - 1) / PMD_SIZE {
            return Err(EINVAL);
        }
        buffer.0.clear();
        // There is room: the range has at most `PMD_PAGES`.
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
        if access == Access::ReadUnlocked {
            // SAFETY: `raw` describes our buffer and an inserted notifier of this address space.
            unsafe { compat::range_fault_unlocked(&mut raw, &self.mm)? };
        } else {
            // SAFETY: As above.
            let mut result = unsafe { self.range_fault(notifier, &mut raw) };
            if result == Err(EFAULT) && access != Access::Snapshot {
                compat::fault_error(&self.mm, range, access == Access::Write)?;
                // SAFETY: As above.
                result = unsafe { self.range_fault(notifier, &mut raw) };
            }
            result?;
        }
        if access == Access::Snapshot && self.is_huge_elsewhere(range, pfns)? {
            pfns.fill(0);
        }
        Ok(Collected {
            notifier,
            seq: Seq(raw.notifier_seq),
            range,
            pfns,
        })
    }

    /// Whether `range` lies in a huge page of another device, going by `pfns`.
    ///
    /// To a snapshot the core says that such a page cannot be accessed (`hmm_vma_handle_absent_pmd()`, 7.2 and 7.3),
    /// where it says of small ones that there is nothing. That it is neither the lack of a right nor of a page is told
    /// by the mapping; whatever changes that invalidates.
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
    unsafe fn range_fault<S: Subscriber>(
        &self,
        notifier: &IntervalNotifier<S>,
        raw: &mut bindings::hmm_range,
    ) -> Result {
        raw.notifier_seq = notifier.read_begin().0;
        let _guard = self.mmap_lock_here()?;
        // SAFETY: By the function's requirements; the notifier is inserted, and the mmap lock held.
        kernel::error::to_result(unsafe { bindings::hmm_range_fault(raw) })
    }

    /// Makes the first page of `range`, of the device's own memory, writable where it is, if it has no other user; else as
    /// [`Self::fault_in_writable`]. Other such pages of `range`, which must lie within 2 MiB, become writable with it.
    ///
    /// A page that lost write access only by a change of protection, as NUMA balancing makes of all memory, stays on the
    /// device so.
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
        // SAFETY: The mapping is valid and has the addresses, which are in one table, and the mmap lock is held.
        if unsafe { bindings::rust_hmm_vma_make_writable(vma.as_ptr(), addr, end) } {
            return Ok(());
        }
        drop(guard);
        self.fault_in_writable(addr)
    }

    /// Makes the page at `addr` writable as a CPU write would: brings it back from the device and
    /// breaks copy-on-write.
    ///
    /// Needed because a range fault does not enforce a write request on the caller's own device
    /// pages. One call makes one step; collect again to see whether it was the last.
    ///
    /// # Errors
    ///
    /// `EPERM`: no right to write. `EFAULT`: not mapped, or the device has lost the page. `ENOMEM`,
    /// `EHWPOISON`, `EINTR`.
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

/// A result that may be out of date by now, and so cannot be read.
#[must_use = "it must be validated by `lock`"]
pub struct Collected<'a, S: Subscriber> {
    notifier: &'a IntervalNotifier<S>,
    seq: Seq,
    range: PageRange,
    pfns: &'a [usize],
}

impl<'a, S: Subscriber> Collected<'a, S> {
    /// Takes the lock of `member` and validates the result.
    ///
    /// # Errors
    ///
    /// [`Retry`] if an invalidation came meanwhile: collect again.
    pub fn lock<M: Member<S>>(self, member: &'a M) -> Result<Validated<'a, M::Protected>, Retry> {
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

/// A result that is true as long as this exists.
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
    /// The first page.
    pub(crate) fn first(&self) -> Option<HmmPfn> {
        let first = HmmPfn(*self.pfns.first()?);
        Some(first.of_page(self.range.start() >> PAGE_SHIFT))
    }

    /// What the lock protects, with the address and the page of each entry.
    pub fn parts(&mut self) -> (&mut T, PageRange, impl Iterator<Item = HmmPfn> + '_) {
        let first = self.pfns.first().map_or(HmmPfn(0), |raw| HmmPfn(*raw));
        // All of the range is within 2 MiB: if the first page is one of a huge page, all are.
        let is_huge = first.map_order() == PMD_ORDER;
        let mut next = self.range.start() >> PAGE_SHIFT;
        let pfns = self.pfns.iter().map(move |raw| {
            let page = next;
            next = next.wrapping_add(1);
            match is_huge {
                true => HmmPfn(*raw).in_huge_page(first.pfn(), page),
                false => HmmPfn(*raw),
            }
        });
        (&mut *self.guard, self.range, pfns)
    }
}

#[kunit_tests(rust_hmm_pfn)]
mod tests {
    use super::*;

    #[test]
    fn frames_in_a_huge_page_are_put_right() {
        let huge = HmmPfn::VALID | ((PMD_ORDER as usize) << HmmPfn::ORDER_SHIFT);
        // As the core reports pages 160 and 161 of a huge page of device memory at frame 0x1200.
        let first = HmmPfn(huge | 0x1200);
        assert_eq!(first.in_huge_page(0x1200, 0x7a00 + 160).pfn(), 0x1200 + 160);
        let second = HmmPfn(huge | 0x1201 | HmmPfn::WRITE);
        let fixed = second.in_huge_page(0x1200, 0x7a00 + 161);
        assert_eq!(fixed.pfn(), 0x1200 + 161);
        assert!(fixed.is_writable() && fixed.map_order() == PMD_ORDER);
        // What was right stays so, and small pages are left alone.
        let right = HmmPfn(huge | (0x1200 + 7));
        assert_eq!(right.in_huge_page(0x1200 + 6, 0x7a00 + 7).pfn(), 0x1200 + 7);
        let small = HmmPfn(HmmPfn::VALID | 0x1234);
        assert_eq!(small.in_huge_page(0x1200, 0x7a00).pfn(), 0x1234);
    }

    #[test]
    fn arithmetic_is_that_of_the_headers() {
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
