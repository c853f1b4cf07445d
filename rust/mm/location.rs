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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageAddress {
    /// System memory.
    Dma(DmaAddress),
    /// Memory of the device.
    Device(DeviceAddress),
}
