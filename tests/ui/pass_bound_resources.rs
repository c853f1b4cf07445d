// SPDX-License-Identifier: GPL-2.0
//~ PASS
//! Resources of a bound device may be kept or leaked: they are revoked when the device is unbound.

#![forbid(unsafe_code)]

use kernel::{
    device::Core,
    pci,
    prelude::*,
    sync::Arc, //
};
use rust_hmm::mm::{
    dma::{
        DmaBuffer,
        DmaDevice, //
    },
    pci::{
        Interrupt,
        IrqHandler,
        PciMemory,
        PeerMemory, //
    }, //
};

/// An interrupt handler that does nothing.
pub struct Handler;

impl IrqHandler for Handler {
    fn handle_irq(&self) {}
}

/// Resources kept in an open file, which may outlive the device's binding.
pub struct Kept {
    dma: Arc<DmaDevice>,
    memory: Arc<PciMemory>,
    buffer: DmaBuffer,
    interrupt: Interrupt<Handler>,
}

/// Called by a driver's `probe`.
pub fn probe(device: &pci::Device<Core<'_>>) -> Result<Kept> {
    let dma = DmaDevice::bound(device.as_ref(), 32)?;
    let memory = PciMemory::claim(device, 0, 2)?;
    core::mem::forget(PeerMemory::map(&memory, &dma)?);
    core::mem::forget(DmaBuffer::new(&dma, 1)?);
    let handler = Arc::new(Handler, GFP_KERNEL)?;
    Ok(Kept {
        buffer: DmaBuffer::new(&dma, 1)?,
        interrupt: Interrupt::new(device, c"handler", handler)?,
        dma,
        memory,
    })
}

impl Kept {
    /// Whether the device is still bound.
    pub fn is_there(&self) -> bool {
        let _interrupt = &self.interrupt;
        self.buffer.read(0, &mut [0; 4]).is_ok() && self.memory.distance(&self.dma).is_some()
    }
}
