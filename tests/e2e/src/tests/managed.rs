// SPDX-License-Identifier: GPL-2.0
//! Managed memory.

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
use hmm::abi::HUGE_PAGES;
use hmm::mapping::has_huge_pages;
use hmm::placement::{
    Attributes,
    Policy,
    Preferred, //
};
use hmm::{
    smaps,
    Child,
    Command,
    Device,
    EngineOp,
    Errno,
    Managed,
    ManagedFlags,
    Mapping,
    Setting,
    State,
    HUGE_SIZE,
    PAGE_SIZE, //
};
use std::time::Duration;

const OURS: &str = "the C driver manages nothing";
const PLAIN: ManagedFlags = ManagedFlags { host_shared: false, populate: false, huge: false };
const POPULATE: ManagedFlags = ManagedFlags { populate: true, ..PLAIN };

pub const TESTS: &[Test] = &[
    Test::new("managed", "memory_migrates_to_the_accessing_processor", moves)
        .only_rust(OURS)
        .private(),
    Test::new("managed", "host_shared_memory_is_used_in_place", host_shared).only_rust(OURS),
    Test::new("managed", "populated_memory_has_huge_pages", populate).only_rust(OURS),
    Test::new("managed", "any_device_may_access_managed_memory", any_device)
        .only_rust(OURS)
        .private(),
    Test::new("managed", "fork_mremap_and_mlock", fork_mremap_and_mlock).only_rust(OURS).private(),
    Test::new("managed", "memory_is_evicted_after_mremap", evicted).only_rust(OURS),
    Test::new("managed", "attributes_apply_to_parts_of_an_allocation", attributes)
        .only_rust(OURS)
        .private(),
    Test::new("managed", "asynchronous_population_completes", later).only_rust(OURS).private(),
    Test::new("managed", "failed_allocation_leaves_no_mapping", failure).only_rust(OURS).private(),
    Test::new("managed", "failed_allocation_unmaps_its_own_range_only", not_its_own)
        .only_rust(OURS)
        .private(),
    Test::new("managed", "bad_input_is_refused", bad_input).only_rust(OURS),
];

fn on_device(device: &Device, memory: &Managed) -> Result<usize, Stop> {
    let states = device.snapshot(memory.addr(), memory.pages()).what("snapshot")?;
    Ok(states.iter().filter(|state| state.is_local()).count())
}

/// Adds 1 to the first word of each page by an engine.
fn add(device: &Device, memory: &Managed) -> Outcome {
    let command = Command::new(EngineOp::AtomicAdd, memory.addr(), memory.len());
    let ended = device.run(command.value(1).stride(PAGE_SIZE)).what("add")?;
    check_eq!(ended.error, None, "error of the engine");
    Ok(())
}

fn moves(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let mapped = device.map_managed(600, PLAIN).what("mmap")?;
    let called = device.alloc(600 * PAGE_SIZE, PLAIN).what("alloc")?;
    for memory in [&mapped, &called] {
        memory.fill(3);
        check_eq!(on_device(&device, memory)?, 0, "pages on the device, of the host's own");
        for round in 1..=3 {
            let before = memory.get(7, 0);
            add(&device, memory)?;
            check_eq!(on_device(&device, memory)?, 600, "pages that moved, round {round}");
            let delta = Delta::start(ctx, &device)?;
            check_eq!(memory.get(7, 0), before.wrapping_add(1), "word, round {round}");
            delta.at_least("cpu_faults", 1, "by the host's touch")?;
            (0..600).for_each(|page| memory.set(page, 1, round));
            check_eq!(on_device(&device, memory)?, 0, "pages on the device, touched by the host");
        }
        (0..600).for_each(|page| check_word(memory, page));
    }
    Ok(())
}

fn evicted(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let huge = ManagedFlags { huge: true, ..PLAIN };
    let mut memories = Vec::new();
    for flags in [PLAIN, huge] {
        for moved in [false, true] {
            let mut memory = device.alloc(HUGE_SIZE, flags).what("alloc")?;
            memory.fill(3);
            if moved {
                memory.remap().what("mremap")?;
            }
            add(&device, &memory)?;
            check_eq!(on_device(&device, &memory)?, memory.pages(), "pages that moved");
            memories.push(memory);
        }
    }
    device.release().what("release")?;
    check_eq!(device.counters()?.device_pages_used, 0, "pages on the device");
    for memory in &memories {
        for page in 0..memory.pages() {
            let expected = hmm::pattern::word(3, page, 0).wrapping_add(1);
            check_eq!(memory.get(page, 0), expected, "page {page}");
            check_eq!(memory.get(page, 9), hmm::pattern::word(3, page, 9), "page {page}");
        }
    }
    Ok(())
}

