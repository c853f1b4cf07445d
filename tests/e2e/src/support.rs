// SPDX-License-Identifier: GPL-2.0
//! Steps and checks that many tests share.

use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::{
    check,
    check_eq, //
};
use hmm::abi::{
    HUGE_PAGES,
    HUGE_SIZE, //
};
use hmm::engine::Way;
use hmm::mapping::has_huge_pages;
use hmm::{
    pattern,
    procfs,
    smaps,
    Child,
    Counters,
    Device,
    Done,
    Errno,
    Mapping,
    Prot,
    PAGE_SIZE, //
};
use std::sync::atomic::{
    AtomicBool,
    Ordering, //
};
use std::sync::mpsc::Receiver;
use std::time::{
    Duration,
    Instant, //
};

/// Checks that the device reads the pattern `seed` in some pages.
pub fn device_sees_pages(
    device: &Device,
    map: &Mapping,
    seed: u64,
    first: usize,
    npages: usize,
    when: &str,
) -> Result<Done, Stop> {
    let mut data = vec![0xaa; npages * PAGE_SIZE];
    let done = device.read(map.page_addr(first), &mut data);
    let done = done.what(&format!("device read {when}"))?;
    pattern::check(seed, first, &data).what(&format!("device read {when}"))?;
    check_eq!(done.cpages, npages as u64, "cpages of the device read {when}");
    Ok(done)
}

/// Checks that the device reads the pattern `seed` in all pages.
pub fn device_sees(device: &Device, map: &Mapping, seed: u64, when: &str) -> Result<Done, Stop> {
    device_sees_pages(device, map, seed, 0, map.pages(), when)
}

/// Checks that the device reads zeroes in some pages.
pub fn device_sees_zero(
    device: &Device,
    map: &Mapping,
    first: usize,
    npages: usize,
    when: &str,
) -> Outcome {
    let mut data = vec![0xaa; npages * PAGE_SIZE];
    let done = device.read(map.page_addr(first), &mut data);
    done.what(&format!("device read {when}"))?;
    pattern::check_zero(&data).what(&format!("device read {when}, zeros expected"))
}

/// Writes the pattern `seed` to some pages by the device.
pub fn device_fills_pages(
    device: &Device,
    map: &Mapping,
    seed: u64,
    first: usize,
    npages: usize,
    when: &str,
) -> Result<Done, Stop> {
    let data = pattern::buffer(seed, first, npages);
    let done = device.write(map.page_addr(first), &data);
    let done = done.what(&format!("device write {when}"))?;
    check_eq!(done.cpages, npages as u64, "cpages of the device write {when}");
    Ok(done)
}

/// Writes the pattern `seed` to all pages by the device.
pub fn device_fills(device: &Device, map: &Mapping, seed: u64, when: &str) -> Result<Done, Stop> {
    device_fills_pages(device, map, seed, 0, map.pages(), when)
}

/// Checks that the CPU reads the pattern `seed` in all pages.
pub fn cpu_sees(map: &Mapping, seed: u64, when: &str) -> Outcome {
    map.check(seed).what(&format!("CPU read {when}"))
}

/// Drains the per-CPU batches of folios that wait to be added to an LRU list or moved between
/// lists. Until then such a folio has an additional reference and does not migrate.
pub fn settle() -> Outcome {
    std::fs::write("/proc/sys/vm/drop_caches", "1").what("drop caches")
}

/// Migrates all pages to the device. Checks that all have moved and hold the pattern `seed`.
pub fn migrate(device: &Device, map: &Mapping, seed: u64) -> Outcome {
    let mut data = vec![0xaa; map.len()];
    let done = device.migrate_to_device(map.addr(), &mut data).what("migrate to the device")?;
    check_eq!(done.cpages, map.pages() as u64, "cpages of the migration");
    pattern::check(seed, 0, &data).what("data that the migration returns")?;
    check_eq!(resident(device, map, 0, map.pages())?, map.pages(), "pages on the device");
    Ok(())
}

