// SPDX-License-Identifier: GPL-2.0
//! Attributes, policies and events.

use super::mirror::{
    engine_read,
    read, //
};
use super::Worker;
use hmm::events::{
    Record,
    Type, //
};
use hmm::placement::{
    Attributes,
    Policy,
    Preferred, //
};

/// Maximal number of pages of an operation.
const MOST: usize = 16;

/// Sets attributes of a part, checks that a query returns them, and accesses the part.
pub fn attributes(worker: &mut Worker<'_>) -> Result<(), String> {
    let device = &worker.device;
    let model = &mut worker.model;
    let (first, pages) = model.part(MOST);
    let preferred = [Preferred::Anywhere, Preferred::Device, Preferred::System];
    let preferred = preferred[model.random.below(3) as usize];
    let mut new = Attributes::NONE.prefer(preferred);
    for bit in [Attributes::ACCESSED_BY, Attributes::READ_MOSTLY, Attributes::NEVER_MIGRATE] {
        if model.random.one_in(2) {
            new = new.flag(bit, model.random.one_in(3));
        }
    }
    let set = model
        .attempt("set attributes", |map| device.set_attributes(map.page_addr(first), pages, new))?;
    let found =
        model.attempt("get attributes", |map| device.attributes(map.page_addr(first), pages))?;
    if let (Some(()), Some(found)) = (set, found) {
        let has = found.what & new.what == new.what
            && found.values & new.what == new.values
            && found.preferred == new.preferred;
        if !has {
            return Err(format!("attributes {found:x?}, though {new:x?} were set"));
        }
    }
    if model.random.one_in(4) {
        let policies = [Policy::None, Policy::Default, Policy::OnePage];
        let policy = policies[model.random.below(3) as usize];
        model.attempt("policy", |_| device.set_policy(policy))?;
    }
    match model.random.below(3) {
        0 => read(device, model, first, pages),
        1 => model.cpu_write(first),
        _ => engine_read(device, model, first, pages, None),
    }
}

/// Reads the events of the file. Sequence numbers may have gaps only where events were lost.
pub fn events(worker: &mut Worker<'_>) -> Result<(), String> {
    let mask = worker.model.random.below(1 << Type::ALL.len());
    let device = &worker.device;
    let model = &mut worker.model;
    model.attempt("events", |_| device.events(mask | Type::MigrateEnd.bit(), false))?;
    // Without a stream there are no events to read.
    if worker.model.attempt("stream", |_| device.events(mask, false))?.is_none() {
        return Ok(());
    }
    let Some(records) = worker.model.attempt("read of events", |_| device.records())? else {
        return Ok(());
    };
    let last = worker.last_event.iter().copied();
    let numbers: Vec<u64> = last.chain(records.iter().map(|record| record.sequence)).collect();
    let gap =
        |pair: &[Record]| pair[1].sequence != pair[0].sequence + 1 + (pair[1].lost - pair[0].lost);
    if numbers.windows(2).any(|pair| pair[1] <= pair[0]) || records.windows(2).any(gap) {
        return Err(format!("the numbers of events: {numbers:?}"));
    }
    worker.last_event = numbers.last().copied();
    Ok(())
}
