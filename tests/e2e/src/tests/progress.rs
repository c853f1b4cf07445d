// SPDX-License-Identifier: GPL-2.0
//! Progress of a process beside another process that is stalled.

use super::memory::{
    block,
    on_device,
    to_device,
    unload_soon,
    with, //
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
use hmm::abi::FLAG_FAIL_ALLOC;
use hmm::mapping::MADV_DONTNEED;
use hmm::{
    pattern,
    procfs,
    Child,
    Device,
    Errno,
    Gate,
    Mapping,
    Prot,
    Setting,
    HUGE_PAGES,
    HUGE_SIZE,
    PAGE_SIZE, //
};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{
    AtomicBool,
    Ordering::Relaxed, //
};
use std::time::{
    Duration,
    Instant, //
};

const OURS: &str = "test_hmm waits for other processes";

pub const TESTS: &[Test] = &[
    Test::new("progress", "eviction_is_not_delayed_by_a_stalled_process", eviction)
        .only_rust(OURS)
        .timed()
        .seconds(180),
    Test::new("progress", "splits_are_not_delayed_by_a_stalled_process", splits)
        .only_rust(OURS)
        .private()
        .timed()
        .seconds(180),
    Test::new("progress", "split_wait_sleeps", sleeps).only_rust(OURS).private(),
    Test::new("progress", "split_wait_is_killable", killed).only_rust(OURS).private(),
    Test::new("progress", "fault_during_an_invalidation_is_killable", invalidated)
        .only_rust(OURS)
        .private(),
    Test::new("progress", "invalidations_elsewhere_do_not_delay_faults", elsewhere)
        .only_rust(OURS)
        .private(),
    Test::new("progress", "faults_beside_four_discarding_threads_succeed", beside)
        .only_rust(OURS)
        .private(),
    Test::new("progress", "split_waits_of_many_threads_complete", many).only_rust(OURS).private(),
    Test::new("progress", "debugger_read_completes_beside_a_writer", debugger)
        .only_rust(OURS)
        .private()
        .seconds(120),
];

/// Minimal progress of a process beside a stalled one, in percent of its normal progress.
const LEAST: u128 = 90;

/// Bound of the time from a SIGKILL to the end of a task whose wait is killable. Nothing that the
/// test delays is part of it: 24 ms were measured. A wait that is not killable takes until the end
/// of a flush, which is 8 times the bound.
const KILLED: Duration = Duration::from_secs(1);

/// Number of pairs of phases that are compared, one with a stall and one without. The first pair is
/// not compared, because it depends on the state of memory before the test.
const PAIRS: usize = 3;

/// Runs `phase` in turn without and with a stall. Compares the fastest phase without a stall with
/// the slowest one with it. `phase` returns the time for one unit of work.
fn compare(mut phase: impl FnMut(bool) -> Result<Duration, Stop>) -> Outcome {
    let mut normal = Duration::MAX;
    let mut stalled = Duration::ZERO;
    for pair in 0..=PAIRS {
        let took = [phase(false)?, phase(true)?];
        println!(
            "# pair {pair}: {} us, beside a stall {} us",
            took[0].as_micros(),
            took[1].as_micros()
        );
        if pair != 0 {
            normal = normal.min(took[0]);
            stalled = stalled.max(took[1]);
        }
    }
    let share = normal.as_nanos() * 100 / stalled.as_nanos().max(1);
    println!("# progress beside a stall: {share} percent of normal");
    check!(share >= LEAST, "progress beside a stall: {share} percent of normal");
    Ok(())
}

/// Commands of the parent to the process that is stalled.
const END: u64 = 0;
const MOVE: u64 = 1;

/// A process holds its mmap lock for writing while its second device takes seconds for a flush, and
/// owns the least recently used block. Another process migrates more memory to the device than it
/// has.
fn eviction(ctx: &Ctx) -> Outcome {
    /// Longer than a phase.
    const STALL: u64 = 6_000_000_000;
    let _restore = with(ctx, &vram(2))?;
    let device = ctx.open()?;
    let other = Device::open(ctx.second).what("open the second device")?;
    let order = Gate::new()?;
    let ready = Gate::new()?;
    let go = Gate::new()?;
    let done = Gate::new()?;
    let stalls = Mapping::shared(1).what("map")?;
    let child = Child::spawn(|| -> Outcome {
        let device = ctx.open()?;
        let other = Device::open(ctx.second).what("open the second device")?;
        let map = block(1)?;
        let mapped = Mapping::anon(8).what("map")?;
        mapped.fill(2);
        while order.receive()? != END {
            check_eq!(to_device(&device, &map)?.moved, BLOCK_PAGES, "pages that moved");
            device_sees(&other, &mapped, 2, "of memory in place")?;
            ready.open()?;
            go.wait()?;
            let before = on_device(&device, &map)?;
            mapped.protect(Prot::Read).what("protect")?;
            stalls.set(0, 0, stalls.get(0, 0) + 1);
            mapped.protect(Prot::ReadWrite).what("protect back")?;
            let after = on_device(&device, &map)?;
            cpu_sees(&map, 1, "of the stalled process")?;
            done.send((before * 2 * HUGE_PAGES + after) as u64)?;
        }
        Ok(())
    })?;
    let maps = (3..6).map(block).collect::<Result<Vec<_>, _>>()?;
    let mut next = (0..maps.len()).cycle();
    let mut move_one = || -> Outcome {
        let map = &maps[next.next().unwrap_or(0)];
        check_eq!(to_device(&device, map)?.moved, BLOCK_PAGES, "pages that moved");
        Ok(())
    };
    compare(|stall| {
        other.set(Setting::FlushDelay, 0).what("set the delay back")?;
        order.send(MOVE)?;
        ready.wait()?;
        let stalls_before = stalls.get(0, 0);
        if stall {
            other.set(Setting::FlushDelay, STALL).what("set the delay")?;
            go.open()?;
            procfs::wait_for_call(child.pid(), child.pid(), libc::SYS_mprotect)
                .what("wait for the lock")?;
        }
        // Evicts the other block of this process. After that the block of the other process is the
        // least recently used.
        move_one()?;
        let begin = Instant::now();
        let mut moves = 0;
        while moves < 6 || begin.elapsed() < Duration::from_millis(600) {
            move_one()?;
            moves += 1;
        }
        let took = begin.elapsed() / moves;
        check_eq!(stalls.get(0, 0), stalls_before, "stalls that ended during the phase");
        if !stall {
            go.open()?;
        }
        // The block must be evicted if and only if the process is not stalled.
        let expected = if stall { BLOCK_PAGES * 2 * BLOCK_PAGES + BLOCK_PAGES } else { 0 };
        check_eq!(done.receive()?, expected, "pages of the other process (stall: {stall})");
        Ok(took)
    })?;
    order.send(END)?;
    child.join().map_err(Stop::Fail)?;
    for (map, seed) in maps.iter().zip(3..) {
        cpu_sees(map, seed, "at the end")?;
    }
    device.close().what("close")?;
    other.close().what("close the second device")?;
    unload_soon(ctx)
}

/// A child process that waits for the split of a huge device page which its parent maps, too. The
/// split waits for the flush of the parent's mirror, which takes long.
struct Waiter {
    child: Child,
    /// Nonzero when the wait has ended.
    over: Mapping,
}

impl Waiter {
    /// Forks a child that touches `map`, which consists of huge device pages. Flushes take `flush`.
    fn begin(device: &Device, map: &Mapping, seed: u64, flush: Duration) -> Result<Self, Stop> {
        check_eq!(resident_huge(device, map)?, map.pages(), "pages in huge device pages");
        let ready = Gate::new()?;
        let over = Mapping::shared(1).what("map")?;
        device.set(Setting::FlushDelay, flush.as_nanos() as u64).what("set the delay")?;
        let child = Child::spawn(|| -> Outcome {
            ready.open()?;
            let word = map.get(77, 7);
            over.set(0, 0, 1);
            check_eq!(word, pattern::word(seed, 77, 7), "the word that was waited for");
            cpu_sees(map, seed, "after the wait")
        })?;
        ready.wait()?;
        // By now the child has touched the page.
        std::thread::sleep(Duration::from_millis(200));
        let waiter = Waiter { child, over };
        check!(!waiter.is_over(), "the wait is over at once");
        Ok(waiter)
    }

    fn is_over(&self) -> bool {
        self.over.get(0, 0) != 0
    }
}

/// A huge page is split for a process, which waits for the flush of another process's device.
/// Meanwhile a third process touches its own huge pages, for which no huge page of system memory
/// can be allocated.
fn splits(ctx: &Ctx) -> Outcome {
    /// Longer than a phase, and as long as a flush.
    const STALL: Duration = Duration::from_secs(6);
    const PAGES: u64 = 8;
    let device = ctx.open()?;
    compare(|stall| {
        device.set(Setting::FlushDelay, 0).what("set the delay back")?;
        // A fault that found the page in use has left the flag set.
        device.set_flags(FLAG_FAIL_ALLOC << 1).what("clear the flag")?;
        let mut stalled = None;
        if stall {
            // Fork before this process maps the pages, which the child would share otherwise.
            let begin = Gate::new()?;
            let ready = Gate::new()?;
            let go = Gate::new()?;
            let over = Mapping::shared(1).what("map")?;
            let child = Child::spawn(|| -> Outcome {
                begin.wait()?;
                let device = ctx.open()?;
                let map = huge(1, 99)?;
                migrate(&device, &map, 99)?;
                let waiter = Waiter::begin(&device, &map, 99, STALL)?;
                ready.open()?;
                waiter.child.join().map_err(Stop::Fail)?;
                over.set(0, 0, 1);
                go.wait()?;
                cpu_sees(&map, 99, "of the process that was stalled")
            })?;
            stalled = Some((child, over, go, begin, ready));
        }
        let maps =
            (0..PAGES).map(|seed| on_its_own(&device, seed)).collect::<Result<Vec<_>, _>>()?;
        if let Some((.., begin, ready)) = &stalled {
            begin.open()?;
            ready.wait()?;
        } else {
            device.set(Setting::FlushDelay, STALL.as_nanos() as u64).what("set the delay")?;
        }
        let begin = Instant::now();
        for (map, seed) in maps.iter().zip(0..) {
            device.set_flags(FLAG_FAIL_ALLOC).what("set the flag")?;
            check_eq!(map.get(77, 7), pattern::word(seed, 77, 7), "CPU read of one word");
        }
        let took = begin.elapsed();
        if let Some((child, over, go, ..)) = stalled {
            check_eq!(over.get(0, 0), 0, "whether the stall has ended during the phase");
            go.open()?;
            child.join().map_err(Stop::Fail)?;
        }
        device.set(Setting::FlushDelay, 0).what("set the delay back")?;
        for (map, seed) in maps.iter().zip(0..) {
            check_eq!(resident_huge(&device, map)?, 0, "pages in huge device pages");
            cpu_sees(map, seed, "after the phase")?;
        }
        Ok(took)
    })
}

/// Maps a huge page in device memory without device PTEs, so that its split needs no flush.
fn on_its_own(device: &Device, seed: u64) -> Result<Mapping, Stop> {
    let map = huge(1, seed)?;
    migrate(device, &map, seed)?;
    map.protect(Prot::Read)?;
    map.protect(Prot::ReadWrite)?;
    check_eq!(resident_huge(device, &map)?, map.pages(), "pages in huge device pages");
    Ok(map)
}

/// A task that waits for a split sleeps. It does not spin.
fn sleeps(ctx: &Ctx) -> Outcome {
    const FLUSH: Duration = Duration::from_secs(4);
    const LOOK: Duration = Duration::from_secs(2);
    let device = ctx.open()?;
    let map = huge(1, 1)?;
    migrate(&device, &map, 1)?;
    let waiter = Waiter::begin(&device, &map, 1, FLUSH)?;
    let before = procfs::cpu_time(waiter.child.pid())?;
    std::thread::sleep(LOOK);
    let used = procfs::cpu_time(waiter.child.pid())? - before;
    check!(!waiter.is_over(), "the wait is over before the flush");
    println!("# a wait of {LOOK:?} has used {used:?} of a processor");
    check!(used <= LOOK / 20, "a wait of {LOOK:?} has used {used:?} of a processor");
    waiter.child.join().map_err(Stop::Fail)?;
    device.set(Setting::FlushDelay, 0).what("set the delay back")?;
    cpu_sees(&map, 1, "by the parent")
}

fn killed(ctx: &Ctx) -> Outcome {
    const FLUSH: Duration = Duration::from_secs(8);
    let device = ctx.open()?;
    let map = huge(1, 1)?;
    migrate(&device, &map, 1)?;
    let mut waiter = Waiter::begin(&device, &map, 1, FLUSH)?;
    let begin = Instant::now();
    waiter.child.signal(libc::SIGKILL);
    let ended = waiter.child.wait_timeout(FLUSH);
    let took = begin.elapsed();
    check!(ended.is_some(), "it does not end");
    check!(!waiter.is_over(), "the wait is over before the flush");
    println!("# it ended {took:?} after the signal");
    check!(took < KILLED, "it ended {took:?} after the signal");
    device.set(Setting::FlushDelay, 0).what("set the delay back")?;
    cpu_sees(&map, 1, "by the parent")
}

/// A device fault waits for an invalidation of its window. A signal that kills its task ends the
/// wait. The task is another process, because the one that invalidates cannot end before that.
fn invalidated(ctx: &Ctx) -> Outcome {
    const FLUSH: Duration = Duration::from_secs(8);
    let device = ctx.open()?;
    let map = Mapping::anon_in_block(2)?;
    map.fill(1);
    let go = Gate::new()?;
    let over = Mapping::shared(1).what("map")?;
    let mut child = Child::spawn(|| -> Outcome {
        go.wait()?;
        let mut page = [0; PAGE_SIZE];
        let done = device.read(map.page_addr(1), &mut page);
        over.set(0, 0, 1);
        done.what("read").map(|_| ())
    })?;
    // After the fork, which write-protects entries.
    device.read(map.addr(), &mut [0; PAGE_SIZE]).what("read")?;
    device.set(Setting::FlushDelay, FLUSH.as_nanos() as u64).what("set the delay")?;
    let invalidating = AtomicBool::new(true);
    let ended = std::thread::scope(|scope| -> Result<_, Stop> {
        let other = scope.spawn(|| {
            let done = map.advise_pages(MADV_DONTNEED, 0, 1);
            invalidating.store(false, Relaxed);
            done
        });
        // By now the thread waits for the flush.
        std::thread::sleep(Duration::from_millis(500));
        go.open()?;
        // By now the child has faulted.
        std::thread::sleep(Duration::from_millis(500));
        let waited = over.get(0, 0) == 0 && child.try_wait().is_none();
        let begin = Instant::now();
        child.signal(libc::SIGKILL);
        let ended = child.wait_timeout(KILLED).map(|_| begin.elapsed());
        let during = invalidating.load(Relaxed);
        device.set(Setting::FlushDelay, 0).what("set the delay back")?;
        other.join().map_err(|_| Stop::Fail("a thread has failed".into()))?.what("madvise")?;
        Ok((waited, ended, during))
    });
    let (waited, ended, during) = ended?;
    check!(waited, "the fault did not wait for the invalidation");
    check!(during, "the invalidation was over when the child had ended, or not");
    let took = ended.ok_or_else(|| Stop::Fail("the killed task still waits".into()))?;
    println!("# it ended {took:?} after the signal");
    let mut page = [0; PAGE_SIZE];
    device.read(map.page_addr(1), &mut page).what("read afterwards")?;
    map.check_pages(1, 1, 1).map_err(|mismatch| Stop::Fail(mismatch.to_string()))
}

/// Four threads discard memory as fast as they can. Device faults in other windows succeed, and no
/// fault is repeated.
fn elsewhere(ctx: &Ctx) -> Outcome {
    const THREADS: usize = 4;
    const WINDOWS: usize = 8;
    const PER_WINDOW: usize = HUGE_PAGES;
    let device = ctx.open()?;
    let separate = |count| -> Result<Mapping, Stop> {
        let map = Mapping::anon_aligned(count)?;
        map.forbid_huge().what("madvise")?;
        Ok(map)
    };
    // The device uses all windows.
    let others = separate(THREADS)?;
    let map = separate(WINDOWS)?;
    let mut page = [0; PAGE_SIZE];
    for number in 0..THREADS {
        others.set(number * HUGE_PAGES, 0, 1);
        device.read(others.page_addr(number * HUGE_PAGES), &mut page).what("read")?;
    }
    for window in 0..WINDOWS {
        map.fill_pages(1, window * HUGE_PAGES, PER_WINDOW);
        device.read(map.page_addr(window * HUGE_PAGES), &mut page).what("read")?;
    }
    let delta = Delta::start(ctx, &device)?;
    let stop = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| -> Result<usize, Stop> {
        let others = &others;
        let stop = &stop;
        let discard = |number: usize| {
            move || -> Result<usize, Errno> {
                let mut rounds = 0;
                while !stop.load(Relaxed) {
                    others.set(number * HUGE_PAGES, 0, 2);
                    others.advise_pages(MADV_DONTNEED, number * HUGE_PAGES, 1)?;
                    rounds += 1;
                }
                Ok(rounds)
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|number| scope.spawn(discard(number))).collect();
        let faults = (1..PER_WINDOW).try_for_each(|number| {
            (0..WINDOWS).try_for_each(|window| {
                device.read(map.page_addr(window * HUGE_PAGES + number), &mut page).map(|_| ())
            })
        });
        stop.store(true, Relaxed);
        let mut rounds = 0;
        for thread in threads {
            let done = thread.join().map_err(|_| Stop::Fail("a thread has failed".into()))?;
            rounds += done.what("madvise")?;
        }
        faults.what("a device fault")?;
        Ok(rounds)
    })?;
    println!("# {rounds} pages were discarded meanwhile");
    check!(rounds >= THREADS, "{rounds} pages were discarded");
    delta.exactly("faults_read", (WINDOWS * (PER_WINDOW - 1)) as i64, "beside the threads")?;
    delta.exactly("retries", 0, "beside the threads")?;
    Ok(())
}

/// Four threads discard pages of a window as fast as they can. Device faults of the other pages in
/// that window succeed. They are retried only because of these events, and not longer than
/// documented. How often depends on how many of the threads run at a time.
fn beside(ctx: &Ctx) -> Outcome {
    const THREADS: usize = 4;
    /// After `FAULT_TIMEOUT` of rust/mirror/retry.rs, 1 s, and `FAULT_MIN_ATTEMPTS` attempts, a
    /// fault fails with `EBUSY`. The last attempt begins before.
    const LONGEST: Duration = Duration::from_secs(2);
    const ATTEMPTS: u64 = 100;
    let device = ctx.open()?;
    let map = Mapping::anon_aligned(1)?;
    map.forbid_huge().what("madvise")?;
    map.fill(1);
    let stop = AtomicBool::new(false);
    let (rounds, longest, retries, most, over) = std::thread::scope(|scope| -> Result<_, Stop> {
        let map = &map;
        let stop = &stop;
        let discard = |page: usize| {
            move || -> Result<usize, Errno> {
                let mut rounds = 0;
                while !stop.load(Relaxed) {
                    map.set(page, 0, 2);
                    map.advise_pages(MADV_DONTNEED, page, 1)?;
                    rounds += 1;
                }
                Ok(rounds)
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|page| scope.spawn(discard(page))).collect();
        let mut found = [0; PAGE_SIZE];
        let mut longest = Duration::ZERO;
        let before = device.counters()?.retries;
        let mut retries = 0;
        let mut most = 0;
        let mut over = 0;
        let faults = (THREADS..map.pages()).try_for_each(|page| -> Outcome {
            let begin = Instant::now();
            device.read(map.page_addr(page), &mut found).what("a device fault")?;
            let took = begin.elapsed();
            let now = device.counters()?.retries - before;
            let own = now - retries;
            if took > LONGEST && own > ATTEMPTS {
                over += 1;
            }
            longest = longest.max(took);
            most = most.max(own);
            retries = now;
            pattern::check(1, page, &found).what("read by the device")
        });
        stop.store(true, Relaxed);
        let mut rounds = 0;
        for thread in threads {
            let done = thread.join().map_err(|_| Stop::Fail("a thread has failed".into()))?;
            rounds += done.what("madvise")?;
        }
        faults?;
        Ok((rounds, longest, retries, most, over))
    })?;
    println!("# {rounds} pages were discarded meanwhile, the longest fault took {longest:?}");
    check!(rounds >= THREADS, "{rounds} pages were discarded");
    println!("# {retries} retries, at most {most} of one fault");
    check!(retries > 0, "no fault collided with an event");
    check!(retries <= rounds as u64, "{retries} retries because of {rounds} events");
    check_eq!(over, 0, "faults that were retried for longer than documented");
    Ok(())
}

/// Each of 8 threads touches all of many huge pages. A thread may be the first one to touch a page,
/// or a later one.
fn many(ctx: &Ctx) -> Outcome {
    // At most 512 MiB: the mock device has its copy in the memory of the machine, too.
    const MOST: usize = (512 << 20) / HUGE_SIZE;
    const PAGES: usize = if MOST < 100 { MOST } else { 100 };
    const THREADS: usize = 8;
    let device = ctx.open()?;
    let map = huge(PAGES, 1)?;
    migrate(&device, &map, 1)?;
    check_eq!(resident_huge(&device, &map)?, map.pages(), "pages in huge device pages");
    // Pages that are shared with a child are always split.
    let gate = Gate::new()?;
    let child = Child::spawn(|| {
        gate.wait()?;
        cpu_sees(&map, 1, "by the child")
    })?;
    let pages = map.pages() / PAGES;
    std::thread::scope(|scope| {
        let threads = (0..THREADS).map(|thread| {
            let map = &map;
            scope.spawn(move || -> Outcome {
                for index in 0..PAGES {
                    let page = (index + thread * PAGES / THREADS) % PAGES * pages + 7 * thread;
                    check_eq!(map.get(page, 5), pattern::word(1, page, 5), "page {page}");
                }
                Ok(())
            })
        });
        let threads = threads.collect::<Vec<_>>();
        let ended = threads.into_iter().map(|thread| {
            thread.join().map_err(|_| Stop::Fail("a thread panicked".to_string()))?
        });
        ended.collect::<Result<Vec<_>, Stop>>()
    })?;
    check_eq!(resident_huge(&device, &map)?, 0, "pages in huge device pages");
    cpu_sees(&map, 1, "by the parent")?;
    gate.open()?;
    child.join().map_err(Stop::Fail)
}

/// A debugger holds the mmap lock for reading until it has the page. If another thread waits for
/// that lock meanwhile, the split can take neither it nor the mmap lock of a stalled child that
/// maps the page, too. So the read must fail after a bounded time.
fn debugger(ctx: &Ctx) -> Outcome {
    const PAGES: usize = 20;
    const STALL: u64 = 10_000_000_000;
    let device = ctx.open()?;
    let other = Device::open(ctx.second).what("open the second device")?;
    let map = huge(PAGES, 1)?;
    migrate(&device, &map, 1)?;
    check_eq!(resident_huge(&device, &map)?, map.pages(), "pages in huge device pages");
    let ready = Gate::new()?;
    let go = Gate::new()?;
    let child = Child::spawn(|| -> Outcome {
        let other = Device::open(ctx.second).what("open the second device")?;
        let mapped = Mapping::anon(8).what("map")?;
        mapped.fill(2);
        device_sees(&other, &mapped, 2, "of memory in place")?;
        ready.open()?;
        go.wait()?;
        mapped.protect(Prot::Read).what("protect")?;
        cpu_sees(&map, 1, "by the child")
    })?;
    ready.wait()?;
    other.set(Setting::FlushDelay, STALL).what("set the delay")?;
    go.open()?;
    procfs::wait_for_call(child.pid(), child.pid(), libc::SYS_mprotect)
        .what("wait for the child's lock")?;
    let failed = (0..PAGES).map(|index| fails_as_debugger(&map, index * map.pages() / PAGES));
    let failed = failed.take_while(|failed| !matches!(failed, Ok(true)));
    let tries = failed.collect::<Result<Vec<_>, Stop>>()?.len();
    println!("# {tries} reads before one failed");
    other.set(Setting::FlushDelay, 0).what("set the delay back")?;
    check!(tries < PAGES, "no read failed: the lock could be had");
    child.join().map_err(Stop::Fail)?;
    cpu_sees(&map, 1, "at the end")
}

/// Reads page `page` as a debugger while another thread waits for the mmap lock for writing.
/// Returns whether the read failed. It must end in twice the time after which the library gives up
/// a split (`SPLIT_TIMEOUT` of rust/memory/splits.rs): 2.1 s were measured.
fn fails_as_debugger(map: &Mapping, page: usize) -> Result<bool, Stop> {
    const LONGEST: Duration = Duration::from_secs(4);
    let memory = std::fs::File::open("/proc/self/mem").what("open /proc/self/mem")?;
    let mut found = [0; PAGE_SIZE];
    let end = AtomicBool::new(false);
    let begin = Instant::now();
    let read = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !end.load(Relaxed) {
                drop(Mapping::anon(1));
            }
        });
        std::thread::sleep(Duration::from_millis(20));
        let read = memory.read_exact_at(&mut found, map.page_addr(page) as u64);
        end.store(true, Relaxed);
        read
    });
    let took = begin.elapsed();
    println!("# page {page}: {took:?}, {:?}", read.as_ref().err());
    check!(took < LONGEST, "a read took {took:?}");
    if read.is_ok() {
        pattern::check(1, page, &found).what("read by a debugger")?;
    }
    Ok(read.is_err())
}
