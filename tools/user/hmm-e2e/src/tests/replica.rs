// SPDX-License-Identifier: GPL-2.0
//! Memory that is mostly read: copies in each device that reads it, as long as they are right.

use super::memory::with;
use super::reload::unload;
use crate::harness::{Ctx, Outcome, Stop, Test, What};
use crate::support::*;
use crate::{check, check_eq};
use hmm::engine::{checksum_of_pattern, Way};
use hmm::placement::Attributes;
use hmm::{pattern, Child, Command, Device, EngineOp, Mapping, Prot, Setting, PAGE_SIZE};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const OURS: &str = "test_hmm knows no attributes";

pub const TESTS: &[Test] = &[
    Test::new("replica", "query_tells_which", query_tells_which).only_rust(OURS),
    Test::new("replica", "cpu_keeps_its_mapping", cpu_keeps_its_mapping).only_rust(OURS),
    Test::new("replica", "writes_by_any_path", writes_by_any_path).only_rust(OURS),
    Test::new("replica", "writes_of_others_meanwhile", writes_meanwhile).only_rust(OURS),
    Test::new("replica", "in_two_devices", in_two_devices).only_rust(OURS),
    Test::new("replica", "of_a_huge_page", of_a_huge_page).only_rust(OURS),
    Test::new("replica", "none_of_the_zero_page", none_of_the_zero_page).only_rust(OURS),
    Test::new("replica", "of_what_another_device_has", of_what_another_has).only_rust(OURS),
    Test::new("replica", "none_of_a_page_that_others_may_write", pinned).only_rust(OURS),
    Test::new("replica", "none_of_a_merged_page", merged).only_rust(OURS),
    Test::new("replica", "goes_for_room", goes_for_room).only_rust(OURS),
    Test::new("replica", "freed_while_others_flush", freed_while_others_flush).only_rust(OURS),
];

const PAGES: usize = 64;

fn read_mostly(device: &Device, map: &Mapping) -> Outcome {
    let new = Attributes::NONE.flag(Attributes::READ_MOSTLY, true);
    device.set_attributes(map.addr(), map.pages(), new).what("set attributes")
}

/// Memory that cannot be written, and that the device has read.
fn copied(device: &Device, seed: u64) -> Result<Mapping, Stop> {
    let map = Mapping::anon(PAGES)?;
    map.fill(seed);
    map.protect(Prot::Read)?;
    read_mostly(device, &map)?;
    let before = device.placement()?.replicas;
    reads(device, &map, seed, "at first")?;
    check_eq!(device.placement()?.replicas - before, PAGES as u64, "copies after a read");
    Ok(map)
}

/// An engine and a command must read the pattern.
fn reads(device: &Device, map: &Mapping, seed: u64, when: &str) -> Outcome {
    let read = Command::new(EngineOp::Checksum, map.addr(), map.len())
        .verify(checksum_of_pattern(seed, map.pages()));
    check_eq!(device.run(read).what("engine")?.error, None, "an engine's read {when}");
    device_sees(device, map, seed, when)?;
    Ok(())
}

fn query_tells_which(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    read_mostly(&device, &map)?;
    let get = |first, pages| device.attributes(map.page_addr(first), pages).what("get attributes");
    let only = Attributes::READ_MOSTLY;
    let both = only | Attributes::REPLICATED;
    // It may be written: accepted, and mapped in place.
    let found = get(0, PAGES)?;
    check_eq!((found.what & both, found.values), (only, only), "if writable");
    reads(&device, &map, 1, "of writable memory")?;
    check_eq!(device.placement()?.replicated, 0, "copies of writable memory");
    map.protect_pages(Prot::Read, 0, 32)?;
    let found = get(0, 32)?;
    check_eq!((found.what & both, found.values), (both, both), "of what cannot be written");
    let found = get(0, PAGES)?;
    check_eq!((found.what & both, found.values), (only, only), "of both");
    let file = Mapping::shared(4)?;
    file.fill(1);
    file.protect(Prot::Read)?;
    read_mostly(&device, &file)?;
    let found = device.attributes(file.addr(), 4).what("get attributes")?;
    check_eq!(found.values & both, only, "of shared memory");
    reads(&device, &file, 1, "of shared memory")?;
    check_eq!(device.placement()?.replicated, 0, "copies of shared memory");
    Ok(())
}