fn check_word(memory: &Managed, page: usize) {
    let expected = hmm::pattern::word(3, page, 0).wrapping_add(3);
    assert_eq!(memory.get(page, 0), expected, "page {page}");
}

fn host_shared(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let flags = ManagedFlags { host_shared: true, ..PLAIN };
    let memory = device.map_managed(32, flags).what("mmap")?;
    memory.fill(3);
    let delta = Delta::start(ctx, &device)?;
    add(&device, &memory)?;
    check_eq!(on_device(&device, &memory)?, 0, "pages on the device");
    check_eq!(memory.get(5, 0), hmm::pattern::word(3, 5, 0).wrapping_add(1), "a word");
    delta.exactly("cpu_faults", 0, "by the host's touch")
}

fn populate(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let memory = device.alloc(100 * PAGE_SIZE, POPULATE).what("alloc")?;
    check_eq!(on_device(&device, &memory)?, 100, "pages on the device from the start");
    let delta = Delta::start(ctx, &device)?;
    add(&device, &memory)?;
    delta.exactly("faults_write", 0, "of the device")?;
    check_eq!((memory.get(99, 0), memory.get(99, 1)), (1, 0), "words");
    // If it is mapped by mmap() alone, the first fault populates all of it.
    let mapped = device.map_managed(1200, POPULATE).what("mmap")?;
    let command = Command::new(EngineOp::Fill, mapped.addr(), 8).value(9);
    check_eq!(device.run(command).what("fill")?.error, None, "error of the engine");
    check_eq!(on_device(&device, &mapped)?, 1200, "pages on the device after one fault");
    check_eq!(mapped.get(0, 0), 9, "words written by the device");
    if has_huge_pages() {
        let flags = ManagedFlags { huge: true, ..PLAIN };
        let huge = device.alloc(HUGE_SIZE + 1, flags).what("alloc huge")?;
        check_eq!(huge.len(), 2 * HUGE_SIZE, "bytes of a huge allocation");
        check_eq!(huge.addr() % HUGE_SIZE, 0, "alignment");
        huge.fill(4);
        let kib = smaps::field(huge.addr(), huge.len(), "AnonHugePages").what("smaps")?;
        check_eq!(kib, 2 * HUGE_KIB, "KiB in huge pages");
    }
    Ok(())
}

fn any_device(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let other = Device::open(ctx.second).what("open the second")?;
    // The larger allocation has a block of 2 MiB in which nothing has moved when the other device
    // first accesses it.
    for pages in [64, 3 * HUGE_PAGES] {
        let memory = device.alloc(pages * PAGE_SIZE, POPULATE).what("alloc")?;
        memory.set(3, 0, 10);
        for round in 0..3 {
            let when = format!("of {pages}, round {round}");
            add(&other, &memory)?;
            check_eq!(on_device(&other, &memory)?, pages, "pages on the other device {when}");
            add(&device, &memory)?;
            check_eq!(on_device(&device, &memory)?, pages, "pages on the device {when}");
        }
        check_eq!((memory.get(3, 0), memory.get(4, 0)), (16, 6), "words");
    }
    Ok(())
}

/// Attributes of a part apply to that part. The policy determines how much of the rest migrates.
fn attributes(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    for policy in [Policy::None, Policy::Default] {
        device.set_policy(policy).what("policy")?;
        let memory = device.map_managed(512, PLAIN).what("mmap")?;
        memory.fill(3);
        let system = memory.addr() + 64 * PAGE_SIZE;
        let never = memory.addr() + 128 * PAGE_SIZE;
        let there = Attributes::NONE.prefer(Preferred::System);
        device.set_attributes(system, 64, there).what("prefer the system")?;
        let stays = Attributes::NONE.flag(Attributes::NEVER_MIGRATE, true);
        device.set_attributes(never, 64, stays).what("never migrate")?;
        add(&device, &memory)?;
        let states = device.snapshot(memory.addr(), 512).what("snapshot")?;
        for (page, state) in states.iter().enumerate() {
            let moves = !(64..192).contains(&page);
            check_eq!(state.is_local(), moves, "page {page} with policy {policy:?}");
        }
        let word = |page| memory.get(page, 0).wrapping_sub(hmm::pattern::word(3, page, 0));
        check!((0..512).all(|page| word(page) == 1), "words with policy {policy:?}");
    }
    Ok(())
}

