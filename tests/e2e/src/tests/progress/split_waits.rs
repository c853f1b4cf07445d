// SPDX-License-Identifier: GPL-2.0
//! Waits for the split of a huge device page: they sleep, can be killed, and end.

use super::KILLED;
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::{
    pattern,
    procfs,
    Child,
    Device,
    Gate,
    Mapping,
    Prot,
    Setting,
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

/// A child process that waits for the split of a huge device page which its parent maps, too. The
/// split waits for the flush of the parent's mirror, which takes long.
pub(super) struct Waiter {
    pub(super) child: Child,
    /// Nonzero when the wait has ended.
    over: Mapping,
}

impl Waiter {
    /// Forks a child that touches `map`, which consists of huge device pages. Flushes take `flush`.
    pub(super) fn begin(
        device: &Device,
        map: &Mapping,
        seed: u64,
        flush: Duration,
    ) -> Result<Self, Stop> {
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

/// A task that waits for a split sleeps. It does not spin.
pub(super) fn sleeps(ctx: &Ctx) -> Outcome {
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

pub(super) fn killed(ctx: &Ctx) -> Outcome {
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

/// Each of 8 threads touches all of many huge pages. A thread may be the first one to touch a page,
/// or a later one.
pub(super) fn many(ctx: &Ctx) -> Outcome {
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
pub(super) fn debugger(ctx: &Ctx) -> Outcome {
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