fn cpu_keeps_its_mapping(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = copied(&device, 1)?;
    let before = device.counters()?;
    check!(before.device_pages_used >= PAGES as u64, "copies take no device memory");
    check_eq!(resident(&device, &map, 0, PAGES)?, 0, "pages that the CPU finds on the device");
    cpu_sees(&map, 1, "of which the device has a copy")?;
    check_eq!(device.counters()?.cpu_faults, before.cpu_faults, "CPU faults");
    // The device goes on with its copy.
    let faults = before.engine_faults_read;
    reads(&device, &map, 1, "again")?;
    let after = device.counters()?;
    check_eq!(after.engine_faults_read, faults, "device faults");
    let placement = device.placement()?;
    check_eq!((placement.replicas, placement.collapsed), (PAGES as u64, 0), "copies, given up");
    device.discard(map.addr(), PAGES)?;
    check_eq!(device.placement()?.replicas, 0, "copies after a discard");
    let used = device.counters()?.device_pages_used;
    check_eq!(used, before.device_pages_used - PAGES as u64, "device pages after a discard");
    Ok(())
}

/// Writes `words` to their addresses as a debugger does, whether the mapping can be written or not.
fn poke(words: impl Iterator<Item = (usize, u64)>) -> Outcome {
    let me = std::process::id() as libc::pid_t;
    let child = Child::spawn(|| -> Outcome {
        let call = |request, addr: usize, data: u64| {
            // SAFETY: plain numbers.
            unsafe { libc::ptrace(request, me, addr, data) }
        };
        check_eq!(call(libc::PTRACE_ATTACH, 0, 0), 0, "attach");
        let mut status = 0;
        // SAFETY: the status may be written.
        check_eq!(unsafe { libc::waitpid(me, &mut status, libc::__WALL) }, me, "wait");
        let mut good = true;
        for (addr, word) in words {
            good &= call(libc::PTRACE_POKEDATA, addr, word) == 0;
        }
        check_eq!(call(libc::PTRACE_DETACH, 0, 0), 0, "detach");
        check!(good, "a word could not be written");
        Ok(())
    })?;
    child.join().map_err(Stop::Fail)
}

/// Writes pattern `seed` into memory that cannot be written.
fn force(map: &Mapping, seed: u64, first: usize, pages: usize) -> Outcome {
    poke((first..first + pages).flat_map(|page| {
        (0..PAGE_SIZE / 8)
            .map(move |word| (map.page_addr(page) + word * 8, pattern::word(seed, page, word)))
    }))
}

