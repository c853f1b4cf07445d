// SPDX-License-Identifier: GPL-2.0
//! Attributes of a process that opens several devices, or one device several times.

use super::attributes::{
    engine_reads,
    get,
    has_device,
    has_none,
    none,
    set,
    DEVICE,
    OURS, //
};
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    Test,
    What, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::engine::Way;
use hmm::placement::{
    Attributes,
    Policy,
    Preferred, //
};
use hmm::{
    Command,
    Device,
    EngineOp,
    ManagedFlags,
    Mapping,
    Prot,
    PAGE_SIZE, //
};
use std::sync::Barrier;
use std::time::Duration;

pub const TESTS: &[Test] = &[
    Test::new("attributes", "two_preferring_devices_make_progress", attracted_by_two)
        .only_rust(OURS),
    Test::new("attributes", "memory_preferred_by_another_device_is_mapped_in_place", by_another)
        .only_rust(OURS),
    Test::new("attributes", "accessed_by_is_set_per_device", accessed_by_each).only_rust(OURS),
    Test::new("attributes", "two_opens_of_a_device_share_attributes", two_opens).only_rust(OURS),
    Test::new("attributes", "device_close_drops_its_attributes", closed).only_rust(OURS),
    Test::new("attributes", "mremap_keeps_attributes_of_two_devices", moved).only_rust(OURS),
    Test::new("attributes", "concurrent_changes_are_not_lost", at_once).only_rust(OURS),
];

const ACCESSED: Attributes = none().flag(Attributes::ACCESSED_BY, true);

fn open_second(ctx: &Ctx) -> Result<Device, Stop> {
    Device::open(ctx.second).what("open the second device")
}

/// Checks the attributes that a device reports for the whole mapping.
fn sees(device: &Device, map: &Mapping, expected: Attributes, who: &str) -> Outcome {
    let expected = Attributes { what: Attributes::ALL, ..expected };
    check_eq!(get(device, map, 0, map.pages())?, expected, "attributes that {who} sees");
    Ok(())
}

/// Adds 1 to the first word of each page by an engine.
fn add(device: &Device, map: &Mapping) -> Outcome {
    let add = Command::new(EngineOp::AtomicAdd, map.addr(), map.len()).value(1).stride(PAGE_SIZE);
    check_eq!(device.run(add).what("engine")?.error, None, "an engine's atomic operations");
    Ok(())
}

/// Managed memory migrates to each device that accesses it. Engines of two devices add to it
/// concurrently, and both must make progress.
fn attracted_by_two(ctx: &Ctx) -> Outcome {
    let devices = [ctx.open()?, open_second(ctx)?];
    let map = devices[0].map_managed(1, ManagedFlags::default()).what("managed memory")?;
    map.set(0, 0, 0);
    for device in &devices {
        device.set_policy(Policy::None)?;
    }
    let add = Command::new(EngineOp::AtomicAdd, map.addr(), 8).value(1).stride(8).rounds(0);
    let jobs = devices.iter().map(|device| device.submit(add)).collect::<Result<Vec<_>, _>>()?;
    std::thread::sleep(Duration::from_secs(1));
    let mut rounds = Vec::new();
    for job in &jobs {
        let ended = job.finish()?;
        check_eq!(ended.error, None, "end of a device's work");
        rounds.push(ended.status.rounds);
    }
    println!("# {rounds:?} rounds");
    // Both must make steady progress: tens of thousands of rounds in practice, and about as many
    // each.
    let least = rounds.iter().min().unwrap_or(&0);
    let most = rounds.iter().max().unwrap_or(&0);
    check!(*least >= 1000 && *most <= 3 * least, "rounds of the devices: {rounds:?}");
    check_eq!(map.get(0, 0), rounds.iter().sum::<u64>(), "the sum");
    Ok(())
}

