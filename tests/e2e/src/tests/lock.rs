// SPDX-License-Identifier: GPL-2.0
//! Locked host memory: shared, refused, counted, and how it is accessed.

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
use hmm::pattern::WORDS;
use hmm::{
    procfs,
    Child,
    Command,
    Device,
    EngineOp,
    Errno,
    Gate,
    Mapping,
    Prot,
    PAGE_SIZE, //
};
use std::time::{
    Duration,
    Instant, //
};

const OURS: &str = "the C driver locks nothing";

pub const TESTS: &[Test] = &[
    Test::new("lock", "locked_ranges_are_reference_counted", shared).only_rust(OURS).hw(),
    Test::new("lock", "extension_is_refused", refused).only_rust(OURS).hw(),
    Test::new("lock", "locked_pages_do_not_migrate", stay).only_rust(OURS),
    Test::new("lock", "locking_migrates_pages_back", migrates_back).only_rust(OURS),
    Test::new("lock", "devices_access_locked_memory", access).only_rust(OURS),
    Test::new("lock", "fine_locks_show_concurrent_writes", grain).only_rust(OURS),
    Test::new("lock", "page_is_locked_fine_and_coarse", both_grains).only_rust(OURS),
    Test::new("lock", "memlock_limit_is_enforced", limit).only_rust(OURS),
    Test::new("lock", "process_exit_unpins_pages", ends).only_rust(OURS),
    Test::new("lock", "bad_input_is_refused", bad_input).only_rust(OURS),
    Test::new("lock", "lookup_time_is_independent_of_lock_count", cost)
        .only_rust(OURS)
        .timed()
        .seconds(200),
];

fn agent(ctx: &Ctx) -> u64 {
    1 << ctx.device
}

fn lock(
    ctx: &Ctx,
    device: &Device,
    map: &Mapping,
    first: usize,
    npages: usize,
) -> Result<usize, Stop> {
    let locked = device.lock(map.page_addr(first), npages * PAGE_SIZE, agent(ctx), true);
    Ok(locked.what("lock")?.device_addr)
}

