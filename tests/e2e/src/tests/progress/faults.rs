// SPDX-License-Identifier: GPL-2.0
//! Device faults during invalidations in the same window, and in other windows.

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
use hmm::mapping::MADV_DONTNEED;
use hmm::{
    pattern,
    Child,
    Errno,
    Gate,
    Mapping,
    Setting,
    HUGE_PAGES,
    PAGE_SIZE, //
};
use std::sync::atomic::{
    AtomicBool,
    Ordering::Relaxed, //
};
use std::time::{
    Duration,
    Instant, //
};

/// A device fault waits for an invalidation of its window. A signal that kills its task ends the
/// wait. The task is another process, because the one that invalidates cannot end before that.
pub(super) fn invalidated(ctx: &Ctx) -> Outcome {
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
pub(super) fn elsewhere(ctx: &Ctx) -> Outcome {
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
pub(super) fn beside(ctx: &Ctx) -> Outcome {
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
