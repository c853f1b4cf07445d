// SPDX-License-Identifier: GPL-2.0
//! Access that a device keeps or gets back in place: write access, runs and huge leaves.

use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::support::*;
use crate::tests::memory::{
    block,
    engine_reads,
    to_device, //
};
use crate::{
    check,
    check_eq, //
};
use hmm::files::SmallThp;
use hmm::{
    Child,
    Command,
    EngineOp,
    Errno,
    Gate,
    Mapping,
    Prot,
    HUGE_PAGES,
    PAGE_SIZE, //
};
use std::time::Duration;

/// If only a change of protection has removed write access, for example by NUMA balancing, pages
/// are written in place.
pub(super) fn write_access(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    for is_huge in [false, true] {
        // New memory for each kind, because memory that was shared with a child may still not be
        // exclusive.
        let map = if is_huge { huge(1, 1)? } else { block(1)? };
        to_device(&device, &map)?;
        device_fills(&device, &map, 2, "of device memory")?;
        let before = device.counters()?;
        for seed in 3..6 {
            map.protect(Prot::Read)?;
            map.protect(Prot::ReadWrite)?;
            device_fills(&device, &map, seed, "after a change of protection")?;
            let after = device.counters()?;
            check_eq!(after.cpu_faults, before.cpu_faults, "pages that came back for a write");
            check_eq!(after.bytes_copied, before.bytes_copied, "bytes copied for a write");
            check_eq!(resident(&device, &map, 0, HUGE_PAGES)?, HUGE_PAGES, "pages on the device");
        }
        // A write must not succeed where the process may not write, nor change pages that a child
        // shares.
        map.protect(Prot::Read)?;
        let data = vec![0; PAGE_SIZE];
        fails(device.write(map.addr(), &data), Errno::EPERM, "a write of read-only memory")?;
        map.protect(Prot::ReadWrite)?;
        let gate = Gate::new()?;
        let mut child = Child::spawn(|| {
            gate.wait()?;
            cpu_sees(&map, 5, "in a child, after the parent's device has written")
        })?;
        device_fills(&device, &map, 7, "of memory shared with a child")?;
        gate.open()?;
        let ended = child.wait_timeout(Duration::from_secs(30));
        check!(ended.is_some(), "the child does not end");
        child.outcome().map_err(Stop::Fail)?;
        cpu_sees(&map, 7, "after all")?;
    }
    Ok(())
}

/// Returns the number of huge leaves that the devices of this process have of `map`, from the
/// library's debugfs file.
fn huge_leaves(map: &Mapping) -> Result<usize, Stop> {
    let all = crate::tests::hmmctl::map_file()?;
    let pid = std::process::id().to_string();
    let start = format!("{:#x}", map.addr());
    let of_map = all.lines().filter(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.get(1) == Some(&pid.as_str())
            && words.get(2) == Some(&start.as_str())
            && words.last() == Some(&"huge")
    });
    Ok(of_map.count())
}

/// A run of 64 KiB loses a page. The others have at most one fault.
pub(super) fn broken_run(ctx: &Ctx) -> Outcome {
    let small = SmallThp::start().what("have folios of 64 KiB")?;
    let device = ctx.open()?;
    // As many pages as a huge page of 2 MiB has.
    let map = Mapping::anon_in_block(512)?;
    map.allow_huge()?;
    map.fill(1);
    check!(
        small.made()? >= (map.len() >> 16) as u64,
        "{} folios of 64 KiB were made",
        small.made()?
    );
    engine_reads(&device, &map, 1)?;
    let before = device.counters()?.engine_faults_read;
    engine_reads(&device, &map, 1)?;
    check_eq!(device.counters()?.engine_faults_read, before, "read faults of mapped pages");
    map.advise_pages(libc::MADV_DONTNEED, 5, 1)?;
    map.fill(2);
    engine_reads(&device, &map, 2)?;
    let faults = device.counters()?.engine_faults_read - before;
    check!((1..=2).contains(&faults), "{faults} read faults after one page was discarded");
    // All of it is mapped now.
    engine_reads(&device, &map, 2)?;
    check_eq!(device.counters()?.engine_faults_read - before, faults, "read faults at the end");
    Ok(())
}

/// A write to a read-only huge leaf makes all of it writable, if the CPU's mapping is writable.
pub(super) fn split_leaf(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = huge(1, 1)?;
    for round in 1..4 {
        to_device(&device, &map)?;
        engine_reads(&device, &map, round)?;
        check_eq!(map.get(100, 0), hmm::pattern::word(round, 100, 0), "CPU read");
        check_eq!(resident(&device, &map, 0, HUGE_PAGES)?, 0, "pages on the device");
        make_huge(&map)?;
        // The device may only read.
        map.protect(Prot::Read)?;
        map.protect(Prot::ReadWrite)?;
        let before = device.counters()?;
        let write = Command::new(EngineOp::AtomicAdd, map.page_addr(300), 8).stride(8).value(0);
        check_eq!(device.run(write).what("write")?.error, None, "end of a write");
        let first = device.counters()?;
        let faults = first.engine_faults_write - before.engine_faults_write;
        check_eq!(faults, 1, "write faults of one page");
        check_eq!(huge_leaves(&map)?, 1, "huge leaves of the device");
        let write = Command::new(EngineOp::AtomicAdd, map.addr(), map.len()).stride(PAGE_SIZE);
        check_eq!(device.run(write.value(0)).what("write")?.error, None, "end of writes");
        let faults = device.counters()?.engine_faults_write - first.engine_faults_write;
        check_eq!(faults, 0, "write faults of the others");
        map.fill(round + 1);
    }
    Ok(())
}
