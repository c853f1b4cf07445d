// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_bound_resources
//! Resources of a bound device can be created only in a bus callback of the driver bound to it.

use kernel::{
    device::Bound,
    pci,
    prelude::*,
    sync::Arc, //
};
use rust_hmm::mm::{
    dma::DmaDevice,
    pci::{
        Interrupt,
        IrqHandler,
        PciMemory, //
    }, //
};

/// An interrupt handler that does nothing.
pub struct Handler;

impl IrqHandler for Handler {
    fn handle_irq(&self) {}
}

pub fn dma(device: &pci::Device) -> Result<Arc<DmaDevice>> {
    DmaDevice::bound(device.as_ref(), 32)
    //~^ ERROR E0308: mismatched types: expected `&Device<Core<'_>>`, found `&Device`
}

pub fn memory(device: &pci::Device) -> Result<Arc<PciMemory>> {
    PciMemory::claim(device, 0, 2)
    //~^ ERROR E0308: mismatched types: expected `&Device<Core<'_>>`, found `&Device`
}

pub fn interrupt(device: &pci::Device, handler: Arc<Handler>) -> Result<Interrupt<Handler>> {
    Interrupt::new(device, c"handler", handler)
    //~^ ERROR E0308: mismatched types: expected `&Device<Core<'_>>`, found `&Device`
}

/// Not later either, because the driver may be about to be unbound.
pub fn later(device: &pci::Device<Bound>) -> Result<Arc<PciMemory>> {
    PciMemory::claim(device, 0, 2)
    //~^ ERROR E0308: mismatched types: expected `&Device<Core<'_>>`, found `&Device<Bound>`
}