/// Migrates all pages to the device without checking the result.
pub fn try_migrate(device: &Device, map: &Mapping) -> Result<Done, Errno> {
    let mut data = vec![0xaa; map.len()];
    device.migrate_to_device(map.addr(), &mut data)
}

/// Returns how many of some pages are in the device's memory.
pub fn resident(
    device: &Device,
    map: &Mapping,
    first: usize,
    npages: usize,
) -> Result<usize, Stop> {
    if npages == 0 {
        // An empty range is an error for the driver.
        return Ok(0);
    }
    let states = device.snapshot(map.page_addr(first), npages).what("snapshot")?;
    Ok(states.iter().filter(|state| state.is_local()).count())
}

/// Returns how many pages of `map` are in the device's memory as parts of huge pages.
pub fn resident_huge(device: &Device, map: &Mapping) -> Result<usize, Stop> {
    let states = device.snapshot(map.addr(), map.pages()).what("snapshot")?;
    Ok(states.iter().filter(|state| state.is_local() && state.is_huge()).count())
}

/// Checks that a call fails with exactly this error.
pub fn fails<T: std::fmt::Debug>(result: Result<T, Errno>, errno: Errno, what: &str) -> Outcome {
    match result {
        Err(found) if found == errno => Ok(()),
        other => Err(Stop::Fail(format!("{what}: found {other:?}, expected {errno}"))),
    }
}

/// Polls until `holds` returns true. Fails after a minute; `what` names the condition.
pub fn until(what: &str, mut holds: impl FnMut() -> Result<bool, Stop>) -> Outcome {
    let begin = Instant::now();
    while !holds()? {
        check!(begin.elapsed() < Duration::from_secs(60), "waited a minute for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Waits until a thread of this process has sent its id to `thread` and sleeps in the system call
/// `number`.
pub fn sleeps_in(thread: &Receiver<i32>, number: libc::c_long) -> Outcome {
    let id = thread.recv_timeout(Duration::from_secs(20)).map_err(|error| format!("{error}"));
    let id = id.map_err(|why| Stop::Fail(format!("the thread has not begun: {why}")))?;
    procfs::wait_for_call(std::process::id() as i32, id, number).what("wait for a thread's call")
}

/// Waits until the process `child` sleeps in the system call `number`.
pub fn child_sleeps_in(child: &Child, number: libc::c_long) -> Outcome {
    procfs::wait_for_call(child.pid(), child.pid(), number).what("wait for the child's call")
}

/// Runs `run` in a child process. Fails if it has not ended after two minutes, and kills it then.
pub fn comes_to_an_end(run: impl FnOnce() -> Outcome) -> Outcome {
    let mut child = Child::spawn(run)?;
    let ended = child.wait_timeout(Duration::from_secs(120));
    if ended.is_none() {
        child.signal(libc::SIGKILL);
    }
    check!(ended.is_some(), "it never comes to an end");
    child.outcome().map_err(Stop::Fail)
}

/// Runs `run` while another thread invalidates the first page of `map` on every device
/// continuously.
pub fn while_taken(map: &Mapping, run: impl FnOnce() -> Outcome) -> Outcome {
    const PAUSE: Duration = Duration::from_millis(20);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let taker = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                map.protect_pages(Prot::Read, 0, 1)?;
                map.protect_pages(Prot::ReadWrite, 0, 1)?;
                std::thread::sleep(PAUSE);
            }
            Ok::<_, Errno>(())
        });
        let ran = run();
        over.store(true, Ordering::Relaxed);
        taker.join().map_err(|_| Stop::Fail("a thread panicked".into()))??;
        ran
    })
}

/// Fills device memory with small pages, one mapping after the other.
pub fn crowd(device: &Device, maps: &[Mapping]) -> Outcome {
    for (seed, map) in maps.iter().enumerate() {
        map.forbid_huge()?;
        map.fill(seed as u64);
        device.migrate(map.addr(), map.pages(), Way::ToDevice).what("migrate")?;
    }
    Ok(())
}