fn writes_by_any_path(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = copied(&device, 1)?;
    map.protect(Prot::ReadWrite)?;
    map.fill(2);
    reads(&device, &map, 2, "after it was made writable and written")?;

    drop(map);
    let map = copied(&device, 3)?;
    force(&map, 4, 0, PAGES)?;
    cpu_sees(&map, 4, "after a write by a debugger")?;
    reads(&device, &map, 4, "after a write by a debugger")?;
    // Copies are made again, and are no less careful.
    force(&map, 5, 0, PAGES)?;
    reads(&device, &map, 5, "after a second write by a debugger")?;

    // Pages that a child shares.
    drop(map);
    let map = copied(&device, 6)?;
    let child = Child::spawn(|| -> Outcome {
        map.protect(Prot::ReadWrite)?;
        map.fill(7);
        cpu_sees(&map, 7, "in the child that wrote")
    })?;
    child.join().map_err(Stop::Fail)?;
    reads(&device, &map, 6, "after a child wrote its own")?;
    force(&map, 8, 0, PAGES)?;
    reads(&device, &map, 8, "after a write by a debugger, behind the child")?;

    drop(map);
    let map = copied(&device, 9)?;
    map.advise(libc::MADV_DONTNEED)?;
    device_sees_zero(&device, &map, 0, PAGES, "after MADV_DONTNEED")?;

    drop(map);
    let map = copied(&device, 10)?;
    map.unmap_pages(0, PAGES)?;
    map.map_again(0, PAGES, None)?;
    map.fill(11);
    reads(&device, &map, 11, "of new memory at the place")?;

    drop(map);
    let (map, target) = (copied(&device, 12)?, Mapping::anon(PAGES)?);
    map.move_pages(0, PAGES, &target, 0)?;
    reads(&device, &target, 12, "where it was moved to")?;
    target.protect(Prot::ReadWrite)?;
    target.fill(13);
    reads(&device, &target, 13, "where it was moved to, and written")?;

    // To the device, with all that it has: a copy is not what moves.
    drop(map);
    let map = copied(&device, 14)?;
    let done = device.migrate(map.addr(), PAGES, Way::ToDevice)?;
    check_eq!(done.moved, PAGES as u64, "pages that moved");
    reads(&device, &map, 14, "on the device")?;
    cpu_sees(&map, 14, "back from the device")?;
    drop(map);
    drop(target);
    check_eq!(device.placement()?.replicas, 0, "copies of what is unmapped");
    check_eq!(device.counters()?.stale_hits, 0, "stale hits");
    Ok(())
}

/// Somebody writes with force while engines read and copies are made.
fn writes_meanwhile(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(4)?;
    map.fill(0);
    map.protect(Prot::Read)?;
    read_mostly(&device, &map)?;
    let first = |at: usize| -> Result<u64, Stop> {
        let mut data = vec![0; PAGE_SIZE];
        device.read(map.page_addr(at), &mut data).what("device read")?;
        Ok(u64::from_ne_bytes(data[..8].try_into().unwrap_or_default()))
    };
    for round in 1..60u64 {
        let at = (round % 4) as usize;
        poke(std::iter::once((map.page_addr(at), round)))?;
        check_eq!(first(at)?, round, "what the device reads after a write");
        // While copies are made and used the device may see either; the next read the last one.
        let all = Command::new(EngineOp::Read, map.addr(), map.len()).rounds(0);
        let job = device.submit(all).what("submit")?;
        poke((0..10).map(|more| (map.page_addr(at), (round << 32) | more)))?;
        check_eq!(first(at)?, (round << 32) | 9, "what the device reads after many writes");
        check_eq!(job.finish()?.error, None, "an engine's reads");
    }
    check!(device.placement()?.replicated > 0, "no copy was made");
    Ok(())
}

fn in_two_devices(ctx: &Ctx) -> Outcome {
    let devices = [ctx.open()?, Device::open(ctx.second)?];
    let map = copied(&devices[0], 1)?;
    read_mostly(&devices[1], &map)?;
    reads(&devices[1], &map, 1, "by the second device")?;
    reads(&devices[0], &map, 1, "by the first device again")?;
    for device in &devices {
        check_eq!(device.placement()?.replicas, PAGES as u64, "copies of each");
    }
    cpu_sees(&map, 1, "of which both have copies")?;
    force(&map, 2, 7, 1)?;
    for device in &devices {
        device_sees_pages(device, &map, 2, 7, 1, "after a write")?;
        device_sees_pages(device, &map, 1, 0, 7, "of other pages")?;
    }
    Ok(())
}

