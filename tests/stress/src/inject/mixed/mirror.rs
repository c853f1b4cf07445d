// SPDX-License-Identifier: GPL-2.0
//! Operations on a mirror: device and CPU accesses, migrations, and engine commands.

use super::model::Model;
use super::Worker;
use hmm::engine::{
    EngineOp,
    Way, //
};
use hmm::{
    Command,
    Device,
    PAGE_SIZE, //
};

/// Maximal number of pages of an operation.
const MOST: usize = 24;

/// Reads pages by the device.
pub fn read(device: &Device, model: &mut Model, first: usize, pages: usize) -> Result<(), String> {
    let mut bytes = vec![0xaa; pages * PAGE_SIZE];
    match model.attempt("read", |map| device.read(map.page_addr(first), &mut bytes))? {
        Some(_) => model.learn_all(first, &bytes),
        None => Ok(()),
    }
}

fn write(device: &Device, model: &mut Model, first: usize, pages: usize) -> Result<(), String> {
    // The model holds at most two possible contents of a page.
    model.settle(first, pages)?;
    let seed = model.next_seed();
    let bytes = hmm::pattern::buffer(seed, first, pages);
    let done = model.attempt("write", |map| device.write(map.page_addr(first), &bytes))?;
    model.written(first, pages, seed, done.is_some());
    Ok(())
}

/// Has an engine compute the checksum of pages, at address `addr` if one is given.
pub fn engine_read(
    device: &Device,
    model: &mut Model,
    first: usize,
    pages: usize,
    addr: Option<usize>,
) -> Result<(), String> {
    model.settle(first, pages)?;
    let addr = addr.unwrap_or(model.map.page_addr(first));
    let command = Command::new(EngineOp::Checksum, addr, pages * PAGE_SIZE);
    let command = command.verify(model.checksum(first, pages)).engine(Command::ANY);
    let before = model.state();
    if let Some(ended) = model.attempt("submit", |_| device.run(command))? {
        model.outcome("end of a command", &before, ended.error.map_or(Ok(()), Err))?;
    }
    Ok(())
}

fn migrate(device: &Device, model: &mut Model, first: usize, pages: usize) -> Result<(), String> {
    let ways = [Way::ToDevice, Way::ToSystem, Way::ToDeviceOrdinary, Way::ToSystemOrdinary];
    // Mostly to the device, because CPU faults migrate pages back.
    let way = ways[[0, 0, 0, 1, 2, 2, 3, 1][model.random.below(8) as usize]];
    let moved =
        model.attempt("migrate", |map| device.migrate_pages(map.page_addr(first), pages, way));
    moved.map(|_| ())
}

/// Executes one random operation.
pub fn step(worker: &mut Worker<'_>) -> Result<(), String> {
    let index = worker.index;
    let model = &mut worker.model;
    let device = &worker.device;
    let (first, pages) = model.part(MOST);
    match model.random.below(32) {
        0..=4 => read(device, model, first, pages),
        5..=8 => write(device, model, first, pages),
        9..=15 => migrate(device, model, first, pages),
        16..=18 => engine_read(device, model, first, pages, None),
        19..=21 => model.cpu_read(first),
        22..=24 => model.cpu_write(first),
        25 => {
            let states =
                model.attempt("snapshot", |map| device.snapshot(map.page_addr(first), pages));
            states.map(|_| ())
        }
        26 => {
            let done = model.attempt("discard", |map| device.discard(map.page_addr(first), pages));
            done.map(|_| ())
        }
        27 => {
            let mut bytes = vec![0; PAGE_SIZE];
            let read = |map: &hmm::Mapping| device.exclusive(map.page_addr(first), &mut bytes);
            match model.attempt("exclusive", read)? {
                Some(_) => model.learn(first, &bytes),
                None => Ok(()),
            }
        }
        28 => model.attempt("release", |_| device.release()).map(|_| ()),
        29 => {
            if let Some(device) = model.attempt("open", |_| Device::open(index))? {
                worker.replace(device);
            }
            Ok(())
        }
        _ => {
            let moved = model.attempt("migrate_to_sys", |map| {
                device.migrate_to_system(map.page_addr(first), pages)
            });
            moved.map(|_| ())
        }
    }
}
