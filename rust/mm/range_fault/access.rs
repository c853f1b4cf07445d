// SPDX-License-Identifier: GPL-2.0

//! Requirements of a range fault for the pages that it collects.

use crate::bindings;

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
    /// Returns the flags that `hmm_range_fault()` requires of each page.
    pub(super) fn flags(self) -> usize {
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
