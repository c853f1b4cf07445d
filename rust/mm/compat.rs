// SPDX-License-Identifier: GPL-2.0

//! Differences between the supported kernel series, 7.2 and 7.3.

use crate::{
    bindings,
    mm::addr::PageRange, //
};
use kernel::{
    error::to_result,
    mm::MmWithUser,
    prelude::*, //
};

#[cfg(not(hmm_series_7_3))]
use crate::mm::vma::MmapGuard;

/// Calls the form of `hmm_range_fault()` that takes the mmap lock itself and allows fault handlers
/// to drop it. Sets the sequence number of `range`.
///
/// # Safety
///
/// `range` must describe a valid buffer and a notifier that is inserted for `mm`; neither its lock
/// nor the mmap lock may be held.
#[cfg(hmm_series_7_3)]
pub(crate) unsafe fn range_fault_unlocked(
    range: &mut bindings::hmm_range,
    _mm: &MmWithUser,
) -> Result {
    // SAFETY: `range` is valid and neither lock is held, by the function's requirements.
    to_result(unsafe { bindings::hmm_range_fault_unlocked_timeout(range, 0) })
}

/// Emulates the function of 7.3. The range fault of 7.2 cannot handle mappings whose fault handler
/// drops the mmap lock. Therefore it is used for snapshots only. Pages that are missing in a
/// snapshot are faulted in one by one, until a snapshot is complete. Sets the sequence number of
/// `range`.
///
/// # Safety
///
/// `range` must describe a valid buffer and a notifier that is inserted for `mm`; neither its lock
/// nor the mmap lock may be held.
#[cfg(not(hmm_series_7_3))]
pub(crate) unsafe fn range_fault_unlocked(
    range: &mut bindings::hmm_range,
    mm: &MmWithUser,
) -> Result {
    let pages = PageRange::new(range.start, range.end)?;
    range.default_flags = 0;
    // Bounds the rounds, because concurrent reclaim or invalidations can remove pages again.
    for round in 0..=pages.pages() {
        // SAFETY: The notifier is inserted and its lock is not held, by the function's
        // requirements.
        range.notifier_seq = unsafe { bindings::mmu_interval_read_begin(range.notifier) };
        let guard = MmapGuard::lock(mm)?;
        // SAFETY: `range` is valid, by the function's requirements, and `guard` holds the mmap
        // lock.
        to_result(unsafe { bindings::hmm_range_fault(range) })?;
        drop(guard);
        // SAFETY: The buffer is as long as the range, by the function's requirements.
        let pfns = unsafe { core::slice::from_raw_parts(range.hmm_pfns, pages.pages()) };
        let mut complete = true;
        for (index, pfn) in pfns.iter().enumerate() {
            // A snapshot reports huge pages of other devices and huge migration entries as errors.
            // A fault resolves these. An error that remains after two rounds of faults is
            // permanent.
            if pfn & bindings::hmm_pfn_flags_HMM_PFN_ERROR != 0 && round > 1 {
                return Err(EFAULT);
            }
            if pfn & bindings::hmm_pfn_flags_HMM_PFN_VALID == 0 {
                complete = false;
                fault_in(mm, pages.address(index), 0, true)?;
            }
        }
        if complete {
            return Ok(());
        }
    }
    Err(EBUSY)
}

/// Finds the cause of an `EFAULT` of a range fault. On 7.3 the error is exact.
///
/// # Errors
///
/// - `EFAULT`: always
#[cfg(hmm_series_7_3)]
pub(crate) fn fault_error(_mm: &MmWithUser, _range: PageRange, _write: bool) -> Result {
    Err(EFAULT)
}

/// Finds the cause of an `EFAULT` of a range fault. Returns `Ok` if the range fault should be tried
/// again.
///
/// 7.2 returns `EFAULT` also for lack of memory and for a page with a memory error. A fault of each
/// page returns the cause. If all these faults succeed, the lack of memory was temporary, or the
/// memory is special; the next range fault distinguishes the two.
///
/// # Errors
///
/// Those of `fixup_user_fault()`.
#[cfg(not(hmm_series_7_3))]
pub(crate) fn fault_error(mm: &MmWithUser, range: PageRange, write: bool) -> Result {
    let flags = if write {
        bindings::fault_flag_FAULT_FLAG_WRITE
    } else {
        0
    };
    (0..range.pages()).try_for_each(|index| fault_in(mm, range.address(index), flags, false))
}

/// Faults one page in, as a CPU access would. With `wait`, the fault handler may drop the mmap lock
/// and wait, as that of userfaultfd does. Without it, such a fault fails with `EFAULT`.
#[cfg(not(hmm_series_7_3))]
fn fault_in(mm: &MmWithUser, addr: usize, flags: u32, wait: bool) -> Result {
    let guard = MmapGuard::lock(mm)?;
    let mut unlocked = false;
    let may_unlock = if wait {
        &raw mut unlocked
    } else {
        core::ptr::null_mut()
    };
    // SAFETY: `mm` is in use and its mmap lock is held. If `may_unlock` is not null, it is valid
    // for a write, and the fault may drop the lock, which it takes again before it returns.
    let ret = unsafe { bindings::fixup_user_fault(mm.as_raw(), addr, flags, may_unlock) };
    drop(guard);
    to_result(ret)
}