/// One device prefers memory. The other device maps the pages in place, whatever its policy is, and
/// migrates none.
fn by_another(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let other = open_second(ctx)?;
    let map = Mapping::anon(64)?;
    map.fill(1);
    other.set_policy(Policy::Default)?;
    for policy in [Policy::OnePage, Policy::None] {
        device.set_policy(policy)?;
        set(&device, &map, 0, 64, DEVICE)?;
        has_device(&device, &map, 0, 64, "that the device sees")?;
        sees(&other, &map, none().prefer(Preferred::Other), "the other device")?;
        let before = other.placement()?;
        for round in 0..3 {
            let when = format!("in round {round} with policy {policy:?}");
            add(&device, &map)?;
            check_eq!(resident(&device, &map, 0, 64)?, 64, "pages on the device {when}");
            let word = map.get(9, 0);
            // For the other device these are pages of a remote device, or pages that have migrated
            // back to the system.
            add(&other, &map)?;
            check_eq!(resident(&other, &map, 0, 64)?, 0, "pages on the other device {when}");
            check_eq!(map.get(9, 0), word.wrapping_add(1), "a word {when}");
        }
        let after = other.placement()?;
        check_eq!(after.moved, before.moved, "pages that the other device moved");
        check!(after.in_place > before.in_place, "no fault of the other device was in place");
        // The last setting of a preferred device counts.
        set(&other, &map, 0, 64, DEVICE)?;
        sees(&device, &map, none().prefer(Preferred::Other), "the device")?;
        device.migrate(map.addr(), 64, Way::ToSystem)?;
        // The other device has kept its PTEs of the pages. Only a fault migrates them.
        map.protect(Prot::Read)?;
        map.protect(Prot::ReadWrite)?;
        engine_reads(&other, &map, 3)?;
        check!(
            resident(&other, &map, 0, 64)? > 0,
            "memory that prefers the other device did not migrate"
        );
        set(&device, &map, 0, 64, none().prefer(Preferred::Anywhere))?;
        has_none(&other, &map, 0, 64, "when it was taken back")?;
        other.migrate(map.addr(), 64, Way::ToSystem)?;
    }
    let expected = hmm::pattern::word(1, 9, 0).wrapping_add(2 * 3 * 2);
    check_eq!(map.get(9, 0), expected, "the sum");
    Ok(())
}

fn accessed_by_each(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let other = open_second(ctx)?;
    let map = Mapping::anon(64)?;
    map.fill(1);
    set(&device, &map, 0, 64, ACCESSED)?;
    sees(&device, &map, ACCESSED, "the device")?;
    sees(&other, &map, none(), "the other device")?;
    let done = device_sees(&device, &map, 1, "of memory that is always mapped")?;
    check_eq!(done.faults, 0, "faults on memory that is always mapped");
    let done = device_sees(&other, &map, 1, "by the other device")?;
    check!(done.faults > 0, "the other device had it mapped, too");
    other.discard(map.addr(), 64)?;
    set(&other, &map, 0, 64, ACCESSED)?;
    let done = device_sees(&other, &map, 1, "by the other device, which has it mapped now")?;
    check_eq!(done.faults, 0, "faults of the other device");
    set(&device, &map, 0, 64, none().flag(Attributes::ACCESSED_BY, false))?;
    sees(&device, &map, none(), "the device that took it back")?;
    sees(&other, &map, ACCESSED, "the device that did not")
}

fn two_opens(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let again = ctx.open()?;
    let map = Mapping::anon(64)?;
    map.fill(1);
    set(&device, &map, 0, 64, DEVICE)?;
    has_device(&again, &map, 0, 64, "that the second open sees")?;
    check!(engine_reads(&again, &map, 3)? > 0, "memory that prefers the device did not migrate");
    cpu_sees(&map, 1, "of it")?;
    let never = none().prefer(Preferred::System).flag(Attributes::NEVER_MIGRATE, true);
    set(&again, &map, 0, 64, never.flag(Attributes::ACCESSED_BY, true))?;
    sees(&device, &map, never.flag(Attributes::ACCESSED_BY, true), "the first open")?;
    for open in [&again, &device] {
        let done = device_sees(open, &map, 1, "of memory that is always mapped")?;
        check_eq!(done.faults, 0, "faults on memory that is always mapped");
    }
    // Attributes of a device last as long as one of its files is open.
    set(&device, &map, 0, 64, DEVICE)?;
    let expected = DEVICE.flag(Attributes::NEVER_MIGRATE, true).flag(Attributes::ACCESSED_BY, true);
    device.close().what("close")?;
    sees(&again, &map, expected, "the open that is left")?;
    let third = ctx.open()?;
    again.close().what("close")?;
    sees(&third, &map, expected, "a later open")
}

