// SPDX-License-Identifier: GPL-2.0
//~ PASS
//! The driver of the README, which shows the lines between the two marks.

#![forbid(unsafe_code)]

use kernel::{
    mm::MmWithUser,
    prelude::*,
    sync::Arc, //
};
use rust_hmm::{
    memory::{
        CopyJob,
        Memory,
        MemoryOps, //
    },
    mirror::{
        Device,
        Mirror, //
    },
    mm::{
        addr::PageRange,
        range_fault::Access, //
    },
    pgtable::Radix4, //
};

/// An invalidation in the queue of the card.
pub struct Ticket;

pub struct Tlb;

impl Tlb {
    fn invalidate(&self, _range: PageRange) -> Ticket {
        Ticket
    }

    fn wait(&self, _ticket: Ticket) {}
}

pub struct CopyEngine;

impl CopyEngine {
    fn queue(&self, job: CopyJob) {
        job.complete(Err(EIO));
    }
}

pub struct Vram {
    engine: CopyEngine,
}

#[pin_data]
pub struct Card {
    #[pin]
    memory: Memory<Vram>,
    tlb: Tlb,
}

pub struct Gpu(Arc<Card>);

// README: begin
impl MemoryOps for Vram {
    fn copy(&self, job: CopyJob) {
        self.engine.queue(job); // calls job.complete(result) when it is done
    }
}

impl Device for Gpu {
    type Memory = Vram;
    type Format = Radix4; // of the device page table
    type Walker = ();
    type Flush = Ticket;

    fn memory(&self) -> Option<&Memory<Vram>> {
        Some(&self.0.memory)
    }
    fn flush_start(&self, range: PageRange) -> Ticket {
        self.0.tlb.invalidate(range)
    }
    fn flush_wait(&self, ticket: Ticket) {
        self.0.tlb.wait(ticket);
    }
}

fn device_fault(mirror: &Mirror<Gpu>, range: PageRange) -> Result {
    mirror.migrate(range).to_device()?; // best effort
    mirror.fault(range, Access::Write) // maps the pages where they are
}
// README: end

/// Attaches to a process, and handles its first fault.
pub fn attach(mm: &MmWithUser, card: Arc<Card>, range: PageRange) -> Result<Mirror<Gpu>> {
    let mirror = rust_hmm::new_mirror!(mm, Gpu(card))?;
    device_fault(&mirror, range)?;
    Ok(mirror)
}
