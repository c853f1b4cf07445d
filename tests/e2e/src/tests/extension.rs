// SPDX-License-Identifier: GPL-2.0
//! The extension ioctls as an interface: invalid input, bad pointers, signals, and counters that
//! must only increase.

use crate::harness::{
    Ctx,
    Outcome,
    Test,
    What, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::child::interrupt_after;
use hmm::engine::Way;
use hmm::{
    pattern,
    Child,
    Command,
    Device,
    EngineOp,
    Errno,
    Gate,
    Mapping,
    Prot,
    Ptr,
    PAGE_SIZE, //
};
use std::time::{
    Duration,
    Instant, //
};

const OURS: &str = "the C driver has no engines";

pub const TESTS: &[Test] = &[
    Test::new("engine", "bad_input_is_refused", bad_input).only_rust(OURS),
    Test::new("engine", "bad_pointers_are_refused", bad_pointers).only_rust(OURS),
    Test::new("engine", "signal_interrupts_a_wait", signals).only_rust(OURS),
    Test::new("engine", "counters_never_decrease", counters_grow).only_rust(OURS),
    Test::new("engine", "time_between_commands_is_idle_time", idle_time).only_rust(OURS),
];

/// Numbers of all extensions, and their structure sizes in version 1.
const SIZES: [(u8, u64); 9] = [
    (0x40, 40),
    (0x41, 16),
    (0x42, 80),
    (0x43, 72),
    (0x44, 16),
    (0x45, 16),
    (0x46, 80),
    (0x47, 32),
    (0x48, 24),
];

fn bad_input(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(4)?;
    map.fill(1);
    let good = Command::new(EngineOp::Read, map.addr(), 8);
    let bad = |command: Command, what: &str| {
        fails(device.submit(command).map(|_| ()), Errno::EINVAL, what)
    };
    bad(Command { flags: 2, ..good }, "unknown flag")?;
    bad(Command { op: 8, ..good }, "unknown operation")?;
    bad(good.engine(64), "no such engine")?;
    bad(Command { addr: map.addr() as u64 + 4, ..good }, "unaligned address")?;
    bad(Command { bytes: 0, ..good }, "no bytes")?;
    bad(Command { bytes: 12, ..good }, "half a word")?;
    bad(Command { addr: u64::MAX - 7, bytes: 16, ..good }, "beyond the end of addresses")?;
    bad(Command { stride: 8, ..good }, "a stride that no operation uses")?;
    bad(Command { src: 8, ..good }, "a source that no operation uses")?;
    bad(Command { think_ns: 1_000_000_001, ..good }, "a long pause")?;
    bad(Command::new(EngineOp::Strided, map.addr(), 64), "no stride")?;
    bad(Command::new(EngineOp::Strided, map.addr(), 64).stride(12), "an odd stride")?;
    bad(
        Command::new(EngineOp::Fill, map.addr(), 64).verify(1),
        "verification of an operation without a result",
    )?;
    let overlap = Command::new(EngineOp::Memcpy, map.addr(), PAGE_SIZE).from(map.addr() + 8);
    bad(overlap, "copy onto itself")?;
    fails(device.engine_counters(64).map(|_| ()), Errno::EINVAL, "counters of no engine")?;
    let set = |what: u64, value: u64| {
        // size, flags; what, reserved; value; old
        let mut words = [32, what, value, 0];
        device.probe_extension(0x47, &mut words)
    };
    fails(set(6, 0), Errno::EINVAL, "an unknown setting")?;
    fails(set(5, 3), Errno::EINVAL, "an unknown connection")?;
    fails(set(0, 1_000_000_001), Errno::EINVAL, "a long copy delay")?;
    fails(set(3, 2), Errno::EINVAL, "a flag that is 2")?;
    fails(set(1 << 32, 0), Errno::EINVAL, "a reserved field")?;
    // Sizes below that of version 1, and larger ones with an unknown field that is not zero.
    for (number, size) in SIZES {
        let mut words = vec![0u64; 40];
        words[0] = size - 1;
        fails(device.probe_extension(number, &mut words), Errno::EINVAL, "a small structure")?;
        words[0] = 320;
        words[39] = 1;
        fails(device.probe_extension(number, &mut words), Errno::E2BIG, "an unknown field")?;
        // Flags, where the structure has a flags field.
        if !matches!(number, 0x40 | 0x41 | 0x45) {
            let mut words = vec![0u64; 40];
            words[0] = size | (1 << 63);
            fails(device.probe_extension(number, &mut words), Errno::EINVAL, "an unknown flag")?;
        }
    }
    // Reserved fields.
    let reserved = 1 << 32;
    let mut words = [72, 1, 0, reserved, 0, 0, 0, 0, 0];
    fails(device.probe_extension(0x43, &mut words), Errno::EINVAL, "a reserved field of WAIT")?;
    let mut words = [16, reserved];
    fails(device.probe_extension(0x45, &mut words), Errno::EINVAL, "a reserved field of ENGINE")?;
    // A larger structure is accepted if all additional bytes are zero.
    for (number, least, size) in [(0x40, 40, 40), (0x41, 16, 264), (0x45, 16, 160), (0x47, 32, 32)]
    {
        let mut words = vec![0u64; 40];
        words[0] = 320;
        let what = format!("{number:#x} with a structure that is larger, and zero");
        device.probe_extension(number, &mut words).what(&what)?;
        check_eq!(words[0] as u32, size, "size that comes back from {what}");
        // The smallest structure receives a part of the fields.
        let mut words = vec![0u64; 40];
        words[0] = least;
        device.probe_extension(number, &mut words).what("the shortest structure")?;
        check_eq!(words[0] as u32, least as u32, "size that comes back from the shortest");
        let behind = &words[least as usize / 8..];
        check!(behind.iter().all(|word| *word == 0), "{number:#x} wrote behind the structure");
    }
    // Ids of commands that do not exist.
    for id in [0, 1 << 40, u64::MAX] {
        let mut words = [72, id, 0, 0, 0, 0, 0, 0, 0];
        fails(device.probe_extension(0x43, &mut words), Errno::ENOENT, "WAIT for no command")?;
        let mut words = [16, id];
        fails(device.probe_extension(0x44, &mut words), Errno::ENOENT, "STOP of no command")?;
    }
    let migrate = |addr, pages| device.migrate(addr, pages, Way::ToDevice).map(|_| ());
    fails(migrate(map.addr() + 8, 1), Errno::EINVAL, "migration of half a page")?;
    fails(migrate(map.addr(), 0), Errno::EINVAL, "migration of nothing")?;
    fails(migrate(map.guard(), 1), Errno::EINVAL, "migration of unmapped memory")?;
    cpu_sees(&map, 1, "at the end")
}

/// Arguments and buffers that the kernel cannot read or write.
fn bad_pointers(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(4)?;
    map.fill(1);
    let argument = Mapping::anon(1)?;
    for (number, size) in SIZES {
        let what = |how: &str| format!("{number:#x} with an argument {how}");
        // The size cannot be read; only the size can be read; all but the last word can be read.
        let mut places =
            vec![(PAGE_SIZE, "in a guard page"), (PAGE_SIZE - 8, "that begins a page")];
        places.push((PAGE_SIZE - size as usize + 8, "that ends in a guard page"));
        for (offset, how) in places {
            if offset < PAGE_SIZE {
                argument.set(0, offset / 8, size);
            }
            let result = device.probe_extension_in(number, &argument, offset);
            fails(result, Errno::EFAULT, &what(how))?;
        }
        // A size that extends beyond this page.
        argument.set(0, 0, 1 << 31);
        let result = device.probe_extension_in(number, &argument, 0);
        check!(result.is_err(), "{}", what("that is 2 GiB long"));
        argument.advise(libc::MADV_DONTNEED)?;
    }
    // Output to read-only memory.
    for (number, size) in [(0x40, 40), (0x41, 264), (0x45, 160)] {
        argument.set(0, 0, size);
        argument.protect(Prot::Read)?;
        let result = device.probe_extension_in(number, &argument, 0);
        fails(result, Errno::EFAULT, &format!("{number:#x} with a read-only argument"))?;
        argument.protect(Prot::ReadWrite)?;
    }
    // Outcomes cannot be stored. The pages have moved before that, and keep their contents.
    let outcomes = Mapping::anon(1)?;
    let result = device.probe_outcomes(map.addr(), 4, Ptr::Guard(&outcomes));
    fails(result.map(|_| ()), Errno::EFAULT, "outcomes into a guard page")?;
    outcomes.protect(Prot::Read)?;
    let result = device.probe_outcomes(map.addr(), 4, Ptr::Map(&outcomes));
    fails(result.map(|_| ()), Errno::EFAULT, "outcomes into read-only memory")?;
    outcomes.protect(Prot::ReadWrite)?;
    cpu_sees(&map, 1, "after results without a destination")?;
    // The CPU reads coherent memory in place, so migrate it back.
    device.migrate(map.addr(), 4, Way::ToSystem).what("migrate back")?;
    // Outcomes are stored in the memory that migrates. Its first page migrates back for that.
    let done = device.probe_outcomes(map.addr(), 4, Ptr::Map(&map)).what("outcomes into itself")?;
    check_eq!(done.moved, 4, "pages moved");
    check_eq!(map.get(0, 1), pattern::word(1, 0, 1), "memory behind the results");
    map.check_pages(1, 1, 3).what("contents at the end")
}

fn signals(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(1)?;
    map.fill(1);
    let read = Command::new(EngineOp::Read, map.addr(), map.len()).rounds(0);
    let job = device.submit(read)?;
    interrupt_after(Duration::from_millis(50))?;
    let begin = Instant::now();
    fails(job.poll(Duration::from_secs(60)).map(|_| ()), Errno::EINTR, "wait with a signal")?;
    check!(begin.elapsed() < Duration::from_secs(20), "the signal did not end the wait");
    check_eq!(job.finish().what("stop")?.error, None, "end of the command that was waited for");
    // A wait without a time limit can be killed.
    let gate = Gate::new()?;
    let mut child = Child::spawn(|| -> Outcome {
        let device = ctx.open()?;
        let map = Mapping::anon(1)?;
        let read = Command::new(EngineOp::Read, map.addr(), map.len()).rounds(0);
        let job = device.submit(read)?;
        gate.open().what("gate")?;
        job.poll(Duration::MAX).what("wait for ever").map(|_| ())
    })?;
    gate.wait().what("the child's command")?;
    std::thread::sleep(Duration::from_millis(20));
    child.signal(libc::SIGKILL);
    check!(child.wait_timeout(Duration::from_secs(20)).is_some(), "the child does not end");
    Ok(())
}

/// Reads all counters of both engines and of the file, except those of memory in use.
fn all_counters(device: &Device) -> Result<Vec<(String, u64)>, Errno> {
    let mut all = Vec::new();
    for (name, value) in device.counters()?.fields() {
        if !name.starts_with("device_pages_") {
            all.push((name.to_string(), value));
        }
    }
    for engine in 0..2 {
        for (name, value) in device.engine_counters(engine)?.fields() {
            all.push((format!("{name} of engine {engine}"), value));
        }
    }
    Ok(all)
}

fn counters_grow(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon_aligned(1)?;
    map.fill(1);
    let read = Command::new(EngineOp::Read, map.addr(), map.len()).rounds(0);
    let write = Command::new(EngineOp::AtomicAdd, map.addr(), map.len()).stride(64).value(1);
    let jobs = [device.submit(read)?, device.submit(write.rounds(0).engine(1))?];
    // Idle time is counted when the next command begins, so wait until both engines execute a
    // command.
    for job in &jobs {
        while job.poll(Duration::from_millis(1))?.1.rounds == 0 {}
    }
    let first = all_counters(&device)?;
    let begin = Instant::now();
    let mut last = first.clone();
    while begin.elapsed() < Duration::from_millis(800) {
        for way in [Way::ToDevice, Way::ToSystemOrdinary] {
            device.migrate(map.addr(), map.pages(), way)?;
            let now = all_counters(&device)?;
            for ((name, now), (_, last)) in now.iter().zip(&last) {
                check!(now >= last, "{name} decreases from {last} to {now}");
            }
            last = now;
        }
    }
    for job in &jobs {
        check_eq!(job.finish()?.error, None, "end of a command");
    }
    let last = all_counters(&device)?;
    let elapsed = begin.elapsed().as_nanos() as u64;
    let grown = |name: &str| {
        let find = |all: &[(String, u64)]| all.iter().find(|field| field.0 == name).map(|f| f.1);
        find(&last).unwrap_or(0) - find(&first).unwrap_or(0)
    };
    for name in [
        "accesses",
        "tlb_hits",
        "tlb_misses",
        "engine_faults_read",
        "stalls_read",
        "engine_faults_write",
        "bytes_read",
        "bytes_written",
        "switched_pages",
        "bytes_copied",
        "migrated_to_device",
        "migrated_to_system",
        "fault_batches",
    ] {
        check!(grown(name) > 0, "{name} did not grow");
    }
    let hits = grown("tlb_hits");
    let misses = grown("tlb_misses");
    // An access that finds its translation changing looks it up again. The first counters were read
    // one after the other while both engines ran.
    let accesses = grown("accesses");
    check!(hits + misses + 100 >= accesses, "{hits} hits, {misses} misses, {accesses} accesses");
    check_eq!(grown("stale_hits"), 0, "stale hits");
    for engine in 0..2 {
        // An engine is always busy, idle or waiting.
        let time: u64 = ["busy_ns", "idle_ns", "wait_ns"]
            .iter()
            .map(|name| grown(&format!("{name} of engine {engine}")))
            .sum();
        println!("# engine {engine}: {time} ns in {elapsed} ns");
        check!(time <= elapsed + elapsed / 8, "engine {engine}: {time} ns in {elapsed} ns");
        check!(time >= elapsed / 2, "engine {engine} reports {time} ns of {elapsed} ns");
    }
    Ok(())
}

/// Idle time is counted when the next command is taken. It begins when the previous command has
/// ended.
fn idle_time(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(1)?;
    map.fill(1);
    let read = Command::new(EngineOp::Read, map.addr(), map.len());
    for round in 0..8 {
        let outer = Instant::now();
        check_eq!(device.run(read)?.error, None, "the command before");
        let before = device.engine_counters(0)?;
        // The engine's thread records the time a little after the command has ended.
        std::thread::sleep(Duration::from_millis(20));
        let inner = Instant::now();
        std::thread::sleep(Duration::from_millis(50));
        let inner = inner.elapsed().as_nanos() as u64;
        check_eq!(device.run(read)?.error, None, "the command behind");
        let after = device.engine_counters(0)?;
        let outer = outer.elapsed().as_nanos() as u64;
        let idle = after.idle_ns - before.idle_ns;
        check!(idle >= inner && idle <= outer, "round {round}: {inner} to {outer} ns, {idle} idle");
        check_eq!(after.wait_ns, before.wait_ns, "time in which commands waited");
    }
    Ok(())
}
