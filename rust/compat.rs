// SPDX-License-Identifier: GPL-2.0

//! What differs between the supported kernel series, 7.2 and 7.3.

use crate::bindings;
use kernel::{error::to_result, mm::MmWithUser, prelude::*};

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

/// As above. 7.2 has no such function: its range fault cannot serve mappings whose handler drops
/// the lock, and says `EFAULT`. So the page it stopped at is faulted in by `fixup_user_fault()`.
///
/// # Safety
///
/// As above.
#[cfg(not(hmm_series_7_3))]
pub(crate) unsafe fn range_fault_unlocked(
    range: &mut bindings::hmm_range,
    mm: &MmWithUser,
) -> Result {
    use crate::mm::{addr::PageRange, space::MmapGuard};

    let pages = PageRange::new(range.start, range.end)?;
    // Each page may need one step; more than one a page is a fight that we do not win.
    for _ in 0..=pages.pages() {
        // SAFETY: The notifier is inserted.
        range.notifier_seq = unsafe { bindings::mmu_interval_read_begin(range.notifier) };
        let guard = MmapGuard::lock(mm)?;
        // SAFETY: By the function's requirements; the mmap lock is held.
        let ret = unsafe { bindings::hmm_range_fault(range) };
        drop(guard);
        if ret == 0 {
            return Ok(());
        }
        if ret != EFAULT.to_errno() {
            return to_result(ret);
        }
        if !fault_in_missing(range, pages, mm)? {
            return Err(EFAULT);
        }
    }
    Err(EBUSY)
}

/// Faults in the first page of `range` that a snapshot does not show. `false` if there is none.
#[cfg(not(hmm_series_7_3))]
fn fault_in_missing(
    range: &bindings::hmm_range,
    pages: crate::mm::addr::PageRange,
    mm: &MmWithUser,
) -> Result<bool> {
    use crate::mm::space::MmapGuard;

    for index in 0..pages.pages() {
        let addr = pages.address(index);
        let mut pfn = 0usize;
        let mut one = bindings::hmm_range {
            start: addr,
            end: addr + kernel::page::PAGE_SIZE,
            hmm_pfns: &mut pfn,
            default_flags: 0,
            pfn_flags_mask: 0,
            ..*range
        };
        let guard = MmapGuard::lock(mm)?;
        // SAFETY: `one` describes one page and our local buffer; the mmap lock is held.
        let ret = unsafe { bindings::hmm_range_fault(&mut one) };
        if ret != 0 && ret != EBUSY.to_errno() {
            return to_result(ret).map(|()| false);
        }
        if pfn & bindings::hmm_pfn_flags_HMM_PFN_ERROR != 0 {
            return Err(EFAULT);
        }
        if ret == 0 && pfn & bindings::hmm_pfn_flags_HMM_PFN_VALID == 0 {
            let mut unlocked = false;
            // SAFETY: The address space is in use and its mmap lock is held. With `unlocked` the
            // fault may drop it and takes it again.
            to_result(unsafe { bindings::fixup_user_fault(mm.as_raw(), addr, 0, &mut unlocked) })?;
            drop(guard);
            return Ok(true);
        }
    }
    Ok(false)
}
