// SPDX-License-Identifier: GPL-2.0

//! One access of an engine: TLB, page walk, memory; or a fault.

use crate::{
    aperture::Aperture,
    client::Client,
    hardware::{
        counters::{Count, Counted, Counters},
        engine::Engine,
        fault::Wait,
        port::{Access, Action, Port},
    },
    tlb::Tlb,
};
use kernel::{page::PAGE_SIZE, prelude::*, sync::Arc};
use rust_hmm::{
    alarm,
    mirror::{Device, Place, PlaceMut, Section, Unresolved},
    pgtable::Leaf,
};

/// Looks at a translation that changes meanwhile, before it is a fault.
const LOOKS: usize = 16;

fn stale(counted: Counted<'_>, addr: usize) {
    counted.add(Count::StaleHits, 1);
    alarm!(
        StaleTranslation,
        "address {addr:#x} was in a TLB after its flush"
    );
}

impl Port for Client {
    fn begin(&self) {
        self.aperture.begin();
    }

    fn end(&self) {
        self.aperture.end();
    }

    fn counters(&self) -> &Counters {
        Client::counters(self)
    }

    fn access(
        &self,
        index: usize,
        counted: Counted<'_>,
        addr: usize,
        action: Action<'_>,
    ) -> Result<Access> {
        access(self, index, counted, addr, action)
    }

    fn report(
        self: &Arc<Self>,
        engine: &Arc<Engine<Self>>,
        addr: usize,
        write: bool,
    ) -> Option<Arc<Wait<Self>>> {
        self.device().faults.report(self, engine, addr, write)
    }
}

/// Does `action` at `addr` by engine `index`. `EIO` if device memory has no contents there.
fn access(
    client: &Client,
    index: usize,
    counted: Counted<'_>,
    addr: usize,
    action: Action<'_>,
) -> Result<Access> {
    if client.device().is_gone() {
        return Err(ENODEV);
    }
    counted.add(Count::Accesses, 1);
    if Aperture::holds(addr) {
        return client.aperture.access(client.mirror(), addr, action);
    }
    let mut walked = false;
    let result = attempt(client, index, counted, addr, action, &mut walked);
    let count = if walked {
        Count::TlbMisses
    } else {
        Count::TlbHits
    };
    counted.add(count, 1);
    result
}

/// Tells by `walked` whether the TLB was not enough.
fn attempt(
    client: &Client,
    index: usize,
    counted: Counted<'_>,
    addr: usize,
    action: Action<'_>,
    walked: &mut bool,
) -> Result<Access> {
    let mut section = client.mirror().enter(index)?;
    let tag = client.tag();
    for _ in 0..LOOKS {
        let Some(leaf) = translate(&mut section, tag, addr, walked) else {
            return Ok(Access::Fault);
        };
        let wrong = if action.writes() {
            match section.resolve_mut(addr, &leaf) {
                Ok(place) => return write(client, place, counted, addr, action),
                Err(wrong) => wrong,
            }
        } else {
            match section.resolve(addr, &leaf) {
                Ok(place) => return read(client, place, counted, addr, action),
                Err(wrong) => wrong,
            }
        };
        section.data().forget(tag, addr);
        match wrong {
            Unresolved::Stale => stale(counted, addr),
            Unresolved::ReadOnly => return Ok(Access::Fault),
            Unresolved::Changing => {}
        }
    }
    Ok(Access::Fault)
}

/// Looks into the TLB, then into the page table.
fn translate<D: Device<Walker = Tlb>>(
    section: &mut Section<'_, D>,
    tag: u64,
    addr: usize,
    walked: &mut bool,
) -> Option<Leaf> {
    if let Some(leaf) = section.data().lookup(tag, addr) {
        return Some(leaf);
    }
    *walked = true;
    let leaf = section.walk(addr)?;
    section.data().fill(tag, addr, leaf);
    Some(leaf)
}

fn read(
    client: &Client,
    place: Place<'_>,
    counted: Counted<'_>,
    addr: usize,
    action: Action<'_>,
) -> Result<Access> {
    let at = addr % PAGE_SIZE;
    if let Action::Read(buffer) = action {
        match place {
            Place::Cpu(pages) => pages.read(at, buffer)?,
            Place::Device(range) => {
                let (vram, range) = client.device().vram(range)?;
                vram.read(range, at, buffer)?;
            }
        }
        counted.add(Count::BytesRead, buffer.len() as u64);
    }
    Ok(Access::Done)
}

fn write(
    client: &Client,
    place: PlaceMut<'_>,
    counted: Counted<'_>,
    addr: usize,
    action: Action<'_>,
) -> Result<Access> {
    let at = addr % PAGE_SIZE;
    let bytes = match action {
        Action::Write(buffer) => {
            match place {
                PlaceMut::Cpu(pages) => pages.write(at, buffer)?,
                PlaceMut::Device(range) => {
                    let (vram, range) = client.device().vram(range)?;
                    vram.write(range, at, buffer)?;
                }
            }
            buffer.len()
        }
        Action::Add(value) => {
            *value = match place {
                PlaceMut::Cpu(pages) => pages.fetch_add_u64(at, *value)?,
                PlaceMut::Device(range) => {
                    let (vram, range) = client.device().vram(range)?;
                    vram.fetch_add(range, at, *value)?
                }
            };
            size_of::<u64>()
        }
        Action::Read(_) => 0,
    };
    counted.add(Count::BytesWritten, bytes as u64);
    Ok(Access::Done)
}
