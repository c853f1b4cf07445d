// SPDX-License-Identifier: GPL-2.0

//! Callbacks of device pages, which their owner implements.

use super::{
    CpuFault,
    DevicePages,
    DeviceRange,
    FaultError, //
};
use kernel::prelude::*;

/// Callbacks of device pages.
///
/// The type is `'static`, because the kernel calls it until the pages are dropped, and
/// `mem::forget` can prevent the drop.
///
/// # Examples
///
/// ```
/// use rust_hmm::mm::device_pages::CpuFault;
/// use rust_hmm::mm::device_pages::DevicePageOps;
/// use rust_hmm::mm::device_pages::DevicePages;
/// use rust_hmm::mm::device_pages::FaultError;
///
/// /// Memory whose contents are lost when the CPU accesses them.
/// struct Scratch;
///
/// impl DevicePageOps for Scratch {
///     fn migrate_to_ram(_: &DevicePages<Self>, _: CpuFault<'_>) -> Result<(), FaultError> {
///         Err(FaultError::Lost)
///     }
/// }
/// ```
pub trait DevicePageOps: Send + Sync + Sized + 'static {
    /// Handles a CPU fault: migrates the page of `fault` to system memory.
    ///
    /// After `Ok` the CPU retries the access.
    ///
    /// # Errors
    ///
    /// - [`FaultError`]: the page was not migrated. The variant determines the result of the CPU
    ///   fault.
    ///
    /// # Context
    ///
    /// The mmap lock is held for reading and the page is locked. May sleep, but must not wait for
    /// invalidations (`read_begin`).
    fn migrate_to_ram(pages: &DevicePages<Self>, fault: CpuFault<'_>) -> Result<(), FaultError>;

    /// Called before the pages of `range`, a folio, become free.
    ///
    /// # Context
    ///
    /// Any, including interrupts. Must not sleep.
    fn freed(pages: &DevicePages<Self>, range: DeviceRange) {
        let _ = (pages, range);
    }

    /// Called after the pages of `range`, a folio, have become free. A full barrier precedes the
    /// call. The pages may already be allocated again.
    ///
    /// # Context
    ///
    /// As [`Self::freed`].
    fn pages_released(pages: &DevicePages<Self>, range: DeviceRange) {
        let _ = (pages, range);
    }

    /// Called before the pages of `range` are added, to allocate metadata for them.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available; the pages are not added.
    ///
    /// # Context
    ///
    /// May sleep. Must not add or remove device memory.
    fn growing(pages: &DevicePages<Self>, range: DeviceRange) -> Result {
        let _ = (pages, range);
        Ok(())
    }
}
