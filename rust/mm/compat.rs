// SPDX-License-Identifier: GPL-2.0

//! Differences between the supported kernel series, 7.2 and 7.3.

use crate::{
    bindings,
    mm::{
        addr::PageRange,
        vma::MmapGuard, //
    }, //
};
use kernel::{
    error::to_result,
    mm::MmWithUser,
    prelude::*, //
};

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
pub(super) fn fault_in(mm: &MmWithUser, addr: usize, flags: u32, wait: bool) -> Result {
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
