// SPDX-License-Identifier: GPL-2.0

//! One entry of the result of `hmm_range_fault()`.

use crate::{
    bindings,
    mm::addr::{
        PMD_ORDER,
        PMD_PAGES, //
    }, //
};

/// One entry of the result: a page frame number with flags. See `enum hmm_pfn_flags`.
///
/// # Examples
///
/// ```
/// use rust_hmm::mm::range_fault::HmmPfn;
///
/// /// Returns the frame of a present page.
/// fn frame(entry: HmmPfn) -> Option<usize> {
///     entry.is_valid().then(|| entry.pfn())
/// }
///
/// assert_eq!(frame(HmmPfn::default()), None);
/// ```
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
    pub(super) const fn of_page(self, page: usize) -> Self {
        if !self.is_in_huge_page() {
            return self;
        }
        let offset = PMD_PAGES - 1;
        Self((self.0 & !offset) | (page & offset))
    }

    /// Returns whether the CPU maps the page by a huge page.
    pub(super) const fn is_in_huge_page(self) -> bool {
        self.is_valid() && self.map_order() == PMD_ORDER
    }

    /// Creates an entry from the raw value of `hmm_range_fault()`.
    pub(super) const fn from_raw(raw: usize) -> Self {
        Self(raw)
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
mod tests;
