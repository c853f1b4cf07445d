// SPDX-License-Identifier: GPL-2.0

//! The memory of the page tables, which a parameter of the module selects.

#[cfg(CONFIG_PCI)]
mod bar;

#[cfg(CONFIG_PCI)]
pub(crate) use bar::BarDriver;

use kernel::{
    prelude::*,
    sync::Arc, //
};
#[cfg(CONFIG_PCI)]
use rust_hmm::mm::bar_tables::BarTables;
use rust_hmm::mm::{
    dma::DmaDevice,
    table_memory::TableMemory, //
};

/// Bus address at which engines find the part of device memory that has the tables. It is behind a
/// base address register (BAR), and the other part, at [`VRAM`](crate::format::VRAM), is not.
#[cfg(CONFIG_PCI)]
pub(crate) const TABLES: u64 = 1 << 43;

/// Memory of the page tables.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Pages of the kernel.
    Plain,
    /// Coherent DMA memory of the device.
    Coherent,
    /// Device memory.
    Vram,
}

impl Place {
    /// By the value of the parameter. `EINVAL`, and `ENODEV` for [`Self::Vram`] in a kernel
    /// without PCI.
    pub(crate) fn new(number: u64) -> Result<Self> {
        match number {
            0 => Ok(Self::Plain),
            1 => Ok(Self::Coherent),
            2 if cfg!(CONFIG_PCI) => Ok(Self::Vram),
            2 => Err(ENODEV),
            _ => Err(EINVAL),
        }
    }
}

/// Memory of the page tables of a device.
#[derive(Clone)]
pub(crate) enum Tables {
    Plain,
    Coherent(Arc<DmaDevice>),
    #[cfg(CONFIG_PCI)]
    Bar(Arc<BarTables>),
}

impl Tables {
    /// The memory for the library.
    pub(crate) fn memory(&self) -> TableMemory {
        match self {
            Self::Plain => TableMemory::plain(),
            Self::Coherent(device) => TableMemory::coherent(device),
            #[cfg(CONFIG_PCI)]
            Self::Bar(tables) => TableMemory::in_bar(tables),
        }
    }
}