fn fork_mremap_and_mlock(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let mut memory = device.alloc(16 * PAGE_SIZE, POPULATE).what("alloc")?;
    memory.fill(3);
    add(&device, &memory)?;
    let word = |memory: &Managed| memory.get(2, 0).wrapping_sub(hmm::pattern::word(3, 2, 0));
    // The child has its own copy, unchanged.
    let child = Child::spawn(|| -> Result<(), Stop> {
        check_eq!(word(&memory), 1, "CPU read by the child");
        memory.set(2, 0, 77);
        let own = ctx.open()?;
        add(&own, &memory)?;
        check_eq!(memory.get(2, 0), 78, "the child's own");
        Ok(())
    })?;
    child.join().map_err(Stop::Fail)?;
    check_eq!(word(&memory), 1, "after the child");
    add(&device, &memory)?;
    memory.remap().what("mremap")?;
    check_eq!(on_device(&device, &memory)?, 16, "pages on the device after mremap");
    add(&device, &memory)?;
    check_eq!(word(&memory), 3, "after mremap");
    memory.mlock(true).what("mlock")?;
    // The kernel locks folios in per-CPU batches, and mlock() drains only that of the CPU on which
    // it ends. A device fault maps pages in place that have a reference from the batch of another.
    settle()?;
    add(&device, &memory)?;
    check_eq!(word(&memory), 4, "when it is locked in memory");
    memory.mlock(false).what("munlock")?;
    add(&device, &memory)?;
    check_eq!(on_device(&device, &memory)?, 16, "pages on the device at the end");
    check_eq!(word(&memory), 5, "at the end");
    Ok(())
}

fn later(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let queue = device.queue().what("make a queue")?;
    // The call returns although the operation cannot begin.
    let gate = device.host_fence().what("make a fence")?;
    queue.wait(&gate).what("wait")?;
    // Half a second of copies in a chunk of 512 pages, unless they are cancelled.
    device.set(Setting::CopyDelay, 1_000_000).what("set the delay")?;
    let (memory, fence) = device.alloc_later(512 * PAGE_SIZE, POPULATE, &queue).what("alloc")?;
    check_eq!(fence.check().what("check")?.state, State::NotDone, "the fence before the gate");
    gate.signal(Ok(())).what("signal")?;
    // The host works meanwhile and touches the memory. The access waits or faults, and its write is
    // not lost.
    memory.set(511, 3, 5);
    let done = fence.sync(Some(Duration::from_secs(60))).what("wait")?;
    device.set(Setting::CopyDelay, 0).what("set the delay back")?;
    check_eq!(done.state, State::Done, "end of the population");
    check_eq!(memory.get(511, 3), 5, "words written by the host meanwhile");
    memory.set(0, 0, 6);
    add(&device, &memory)?;
    check_eq!((memory.get(0, 0), memory.get(1, 0)), (7, 1), "words");
    // The device uses the memory before the fence is signalled.
    let gate = device.host_fence().what("make a fence")?;
    queue.wait(&gate).what("wait")?;
    let (early, fence) = device.alloc_later(8 * PAGE_SIZE, POPULATE, &queue).what("alloc")?;
    add(&device, &early)?;
    check_eq!(fence.check().what("check")?.state, State::NotDone, "the fence meanwhile");
    gate.signal(Ok(())).what("signal")?;
    fence.sync(Some(Duration::from_secs(60))).what("wait")?;
    check_eq!(early.get(7, 0), 1, "words written by the device before");
    Ok(())
}

/// Returns the number of mappings of the device in this process.
fn mapped() -> Result<usize, Stop> {
    let maps = std::fs::read_to_string("/proc/self/maps").what("read the maps")?;
    Ok(maps.lines().filter(|line| line.contains("hmm_dmirror")).count())
}