/// Writes the same memory by CPU and device in turns.
pub fn by_turns(device: &Device, map: &Mapping) -> Outcome {
    for round in 0..6 {
        map.fill(round);
        device_fills(device, map, round + 100, "by turns")?;
        cpu_sees(map, round + 100, "by turns")?;
    }
    Ok(())
}

/// Skips the test if the kernel has no transparent huge pages.
pub fn needs_huge_pages() -> Outcome {
    if has_huge_pages() {
        Ok(())
    } else {
        Err(Stop::Skip("this kernel has no transparent huge pages".to_string()))
    }
}

/// Returns `count` huge pages with the pattern `seed`, and ensures that they are huge. Skips the
/// test if the kernel has no transparent huge pages.
pub fn huge(count: usize, seed: u64) -> Result<Mapping, Stop> {
    needs_huge_pages()?;
    let map = Mapping::anon_huge(count).what("map memory for huge pages")?;
    map.fill(seed);
    make_huge(&map)?;
    Ok(map)
}

/// KiB of a huge page, in which the kernel counts them.
pub const HUGE_KIB: u64 = HUGE_SIZE as u64 / 1024;

/// Pages of a block of device memory, which has the size of a huge page, as counters have them.
pub const BLOCK_PAGES: u64 = HUGE_PAGES as u64;

/// Parameter of the module for device memory of the size of `blocks` huge pages.
pub fn vram(blocks: usize) -> String {
    format!("vram_mib={}", (blocks * HUGE_SIZE) >> 20)
}

/// Ensures that a populated mapping consists of huge pages.
pub fn make_huge(map: &Mapping) -> Outcome {
    let kib = (map.pages() / HUGE_PAGES) as u64 * HUGE_KIB;
    let backed = || smaps::field(map.addr(), map.len(), "AnonHugePages").what("smaps");
    // Whether a fault allocates a huge page depends on settings and free memory. MADV_COLLAPSE does
    // not depend on them, but fails while another task holds a reference on a page.
    for _ in 0..10 {
        if backed()? == kib {
            return Ok(());
        }
        let _ = map.collapse();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    check_eq!(backed()?, kib, "KiB in huge pages");
    Ok(())
}

/// Overwrites `npages` pages of new memory, so that freed pages are reused.
pub fn reuse_freed_pages(npages: usize) -> Result<Mapping, Stop> {
    let map = Mapping::anon(npages).what("map memory")?;
    for page in 0..npages {
        (0..pattern::WORDS).for_each(|word| map.set(page, word, 0xdead_dead_dead_dead));
    }
    Ok(map)
}

/// Differences of counters since a start. Checks nothing if the driver has no counters.
pub struct Delta<'a> {
    ctx: &'a Ctx,
    device: &'a Device,
    start: Option<Counters>,
}

impl<'a> Delta<'a> {
    /// Records the counters as the start.
    pub fn start(ctx: &'a Ctx, device: &'a Device) -> Result<Self, Stop> {
        Ok(Delta { ctx, device, start: ctx.counters(device)? })
    }

    fn difference(&self, name: &str) -> Result<Option<i64>, Stop> {
        let (Some(start), Some(now)) = (&self.start, &self.ctx.counters(self.device)?) else {
            return Ok(None);
        };
        let value = |counters: &Counters| {
            let field = counters.fields().into_iter().find(|field| field.0 == name);
            field.map(|field| field.1 as i64)
        };
        match (value(start), value(now)) {
            (Some(start), Some(now)) => Ok(Some(now - start)),
            _ => Err(Stop::Fail(format!("there is no counter {name}"))),
        }
    }

    /// Checks that the counter has changed by exactly `by`.
    pub fn exactly(&self, name: &str, by: i64, when: &str) -> Outcome {
        if let Some(found) = self.difference(name)? {
            check_eq!(found, by, "change of {name} {when}");
        }
        Ok(())
    }

    /// Checks that the counter has increased by at least `by`.
    pub fn at_least(&self, name: &str, by: i64, when: &str) -> Outcome {
        if let Some(found) = self.difference(name)? {
            check!(found >= by, "change of {name} {when}: found {found}, expected {by} or more");
        }
        Ok(())
    }
}
