// SPDX-License-Identifier: GPL-2.0

//! What differs between the supported kernel series, 7.2 and 7.3.

use crate::{bindings, mm::addr::PageRange};
use kernel::{error::to_result, mm::MmWithUser, prelude::*};

#[cfg(not(hmm_series_7_3))]
use crate::mm::space::MmapGuard;

/// `hmm_range_fault()` in the form that takes the mmap lock itself, and lets fault handlers drop
/// it. Fills in the sequence number.
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
    // SAFETY: By the function's requirements.
    to_result(unsafe { bindings::hmm_range_fault_unlocked_timeout(range, 0) })
}

/// As above. 7.2 has no such function, and its range fault cannot serve mappings whose handler drops
/// the lock. So nothing is faulted by it: what a snapshot does not show is faulted in page by page,
/// until a snapshot shows everything.
///
/// # Safety
///
/// As above.
#[cfg(not(hmm_series_7_3))]
pub(crate) unsafe fn range_fault_unlocked(
    range: &mut bindings::hmm_range,
    mm: &MmWithUser,
) -> Result {
    let pages = PageRange::new(range.start, range.end)?;
    range.default_flags = 0;
    // Once more than there are pages is a fight that we do not win.
    for round in 0..=pages.pages() {
        // SAFETY: The notifier is inserted, and no lock is held.
        range.notifier_seq = unsafe { bindings::mmu_interval_read_begin(range.notifier) };
        let guard = MmapGuard::lock(mm)?;
        // SAFETY: By the function's requirements; the mmap lock is held.
        to_result(unsafe { bindings::hmm_range_fault(range) })?;
        drop(guard);
        // SAFETY: The buffer is as long as the range, by the function's requirements.
        let pfns = unsafe { core::slice::from_raw_parts(range.hmm_pfns, pages.pages()) };
        let mut complete = true;
        for (index, pfn) in pfns.iter().enumerate() {
            // Huge pages of other devices, and such that migrate, are errors to a snapshot: a fault
            // ends that, unless it is one for good.
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

/// Why a range fault said `EFAULT`. `Ok` if it is worth another try.
///
/// # Errors
///
/// Those of a fault.
#[cfg(hmm_series_7_3)]
pub(crate) fn fault_error(_mm: &MmWithUser, _range: PageRange, _write: bool) -> Result {
    Err(EFAULT)
}

/// As above. 7.2 says `EFAULT` also if there was no memory for a page, and if the contents of one are
/// lost to a memory error: so fault page by page, which tells. Where that helps the lack was one of
/// the moment, or the memory is special; the next try tells these apart.
#[cfg(not(hmm_series_7_3))]
pub(crate) fn fault_error(mm: &MmWithUser, range: PageRange, write: bool) -> Result {
    let flags = if write {
        bindings::fault_flag_FAULT_FLAG_WRITE
    } else {
        0
    };
    (0..range.pages()).try_for_each(|index| fault_in(mm, range.address(index), flags, false))
}

/// Faults one page in, as a CPU access would. With `wait` the handler may drop the mmap lock, as that
/// of userfaultfd does, which else says `EFAULT`.
#[cfg(not(hmm_series_7_3))]
fn fault_in(mm: &MmWithUser, addr: usize, flags: u32, wait: bool) -> Result {
    let guard = MmapGuard::lock(mm)?;
    let mut unlocked = false;
    let may_unlock = if wait {
        &raw mut unlocked
    } else {
        core::ptr::null_mut()
    };
    // SAFETY: The address space is in use and its mmap lock is held. With a place for `unlocked` the
    // fault may drop it, and takes it again before it returns.
    let ret = unsafe { bindings::fixup_user_fault(mm.as_raw(), addr, flags, may_unlock) };
    drop(guard);
    to_result(ret)
}
