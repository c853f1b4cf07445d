// SPDX-License-Identifier: GPL-2.0

//! Memory type of devices that have no memory.

use super::{
    CopyJob,
    MemoryOps, //
};

/// Memory type of a device without memory: [`Device::Memory`](crate::mirror::Device::Memory). No
/// value of the type exists, so that no such memory can be created.
///
/// # Examples
///
/// ```
/// use rust_hmm::memory::Memory;
/// use rust_hmm::memory::NoMemory;
///
/// /// Returned by `Device::memory()` of a device without memory.
/// fn memory() -> Option<&'static Memory<NoMemory>> {
///     None
/// }
/// ```
pub enum NoMemory {}

impl MemoryOps for NoMemory {
    fn copy(&self, _job: CopyJob) {
        match *self {}
    }
}
