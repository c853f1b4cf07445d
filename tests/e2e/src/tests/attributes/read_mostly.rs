// SPDX-License-Identifier: GPL-2.0
//! Memory that is read mostly: it is mapped in place until a device writes it.

use super::{
    none,
    set, //
};
use crate::check_eq;
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::support::*;
use hmm::engine::checksum_of_pattern;
use hmm::placement::{
    Attributes,
    Policy, //
};
use hmm::{
    Child,
    Command,
    Device,
    EngineOp,
    Mapping,
    Prot,
    PAGE_SIZE, //
};

const READ_MOSTLY: Attributes =
    Attributes { what: Attributes::READ_MOSTLY, values: Attributes::READ_MOSTLY, ..none() };

/// Checks that an engine reads the pattern and that no page has moved to the device.
fn reads_in_place(device: &Device, map: &Mapping, seed: u64, when: &str) -> Outcome {
    let moved = device.placement()?.moved;
    let used = device.counters()?.device_pages_used;
    let read = Command::new(EngineOp::Checksum, map.addr(), map.len())
        .verify(checksum_of_pattern(seed, map.pages()));
    check_eq!(device.run(read).what("engine")?.error, None, "an engine's read {when}");
    device_sees(device, map, seed, when)?;
    check_eq!(device.placement()?.moved, moved, "pages that moved {when}");
    check_eq!(resident(device, map, 0, map.pages())?, 0, "pages on the device {when}");
    check_eq!(device.counters()?.device_pages_used, used, "device pages {when}");
    Ok(())
}

pub(super) fn read_mostly(ctx: &Ctx) -> Outcome {
    for policy in [Policy::OnePage, Policy::Default] {
        let device = ctx.open()?;
        device.set_policy(policy)?;
        let map = Mapping::anon(64)?;
        map.fill(1);
        set(&device, &map, 0, 64, READ_MOSTLY)?;
        let before = device.counters()?;
        reads_in_place(&device, &map, 1, "of writable memory")?;
        // A write by the CPU is visible immediately.
        map.fill(2);
        reads_in_place(&device, &map, 2, "after the CPU has written")?;
        let faults = device.counters()?.engine_faults_read;
        reads_in_place(&device, &map, 2, "again")?;
        check_eq!(device.counters()?.engine_faults_read, faults, "faults on mapped pages");
        map.protect(Prot::Read)?;
        reads_in_place(&device, &map, 2, "of memory that is not writable")?;
        cpu_sees(&map, 2, "of memory that is not writable")?;
        map.protect(Prot::ReadWrite)?;
        map.fill(3);
        reads_in_place(&device, &map, 3, "after it was made writable and written")?;
        let after = device.counters()?;
        check_eq!(after.cpu_faults, before.cpu_faults, "CPU faults");
        check_eq!(after.stale_hits, before.stale_hits, "stale hits");
    }
    Ok(())
}

/// After a fork, a write on either side gives the writer a page of its own.
pub(super) fn read_mostly_writes_after_fork_are_private(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    device.set_policy(Policy::Default)?;
    let map = Mapping::anon(64)?;
    map.fill(1);
    set(&device, &map, 0, 64, READ_MOSTLY)?;
    reads_in_place(&device, &map, 1, "before the fork")?;
    let child = Child::spawn(|| -> Outcome {
        map.fill(2);
        cpu_sees(&map, 2, "in the child that wrote")
    })?;
    child.join().map_err(Stop::Fail)?;
    reads_in_place(&device, &map, 1, "after the child wrote its own")?;
    map.fill(3);
    reads_in_place(&device, &map, 3, "after the parent wrote")
}

pub(super) fn read_mostly_on_two(ctx: &Ctx) -> Outcome {
    let devices = [ctx.open()?, Device::open(ctx.second).what("open the second device")?];
    let map = Mapping::anon(64)?;
    map.fill(1);
    for device in &devices {
        device.set_policy(Policy::Default)?;
        set(device, &map, 0, 64, READ_MOSTLY)?;
        reads_in_place(device, &map, 1, "by each device")?;
    }
    map.fill(2);
    for device in &devices {
        reads_in_place(device, &map, 2, "by each device, after a write of the CPU")?;
    }
    Ok(())
}

/// A write fault migrates the page as with other memory. If a read has mapped the page writable,
/// the write is done in place.
pub(super) fn read_mostly_write(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    device.set_policy(Policy::OnePage)?;
    let map = Mapping::anon(64)?;
    map.fill(1);
    set(&device, &map, 0, 64, READ_MOSTLY)?;
    let fill = |page: usize, value: u64| -> Outcome {
        let fill = Command::new(EngineOp::Fill, map.page_addr(page), PAGE_SIZE).value(value);
        check_eq!(device.run(fill).what("engine")?.error, None, "an engine's write");
        Ok(())
    };
    fill(5, 7)?;
    check_eq!(device.placement()?.moved, 1, "pages that moved");
    check_eq!(resident(&device, &map, 0, 64)?, 1, "pages that the write moved");
    device_sees_pages(&device, &map, 1, 0, 5, "of the pages before")?;
    device_sees_pages(&device, &map, 1, 6, 58, "of the pages behind")?;
    check_eq!(resident(&device, &map, 0, 64)?, 1, "pages on the device after reads");
    fill(9, 8)?;
    check_eq!(device.placement()?.moved, 1, "pages that moved when one was written in place");
    for (page, value) in [(5, 7), (9, 8)] {
        for word in 0..PAGE_SIZE / 8 {
            check_eq!(map.get(page, word), value, "word {word} of page {page}");
        }
    }
    map.check_pages(1, 0, 5).what("the pages before")?;
    map.check_pages(1, 6, 3).what("the pages between")?;
    map.check_pages(1, 10, 54).what("the pages behind")
}