/// Other threads keep slow flushes of other memory in flight. Retired copies are freed nevertheless.
fn freed_while_others_flush(ctx: &Ctx) -> Outcome {
    const WRITTEN: usize = 4;
    let device = ctx.open()?;
    let map = copied(&device, 1)?;
    let before = device.placement()?.replicas;
    device.set(Setting::FlushDelay, 10_000_000).what("set the delay")?;
    let stop = AtomicBool::new(false);
    let left = std::thread::scope(|scope| -> Result<u64, Stop> {
        for _ in 0..12 {
            let (device, stop) = (&device, &stop);
            scope.spawn(move || -> Outcome {
                let own = Mapping::anon(1)?;
                let mut page = [0; PAGE_SIZE];
                while !stop.load(Relaxed) {
                    own.set(0, 0, 3);
                    device.read(own.addr(), &mut page).what("read")?;
                    // Without an entry this flushes as well, as long as other flushes are in flight.
                    for _ in 0..16 {
                        own.advise(libc::MADV_DONTNEED)?;
                    }
                }
                Ok(())
            });
        }
        std::thread::sleep(Duration::from_millis(200));
        let mut left = before;
        let mut run = || -> Outcome {
            force(&map, 2, 0, WRITTEN)?;
            // The other threads keep flushing.
            let patience = Instant::now();
            while patience.elapsed() < Duration::from_millis(500) {
                left = left.min(device.placement()?.replicas);
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        };
        let result = run();
        stop.store(true, Relaxed);
        result.map(|()| left)
    })?;
    device.set(Setting::FlushDelay, 0).what("set the delay back")?;
    check_eq!(left, before - WRITTEN as u64, "copies while others flush");
    Ok(())
}

fn of_a_huge_page(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = huge(1, 1)?;
    map.protect(Prot::Read)?;
    read_mostly(&device, &map)?;
    reads(&device, &map, 1, "of a huge page")?;
    check_eq!(device.placement()?.replicas, 512, "copies of a huge page");
    force(&map, 2, 100, 3)?;
    device_sees_pages(&device, &map, 2, 100, 3, "after a write")?;
    device_sees_pages(&device, &map, 1, 103, 409, "of other pages")?;
    cpu_sees_pages(&map, 2, 100, 3)
}

fn cpu_sees_pages(map: &Mapping, seed: u64, first: usize, pages: usize) -> Outcome {
    for page in first..first + pages {
        check_eq!(map.get(page, 5), pattern::word(seed, page, 5), "what the CPU reads");
    }
    Ok(())
}

/// What is pinned for a device may be written by it, although the process may not.
fn pinned(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    let half = map.len() / 2;
    let locked = device.lock(map.addr(), half, 1 << ctx.device, true).what("lock")?;
    map.protect(Prot::Read)?;
    read_mostly(&device, &map)?;
    let before = device.placement()?.replicas;
    reads(&device, &map, 1, "of memory that others may write")?;
    check_eq!(device.placement()?.replicas - before, PAGES as u64 / 2, "copies");
    let fill = Command::new(EngineOp::Fill, locked.device_addr, half).value(7);
    check_eq!(device.run(fill).what("fill")?.error, None, "a write to what is pinned");
    let sum = device.run(Command::new(EngineOp::Read, map.addr(), half)).what("read")?;
    check_eq!((sum.error, sum.status.result), (None, 7 * half as u64 / 8), "the device's read");
    check_eq!(map.get(PAGES / 2 - 1, 511), 7, "the CPU's read");
    device.unlock(locked.device_addr).what("unlock")?;
    map.check_pages(1, PAGES / 2, PAGES / 2).what("the other half")
}

fn goes_for_room(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, "vram_mib=4")?;
    let device = ctx.open()?;
    let map = Mapping::anon_aligned(2)?;
    map.forbid_huge()?;
    map.fill(1);
    map.protect(Prot::Read)?;
    read_mostly(&device, &map)?;
    reads(&device, &map, 1, "that fills the device")?;
    check_eq!(device.placement()?.replicas, 1024, "copies");
    let other = Mapping::anon_aligned(1)?;
    other.forbid_huge()?;
    other.fill(2);
    let done = device.migrate(other.addr(), 512, Way::ToDevice)?;
    check_eq!(done.moved, 512, "pages that moved when copies filled the device");
    check!(device.placement()?.replicas <= 512, "copies stayed");
    check_eq!(device.counters()?.cpu_faults, 0, "CPU faults");
    reads(&device, &map, 1, "when copies had to go")?;
    device_sees(&device, &other, 2, "that moved")?;
    device.release().what("release")?;
    check_eq!(device.counters()?.device_pages_used, 0, "pages on the device after a release");
    reads(&device, &map, 1, "after a release")?;
    cpu_sees(&map, 1, "after all")?;
    device.close().what("close")?;
    unload(ctx)
}