fn failure(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let before = mapped()?;
    // The copy that clears a page fails.
    device.set(Setting::CopyFail, 3).what("set")?;
    let failed = device.alloc(16 * PAGE_SIZE, POPULATE).map(|_| ());
    fails(failed, Errno::ENOMEM, "an allocation that cannot be populated")?;
    check_eq!(mapped()?, before, "mappings of the device after it");
    let queue = device.queue().what("make a queue")?;
    device.set(Setting::CopyFail, 3).what("set")?;
    let (memory, fence) = device.alloc_later(16 * PAGE_SIZE, POPULATE, &queue).what("alloc")?;
    let end = fence.sync(Some(Duration::from_secs(60))).what("wait")?;
    check_eq!(end.state, State::Failed(Errno::ENOMEM), "end of the population");
    check_eq!(mapped()?, before, "mappings of the device after it");
    std::mem::forget(memory);
    // The queue is destroyed before the operation begins.
    let gate = device.host_fence().what("make a fence")?;
    queue.wait(&gate).what("wait")?;
    let (memory, fence) = device.alloc_later(16 * PAGE_SIZE, POPULATE, &queue).what("alloc")?;
    queue.destroy().what("destroy")?;
    check_eq!(fence.check().what("check")?.state, State::Failed(Errno::ECANCELED), "the fence");
    check_eq!(mapped()?, before, "mappings of the device when it was cancelled");
    std::mem::forget(memory);
    let good = device.alloc(16 * PAGE_SIZE, POPULATE).what("alloc")?;
    check_eq!(on_device(&device, &good)?, 16, "pages of one that succeeds");
    Ok(())
}

fn not_its_own(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let before = mapped()?;
    let queue = device.queue().what("make a queue")?;
    let gate = device.host_fence().what("make a fence")?;
    queue.wait(&gate).what("wait")?;
    let (memory, fence) = device.alloc_later(16 * PAGE_SIZE, POPULATE, &queue).what("alloc")?;
    // The process maps other managed memory there before the population begins.
    let other = device.map_managed_over(memory, PLAIN).what("map over it")?;
    other.fill(9);
    device.set(Setting::CopyFail, 3).what("set")?;
    gate.signal(Ok(())).what("signal")?;
    let end = fence.sync(Some(Duration::from_secs(60))).what("wait")?;
    check_eq!(end.state, State::Failed(Errno::ENOMEM), "end of the population");
    check_eq!(mapped()?, before + 1, "mappings of the device after it");
    check!(other.check(9).is_ok(), "contents of the mapping that replaced it");
    Ok(())
}

fn bad_input(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let other = ctx.open()?;
    fails(device.alloc(0, PLAIN).map(|_| ()), Errno::EINVAL, "nothing")?;
    fails(device.alloc(1 << 48, PLAIN).map(|_| ()), Errno::EINVAL, "too much")?;
    let managed = 1i64 << 48;
    let private = libc::MAP_PRIVATE;
    device.probe_map(private, managed).what("map managed memory")?;
    fails(device.probe_map(libc::MAP_SHARED, managed), Errno::EINVAL, "a shared mapping")?;
    fails(device.probe_map(private, managed | (1 << 52)), Errno::EINVAL, "an unknown bit")?;
    let map = Mapping::anon(1)?;
    let words = |fd: i32| [40, u64::from(fd as u32), map.len() as u64, 0, 0];
    fails(
        device.probe_extension(0x79, &mut words(other.fd())),
        Errno(libc::EBADF),
        "another file",
    )?;
    for (fd, what) in [(0, "no device"), (1000, "no file"), (-1, "no descriptor")] {
        fails(device.probe_extension(0x79, &mut words(fd)), Errno(libc::EBADF), what)?;
    }
    let mut flags = words(device.fd());
    flags[0] |= 8 << 32;
    fails(device.probe_extension(0x79, &mut flags), Errno::EINVAL, "an unknown flag")?;
    let mut queue = words(device.fd());
    queue[1] |= 9 << 32;
    let before = mapped()?;
    fails(device.probe_extension(0x79, &mut queue), Errno::ENOENT, "no such queue")?;
    check_eq!(mapped()?, before, "mappings after it");
    Ok(())
}