/// Returns the memory that the process has locked, in KiB.
fn locked_kib() -> Result<u64, Stop> {
    let status = std::fs::read_to_string("/proc/self/status").what("read the status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    kib.ok_or_else(|| Stop::Fail("no VmLck in the status".into()))
}

/// Number of pages to pin, and tolerance of the kernel's global count, which omits some per-CPU
/// differences.
const PINS: u64 = 4096;
const SLACK: u64 = 1024;

/// Returns the number of pinned pages in the whole machine.
fn pinned() -> Result<u64, Stop> {
    match procfs::pins().what("read the pins")? {
        Some((_, now)) => Ok(now),
        None => Err(Stop::Skip("this kernel does not count pins".into())),
    }
}

fn shared(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(16)?;
    map.fill(1);
    let before = locked_kib()?;
    let all = lock(ctx, &device, &map, 0, 16)?;
    let part = lock(ctx, &device, &map, 4, 8)?;
    let again = lock(ctx, &device, &map, 0, 16)?;
    let head = lock(ctx, &device, &map, 0, 2)?;
    check_eq!(part, all + 4 * PAGE_SIZE, "address of a part");
    check_eq!((again, head), (all, all), "addresses of the same start");
    let found = device.locked(map.page_addr(7) + 12, 1).what("look")?;
    check_eq!((found.addr, found.bytes), (map.addr(), map.len()), "the range found");
    check_eq!((found.users, found.fine), (4, true), "its users and grain");
    check_eq!(device.locked(part, 1).what("look")?.users, 4, "users, by the device's address");
    check_eq!(locked_kib()? - before, map.len() as u64 / 1024, "KiB locked: parts count once");
    device.unlock(part).what("unlock the part")?;
    fails(device.unlock(part), Errno::ENOENT, "unlock the part twice")?;
    for users in [3, 2, 1] {
        check_eq!(device.locked(all, 1).what("look")?.users, users, "users that are left");
        device.unlock(all).what("unlock")?;
    }
    fails(device.locked(map.addr(), 1), Errno::ENOENT, "read the counters after all locks ended")?;
    fails(device.unlock(all), Errno::ENOENT, "unlock once too often")?;
    check_eq!(locked_kib()?, before, "KiB locked at the end");
    // A range in bytes. Whole pages are locked, and the device address keeps the offset in its
    // page.
    let bytes = device.lock(map.page_addr(1) + 24, PAGE_SIZE, agent(ctx), true).what("lock")?;
    check_eq!(bytes.device_addr % PAGE_SIZE, 24, "offset of the device's address");
    check_eq!(device.locked(map.page_addr(2), 1).what("look")?.bytes, 2 * PAGE_SIZE, "pages");
    device.unlock(bytes.device_addr).what("unlock")
}

/// Locks the same memory through two mappings, fine and coarse, and unlocks them in both orders.
/// `CONFIG_DMA_API_DEBUG` warns if the two DMA mappings of a page have different attributes.
fn both_grains(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let file = hmm::files::memfd(1, 4).what("make a file in memory")?;
    let maps = [Mapping::file_shared(&file, 4)?, Mapping::file_shared(&file, 4)?];
    for (first, last) in [(0, 1), (1, 0)] {
        for fine_first in [false, true] {
            let grains = [fine_first, !fine_first];
            let mut locked = Vec::new();
            for (map, fine) in maps.iter().zip(grains) {
                let found = device.lock(map.addr(), map.len(), agent(ctx), fine).what("lock")?;
                check_eq!(found.fine, fine, "its grain");
                locked.push(found.device_addr);
            }
            device.unlock(locked[first]).what("unlock one")?;
            device.unlock(locked[last]).what("unlock the other")?;
        }
    }
    maps[1].check(1).what("by the CPU")
}

fn refused(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(16)?;
    map.fill(1);
    let middle = lock(ctx, &device, &map, 4, 8)?;
    for (first, npages, what) in [
        (2, 4, "overlaps its start"),
        (10, 4, "overlaps its end"),
        (4, 9, "extends it upwards"),
        (3, 9, "extends it downwards"),
        (0, 16, "encloses it"),
    ] {
        let result = device.lock(map.page_addr(first), npages * PAGE_SIZE, agent(ctx), true);
        fails(result, Errno::EEXIST, what)?;
    }
    let beside = lock(ctx, &device, &map, 0, 4)?;
    check_eq!(device.locked(middle, 1).what("look")?.users, 1, "users after all this");
    // Another mapping is at the address now.
    map.unmap_pages(4, 1).what("unmap")?;
    map.map_again(4, 1, None).what("map again")?;
    map.fill_pages(2, 4, 1);
    let result = device.lock(map.page_addr(4), PAGE_SIZE, agent(ctx), true);
    fails(result, Errno(libc::ESTALE), "lock a new mapping at the address")?;
    lock(ctx, &device, &map, 5, 1)?;
    device.unlock(middle + PAGE_SIZE).what("unlock a part")?;
    device.unlock(middle).what("unlock")?;
    device.unlock(beside).what("unlock a range beside it")?;
    let anew = lock(ctx, &device, &map, 0, 16)?;
    device.unlock(anew).what("unlock all")
}

fn stay(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(16)?;
    map.fill(1);
    let locked = lock(ctx, &device, &map, 4, 8)?;
    let (done, pages) = device.migrate_pages(map.addr(), 16, Way::ToDevice).what("migrate")?;
    check_eq!((done.moved, done.skipped), (8, 8), "pages moved and skipped");
    for (index, page) in pages.iter().enumerate() {
        check_eq!(page.has_moved(), !(4..12).contains(&index), "page {index} moved");
    }
    check_eq!(resident(&device, &map, 4, 8)?, 0, "locked pages on the device");
    device_sees(&device, &map, 1, "after the migration")?;
    device.unlock(locked).what("unlock")?;
    let done = device.migrate(map.addr(), 16, Way::ToDevice).what("migrate again")?;
    check_eq!((done.moved, done.skipped), (8, 0), "pages moved when they are unlocked");
    cpu_sees(&map, 1, "at the end")
}

fn migrates_back(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(8)?;
    map.fill(1);
    migrate(&device, &map, 1)?;
    device_fills(&device, &map, 2, "on the device")?;
    let locked = lock(ctx, &device, &map, 0, 8)?;
    check_eq!(resident(&device, &map, 0, 8)?, 0, "pages on the device");
    cpu_sees(&map, 2, "after the lock")?;
    let words = map.len() / 8;
    let sum = device.run(Command::new(EngineOp::Read, locked, map.len())).what("read")?;
    let expected =
        (0..words).fold(0u64, |sum, at| sum.wrapping_add(map.get(at / WORDS, at % WORDS)));
    check_eq!((sum.error, sum.status.result), (None, expected), "read by the engine");
    device.unlock(locked).what("unlock")
}

fn access(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let other = Device::open(ctx.second).what("open the second")?;
    let map = Mapping::anon(4)?;
    map.fill(1);
    let mine = lock(ctx, &device, &map, 0, 4)?;
    let both = (1 << ctx.device) | (1 << ctx.second);
    let theirs = other.lock(map.addr(), map.len(), both, true).what("lock for both")?;
    let run = |device: &Device, command: Command| {
        device.run(command).what("run").map(|ended| (ended.error, ended.status.faults))
    };
    let fill = |addr| Command::new(EngineOp::Fill, addr, 8);
    check_eq!(run(&device, fill(mine).value(7))?, (None, 0), "write by the device");
    check_eq!(map.get(0, 0), 7, "words written by the engine");
    check_eq!(run(&other, fill(theirs.device_addr + 8).value(8))?, (None, 0), "by the other");
    check_eq!(map.get(0, 1), 8, "words written by the copy");
    let copy = Command::new(EngineOp::Memcpy, mine + PAGE_SIZE, PAGE_SIZE).from(map.addr());
    check_eq!(run(&device, copy)?.0, None, "copy from ordinary memory");
    check_eq!((map.get(1, 0), map.get(1, 1)), (7, 8), "words copied by the engine");
    // An access beyond the range, and one after the unlock.
    let fault = Some(Errno::EFAULT);
    check_eq!(run(&device, fill(mine + map.len()))?.0, fault, "write beyond");
    device.unlock(mine).what("unlock")?;
    check_eq!(run(&device, fill(mine))?.0, fault, "write when it is unlocked");
    other.unlock(theirs.device_addr).what("unlock")?;
    // Locked only for the other device.
    let not_mine = device.lock(map.addr(), PAGE_SIZE, 1 << ctx.second, true).what("lock")?;
    check_eq!(run(&device, fill(not_mine.device_addr))?.0, fault, "write by no agent");
    // A second lock of the page adds this device.
    let now = lock(ctx, &device, &map, 0, 1)?;
    check_eq!(run(&device, fill(now).value(9))?.0, None, "write by an agent that came later");
    check_eq!(map.get(0, 0), 9, "words written by the engine");
    Ok(())
}

fn grain(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    for fine in [true, false] {
        let map = Mapping::anon(4)?;
        map.fill(0);
        map.set(0, 0, 0);
        let locked = device.lock(map.addr(), map.len(), agent(ctx), fine).what("lock")?;
        check_eq!(locked.fine, fine, "grain of the lock");
        check_eq!(device.locked(map.addr(), 1).what("look")?.fine, fine, "grain of the range");
        let count =
            Command::new(EngineOp::AtomicAdd, locked.device_addr, 8).value(1).stride(8).rounds(0);
        let job = device.submit(count).what("submit")?;
        let waited = Instant::now();
        while job.poll(Duration::ZERO).what("poll")?.1.rounds < 1000 {
            check!(waited.elapsed() < Duration::from_secs(60), "the command does not run");
            std::thread::sleep(Duration::from_millis(2));
        }
        let during = map.get(0, 0);
        // The host writes to the next word of the page while the command runs.
        map.set(0, 1, 77);
        let ended = job.finish().what("stop")?;
        check_eq!(ended.error, None, "error of the command");
        if fine {
            check!(during >= 900, "only {during} seen while it runs, fine-grained")
        } else {
            check_eq!(during, 0, "seen while it runs, coarse-grained")
        }
        check_eq!(map.get(0, 0), ended.status.rounds, "seen when it has ended, fine: {fine}");
        check_eq!(map.get(0, 1), 77, "the host's own word");
        // The next command reads the value that the host has written.
        map.set(0, 0, 5);
        let read = device.run(Command::new(EngineOp::Read, locked.device_addr, 8)).what("read")?;
        check_eq!(read.status.result, 5, "read by the next command");
        let part = device.lock(map.page_addr(1), PAGE_SIZE, agent(ctx), false).what("a part")?;
        check_eq!(part.fine, fine, "grain of a part that asks for less");
        if !fine {
            let result = device.lock(map.page_addr(1), PAGE_SIZE, agent(ctx), true);
            fails(result, Errno::EOPNOTSUPP, "a finer part of a coarse range")?;
        }
        device.unlock(part.device_addr).what("unlock the part")?;
        device.unlock(locked.device_addr).what("unlock")?;
    }
    Ok(())
}

fn limit(ctx: &Ctx) -> Outcome {
    const LIMIT: u64 = 16 * PAGE_SIZE as u64;
    // Root is not subject to the limit.
    let child = Child::spawn(|| -> Result<(), Stop> {
        let device = ctx.open()?;
        let map = Mapping::anon(64)?;
        map.fill(1);
        let limit = libc::rlimit { rlim_cur: LIMIT, rlim_max: LIMIT };
        // SAFETY: `setrlimit` reads `limit`, which lives during the call; `setresuid` takes numbers
        // only.
        let ret = unsafe {
            libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) | libc::setresuid(1000, 1000, 1000)
        };
        check_eq!(ret, 0, "give up privileges");
        let large = device.lock(map.addr(), 17 * PAGE_SIZE, agent(ctx), true);
        fails(large, Errno::ENOMEM, "a lock beyond the limit")?;
        let fits = lock(ctx, &device, &map, 0, 16)?;
        let one = device.lock(map.page_addr(20), PAGE_SIZE, agent(ctx), true);
        fails(one, Errno::ENOMEM, "a page more")?;
        lock(ctx, &device, &map, 2, 4)?;
        device.unlock(fits + 2 * PAGE_SIZE).what("unlock the part")?;
        device.unlock(fits).what("unlock")?;
        let elsewhere = lock(ctx, &device, &map, 20, 16)?;
        device.unlock(elsewhere).what("unlock")?;
        check_eq!(locked_kib()?, 0, "KiB locked at the end");
        Ok(())
    })?;
    child.join().map_err(Stop::Fail)
}