/// Pages in another device's private memory are migrated back and then copied. Coherent memory is
/// mapped in place.
fn of_what_another_has(ctx: &Ctx) -> Outcome {
    const SEED: u64 = 6;
    let (one, two) = (ctx.open()?, Device::open(ctx.second).what("open the second device")?);
    let map = Mapping::anon(PAGES)?;
    map.fill(SEED);
    check_eq!(two.migrate(map.addr(), PAGES, Way::ToDevice)?.moved, PAGES as u64, "to the second");
    map.protect(Prot::Read)?;
    read_mostly(&one, &map)?;
    let before = one.placement()?.replicas;
    reads(&one, &map, SEED, "of what another device has")?;
    let copies = one.placement()?.replicas - before;
    check_eq!(copies, if ctx.coherent() { 0 } else { PAGES as u64 }, "copies");
    cpu_sees(&map, SEED, "of what another device had")?;
    Ok(())
}

/// Between the pages that are copied are some that are not.
fn none_of_the_zero_page(ctx: &Ctx) -> Outcome {
    const SEED: u64 = 5;
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    let odd = || (1..PAGES).step_by(2);
    odd().for_each(|page| map.fill_pages(SEED, page, 1));
    map.protect(Prot::Read)?;
    read_mostly(&device, &map)?;
    let before = device.placement()?.replicas;
    let words = odd().flat_map(|page| (0..pattern::WORDS).map(move |word| (page, word)));
    let sum =
        words.fold(0u64, |sum, (page, word)| sum.wrapping_add(pattern::word(SEED, page, word)));
    let read = Command::new(EngineOp::Read, map.addr(), map.len());
    for round in 0..2 {
        check_eq!(device.run(read).what("engine")?.status.result, sum, "sum in round {round}");
        check_eq!(device.placement()?.replicas - before, PAGES as u64 / 2, "copies {round}");
    }
    for page in 0..PAGES {
        if page % 2 == 0 {
            device_sees_zero(&device, &map, page, 1, "where nothing was written")?;
        } else {
            device_sees_pages(&device, &map, SEED, page, 1, "of a copy")?;
        }
    }
    Ok(())
}

/// KSM's pages are read in place.
fn merged(ctx: &Ctx) -> Outcome {
    const SAME: u64 = 0x1234;
    let ksm = match hmm::files::Ksm::start() {
        Ok(ksm) => ksm,
        Err(error) => return Err(Stop::Skip(format!("no KSM: {error}"))),
    };
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    for page in 0..PAGES {
        (0..pattern::WORDS).for_each(|word| map.set(page, word, SAME));
    }
    ksm.merge(&map).what("merge")?;
    map.protect(Prot::Read)?;
    read_mostly(&device, &map)?;
    let before = device.placement()?.replicas;
    let read = Command::new(EngineOp::Read, map.addr(), map.len());
    let sum = SAME.wrapping_mul((PAGES * pattern::WORDS) as u64);
    check_eq!(device.run(read).what("engine")?.status.result, sum, "sum of merged pages");
    let copies = device.placement()?.replicas - before;
    check!(copies < PAGES as u64, "{copies} copies, none of {PAGES} pages was left");
    for page in 0..PAGES {
        check_eq!(map.get(page, 9), SAME, "CPU read of merged page {page}");
    }
    Ok(())
}
