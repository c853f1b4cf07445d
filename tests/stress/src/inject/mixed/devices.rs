// SPDX-License-Identifier: GPL-2.0
//! Two devices, and managed memory.

use super::mirror::read;
use super::Worker;
use hmm::engine::Way;
use hmm::{
    inject,
    pattern,
    Connection,
    Device,
    Errno,
    ManagedFlags,
    Setting,
    PAGE_SIZE, //
};

/// Maximal number of pages of an operation.
const MOST: usize = 16;
/// Pages of managed memory.
const MANAGED: usize = 4;

/// Opens the other device. Pages are migrated between the devices by copies, even if their memory
/// is coherent.
pub fn partner(device: &Device, index: u32) -> Result<Device, Errno> {
    let partner = Device::open(index ^ 1)?;
    for device in [device, &partner] {
        device.set(Setting::Connection, Connection::Migratable as u64)?;
    }
    Ok(partner)
}

/// Migrates pages to one device, pulls them to the other one, and reads them.
pub fn pull(worker: &mut Worker<'_>) -> Result<(), String> {
    let Worker { device, partner: Some(partner), model, .. } = worker else { return Ok(()) };
    let (first, pages) = model.part(MOST);
    let (source, target) =
        if model.random.one_in(2) { (&*device, &*partner) } else { (&*partner, &*device) };
    model.attempt("migrate", |map| source.migrate(map.page_addr(first), pages, Way::ToDevice))?;
    model.attempt("pull", |map| target.pull(map.page_addr(first), pages, source))?;
    let reader = if model.random.one_in(2) { source } else { target };
    read(reader, model, first, pages)
}

fn holds(seed: u64, first: usize, bytes: &[u8]) -> Result<(), String> {
    pattern::check(seed, first, bytes).map_err(|wrong| format!("managed memory: {wrong}"))
}

/// Accesses managed memory in turns by the CPU and the device.
pub fn managed(worker: &mut Worker<'_>) -> Result<(), String> {
    let device = &worker.device;
    let model = &mut worker.model;
    let populate = model.random.one_in(2);
    let flags = ManagedFlags { populate, host_shared: model.random.one_in(2), huge: false };
    let bytes = MANAGED * PAGE_SIZE;
    let Some(memory) = model.attempt("alloc", |_| device.alloc(bytes, flags))? else {
        return Ok(());
    };
    let seed = model.next_seed();
    for page in 0..MANAGED {
        let data = pattern::buffer(seed, page, 1);
        model.insist("cpu write of managed memory", |_| {
            inject::kernel_writes_managed(&memory, page, &data)
        })?;
    }
    for _ in 0..3 {
        let mut data = vec![0; bytes];
        let moved = model.attempt("migrate of managed memory", |_| {
            device.migrate(memory.addr(), MANAGED, Way::ToDevice)
        })?;
        if moved.is_some() || model.random.one_in(2) {
            let read = model.attempt("read", |_| device.read(memory.addr(), &mut data))?;
            if read.is_some() {
                holds(seed, 0, &data)?;
            }
        }
        let page = model.random.below(MANAGED as u64) as usize;
        let data = model.insist("cpu read of managed memory", |_| {
            inject::kernel_reads_managed(&memory, page)
        })?;
        holds(seed, page, &data)?;
    }
    Ok(())
}