fn closed(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let other = open_second(ctx)?;
    let map = Mapping::anon(64)?;
    map.fill(1);
    let never = none().flag(Attributes::NEVER_MIGRATE, true).order(Some(3));
    set(&device, &map, 0, 64, never.prefer(Preferred::Device).flag(Attributes::ACCESSED_BY, true))?;
    set(&other, &map, 0, 64, ACCESSED)?;
    let both = never.flag(Attributes::ACCESSED_BY, true);
    sees(&other, &map, both.prefer(Preferred::Other), "the other device")?;
    device.close().what("close")?;
    sees(&other, &map, both, "the other device when the first one was closed")?;
    // Attributes that concern all devices stay. Those of the closed device do not apply to its next
    // open.
    let device = ctx.open()?;
    sees(&device, &map, never, "the next open of the device")?;
    other.close().what("close")?;
    sees(&device, &map, never, "the device when the other one was closed")?;
    sees(&open_second(ctx)?, &map, never, "the next open of the other device")?;
    // Closing the last device removes all attributes.
    device.close().what("close")?;
    has_none(&ctx.open()?, &map, 0, 64, "when all devices were closed")
}

fn moved(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let other = open_second(ctx)?;
    let map = Mapping::anon(64)?;
    let target = Mapping::anon(64)?;
    map.fill(1);
    set(&device, &map, 0, 64, DEVICE)?;
    set(&other, &map, 0, 64, ACCESSED)?;
    map.move_pages(0, 64, &target, 0)?;
    // The result does not depend on which device queries first.
    sees(&other, &target, ACCESSED.prefer(Preferred::Other), "the other device")?;
    has_device(&device, &target, 0, 64, "where it was moved")?;
    has_none(&device, &map, 0, 64, "of the old place")?;
    target.unmap_pages(0, 64)?;
    for device in [&device, &other] {
        has_none(device, &target, 0, 64, "of the unmapped range")?;
    }
    Ok(())
}

/// Two threads change different attributes of the same memory concurrently. Neither loses the
/// changes of the other.
fn at_once(ctx: &Ctx) -> Outcome {
    const ROUNDS: usize = 1000;
    let device = ctx.open()?;
    let map = Mapping::anon(64)?;
    map.fill(1);
    // Each page is a range of its own, so that a change takes some time.
    for page in 0..map.pages() {
        set(&device, &map, page, 1, none().order(Some(page as u32 % 2)))?;
    }
    let flags = [Attributes::READ_MOSTLY, Attributes::NEVER_MIGRATE];
    let begin = Barrier::new(flags.len() + 1);
    let end = Barrier::new(flags.len() + 1);
    let change = |flag: u32| {
        let mut result = Ok(());
        for round in 0..ROUNDS {
            begin.wait();
            let new = none().flag(flag, round % 2 == 0);
            result = result.and(device.set_attributes(map.addr(), map.pages(), new));
            end.wait();
        }
        result
    };
    let check = || {
        let mut lost = 0;
        for round in 0..ROUNDS {
            begin.wait();
            end.wait();
            let expected = if round % 2 == 0 { flags[0] | flags[1] } else { 0 };
            let lose = |page| {
                let found = device.attributes(map.page_addr(page), 1);
                found.map_or(true, |found| found.values & (flags[0] | flags[1]) != expected)
            };
            lost += (0..map.pages()).filter(|page| lose(*page)).count();
        }
        lost
    };
    let (lost, results) = std::thread::scope(|scope| {
        let threads = flags.map(|flag| scope.spawn(move || change(flag)));
        (check(), threads.map(std::thread::ScopedJoinHandle::join))
    });
    for result in results {
        match result {
            Ok(changed) => changed.what("set attributes")?,
            Err(_) => return Err(Stop::Fail("a thread panicked".into())),
        }
    }
    check_eq!(lost, 0, "times that a page lacked an attribute that both threads had set");
    Ok(())
}
