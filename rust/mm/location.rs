// SPDX-License-Identifier: GPL-2.0

//! Memory and addresses of pages, as CPUs and devices use them.

use super::{
    device_pages::DeviceRange,
    dma::{
        DeviceAddress,
        DmaAddress, //
    },
    folio::{
        CpuPages,
        CpuPagesMut, //
    }, //
};

/// Memory of a page for a read.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::page::PAGE_SIZE;
/// use rust_hmm::mm::folio::SharedBytes;
/// use rust_hmm::mm::location::PageMemory;
///
/// /// Reads from the page of a translation, in system memory or in the device's own.
/// fn read(page: &PageMemory<'_>, vram: &SharedBytes, offset: usize, to: &mut [u8]) -> Result {
///     match page {
///         PageMemory::Cpu(pages) => pages.read(offset, to),
///         PageMemory::Device(range) => vram.read(range.first * PAGE_SIZE + offset, to),
///     }
/// }
/// ```
pub enum PageMemory<'a> {
    /// Memory that the CPU can address.
    Cpu(CpuPages<'a>),
    /// Device-private memory. If the device has several tiles,
    /// [`Memory::locate`](crate::memory::Memory::locate) returns the location within a tile.
    Device(DeviceRange),
}

/// Memory of a page for a write.
pub enum PageMemoryMut<'a> {
    /// Memory that the CPU can address.
    Cpu(CpuPagesMut<'a>),
    /// Device-private memory. If the device has several tiles,
    /// [`Memory::locate`](crate::memory::Memory::locate) returns the location within a tile.
    Device(DeviceRange),
}

/// Address of a page as the device uses it.
///
/// # Examples
///
/// ```
/// use rust_hmm::mm::location::PageAddress;
///
/// /// Bit of the engine's descriptor that selects system memory.
/// const SYSTEM: u64 = 1 << 63;
///
/// fn descriptor(address: PageAddress) -> u64 {
///     match address {
///         PageAddress::Dma(address) => address.raw() | SYSTEM,
///         PageAddress::Device(address) => address.raw(),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageAddress {
    /// System memory.
    Dma(DmaAddress),
    /// Memory of the device.
    Device(DeviceAddress),
}