fn ends(ctx: &Ctx) -> Outcome {
    let before = pinned()?;
    let ready = Gate::new()?;
    let mut child = Child::spawn(|| -> Result<(), Stop> {
        let device = ctx.open()?;
        let map = Mapping::anon(PINS as usize)?;
        lock(ctx, &device, &map, 0, PINS as usize)?;
        ready.open().what("tell")?;
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    })?;
    ready.wait()?;
    check!(pinned()? >= before + PINS - SLACK, "{PINS} pages are not pinned");
    child.signal(libc::SIGKILL);
    check!(child.wait_timeout(Duration::from_secs(20)).is_some(), "it does not die");
    let waited = Instant::now();
    while pinned()? > before + SLACK {
        check!(waited.elapsed() < Duration::from_secs(20), "pins outlive the process");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn bad_input(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(4)?;
    map.fill(1);
    let try_lock = |addr, bytes, agents| device.lock(addr, bytes, agents, true);
    fails(try_lock(map.addr(), 0, 1), Errno::EINVAL, "nothing")?;
    fails(try_lock(map.addr(), PAGE_SIZE, 0), Errno::EINVAL, "no agents")?;
    fails(try_lock(map.addr(), PAGE_SIZE, 16), Errno(libc::ENODEV), "an agent that is not there")?;
    fails(try_lock(map.guard(), PAGE_SIZE, 1), Errno::EFAULT, "lock an unmapped range")?;
    fails(try_lock(map.addr(), map.len() + PAGE_SIZE, 1), Errno::EFAULT, "beyond the mapping")?;
    // A list of all these pages would not fit into memory.
    fails(try_lock(map.addr(), 1 << 45, 1), Errno::EFAULT, "far beyond the mapping")?;
    fails(
        try_lock(usize::MAX - (PAGE_SIZE - 1), 2 * PAGE_SIZE, 1),
        Errno::EINVAL,
        "beyond all addresses",
    )?;
    let read_only = Mapping::anon_prot(2, Prot::Read)?;
    fails(
        try_lock(read_only.addr(), PAGE_SIZE, 1),
        Errno::EFAULT,
        "lock a read-only range for writing",
    )?;
    fails(device.unlock(map.addr()), Errno::ENOENT, "unlock a range that is not locked")?;
    fails(device.locked(map.addr(), 1 << 21), Errno::EINVAL, "too many looks")?;
    let mut words = [71u64, 0, 0, 0, 0, 0, 0, 0, 0];
    fails(device.probe_extension(0x70, &mut words), Errno::EINVAL, "a small structure")?;
    let mut words = [72 | (2 << 32), 0, 0, 0, 0, 0, 0, 0, 0];
    fails(device.probe_extension(0x70, &mut words), Errno::EINVAL, "an unknown flag")?;
    // None of these calls has left a lock.
    check_eq!(locked_kib()?, 0, "KiB locked");
    let all = lock(ctx, &device, &map, 0, 4)?;
    device.unlock(all).what("unlock")
}

/// Returns the time of a lookup in ps. Takes the least of a few measurements, because timer
/// interrupts occur in some of them.
fn look(device: &Device, addr: usize) -> Result<u64, Stop> {
    const LOOKS: u64 = 500;
    let mut best = u64::MAX;
    for _ in 0..10 {
        best = best.min(device.locked(addr, LOOKS).what("look")?.ns);
    }
    Ok(best * 1000 / LOOKS)
}

fn cost(ctx: &Ctx) -> Outcome {
    const MANY: usize = 100_000;
    // Each file has ranges of its own.
    let device = ctx.open()?;
    let other = ctx.open()?;
    // Ranges of one page each, with an unlocked page between them.
    let map = Mapping::anon(2 * MANY)?;
    let fill = |device: &Device, from: usize, to: usize| -> Outcome {
        for index in from..to {
            map.set(2 * index, 0, 1);
            device.lock(map.page_addr(2 * index), PAGE_SIZE, agent(ctx), true).what("lock")?;
        }
        Ok(())
    };
    fill(&other, 0, 10)?;
    fill(&device, 0, 10)?;
    let begin = Instant::now();
    fill(&device, 10, MANY)?;
    let filled = begin.elapsed();
    check_eq!(device.locked(map.page_addr(MANY), 1).what("look")?.bytes, PAGE_SIZE, "bytes");
    // A binary tree of the ranges would be four times as deep.
    let few = look(&other, map.page_addr(10))?;
    let many = look(&device, map.page_addr(MANY))?;
    println!("# lock.cost: a look takes {few} ps at 10 ranges, {many} ps at {MANY}");
    check!(many * 10 <= few * 12, "{few} ps at 10 ranges, {many} ps at {MANY}");
    // Locking or unlocking a range does not visit the other ranges either. A lock takes longer
    // because it pins pages.
    let begin = Instant::now();
    drop(device);
    let gone = begin.elapsed();
    println!("# lock.cost: {MANY} ranges were locked in {filled:?} and unlocked in {gone:?}");
    // 0.23 by count of instructions.
    check!(gone * 100 <= filled * 27, "unlocked in {gone:?}, locked in {filled:?}");
    Ok(())
}
