// SPDX-License-Identifier: GPL-2.0
//! Concurrent threads: no update is lost, and no read returns other data.

use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    Test,
    What, //
};
use crate::mover::race_is_over;
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::{
    mapping,
    pattern,
    Child,
    Device,
    Errno,
    Mapping,
    Setting,
    PAGE_SIZE, //
};
use std::sync::atomic::{
    AtomicBool,
    AtomicU64,
    Ordering, //
};
use std::sync::{
    Arc,
    Barrier, //
};
use std::time::{
    Duration,
    Instant, //
};

const OOPS: &str = "a refault of its own device page: oops";
const OURS: &str = "the C driver has no delay of copies";
const LOST: &str = "loses device writes that run into a migration";

pub const TESTS: &[Test] = &[
    Test::new("race", "reads_and_migrations_on_one_file", reads_and_migrations).defect(OOPS),
    Test::new("race", "cpu_writers_and_migrations", cpu_writers).defect(OOPS),
    Test::new("race", "cpu_writers_and_huge_migrations", cpu_writers_huge).defect(OOPS),
    Test::new("race", "device_writer_and_migrations", device_writer).defect(LOST),
    Test::new("race", "device_writer_on_another_file", device_writer_other_file).defect(LOST),
    Test::new("race", "munmap_under_device_reads", munmap_under_reads).defect(OOPS),
    Test::new("race", "dontneed_under_migrations", dontneed_under_migrations).defect(OOPS),
    Test::new("race", "forks_under_device_writes", forks_under_writes).defect(OOPS),
    Test::new("race", "first_accesses_do_not_wait_for_each_other", first_uses).only_rust(OURS),
];

type Job<'a> = Box<dyn FnMut() -> Outcome + Send + 'a>;

/// Repeats each job in a thread of its own, at least once, until [`race_is_over`]. `ran` returns
/// whether the race was run. Fails if a job failed or if the race was not run.
fn together(jobs: Vec<Job<'_>>, moved: &Moved, ran: fn(&Moved) -> bool) -> Outcome {
    let stop = AtomicBool::new(false);
    let begin = Instant::now();
    let over = || race_is_over(begin.elapsed(), ran(moved));
    let run = |mut job: Job<'_>| loop {
        let done = job();
        if done.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        if stop.load(Ordering::Relaxed) || over() {
            return done;
        }
    };
    let run = &run;
    let results: Vec<Outcome> = std::thread::scope(|scope| {
        let threads: Vec<_> = jobs.into_iter().map(|job| scope.spawn(move || run(job))).collect();
        let panicked = |_| Err(Stop::Fail("a thread panicked".to_string()));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    results.into_iter().collect::<Outcome>()?;
    let (there, back) = moved.counts();
    println!("# {there} pages moved there, {back} back by request");
    check!(ran(moved), "{there} pages moved there, {back} back");
    Ok(())
}

/// Counts the pages that were migrated while other threads used them.
#[derive(Default)]
struct Moved {
    there: AtomicU64,
    back: AtomicU64,
}

impl Moved {
    /// Migrates to the device and reads there, while other threads disturb that. ENOENT is not a
    /// failure: pages have migrated back before they were read, and the number of pages that
    /// migrated is unknown.
    fn disturbed(&self, device: &Device, map: &Mapping, buffer: &mut [u8]) -> Outcome {
        match device.migrate_to_device(map.addr(), buffer) {
            Ok(done) => self.there.fetch_add(done.cpages, Ordering::Relaxed),
            Err(Errno::ENOENT) => 0,
            Err(error) => return Err(Stop::Fail(format!("migrate to the device: {error}"))),
        };
        Ok(())
    }

    fn back(&self, device: &Device, map: &Mapping) -> Outcome {
        let done = device.migrate_to_system(map.addr(), map.pages());
        let pages = done.what("migrate to the system")?.cpages;
        self.back.fetch_add(pages, Ordering::Relaxed);
        Ok(())
    }

    fn counts(&self) -> (u64, u64) {
        (self.there.load(Ordering::Relaxed), self.back.load(Ordering::Relaxed))
    }

    /// Returns whether pages moved. A page that migrated back by request was on the device.
    fn any(&self) -> bool {
        let (there, back) = self.counts();
        there + back > 0
    }

    /// Returns whether pages migrated back by request.
    fn both(&self) -> bool {
        self.counts().1 > 0
    }
}

/// Repeats a device access that returns EBUSY because it backs off for migrations. It must succeed
/// eventually.
fn patiently<T>(mut access: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..20 {
        match access() {
            Err(Errno::EBUSY) => std::thread::sleep(Duration::from_millis(1)),
            other => return other,
        }
    }
    access()
}

/// Checks that the device reads the pattern `seed`, after a number of tries.
fn sees_in_the_end(device: &Device, map: &Mapping, seed: u64, when: &str) -> Outcome {
    let mut data = vec![0xaa; map.len()];
    let done = patiently(|| device.read(map.addr(), &mut data));
    done.what(&format!("device read {when}"))?;
    pattern::check(seed, 0, &data).what(&format!("device read {when}"))
}

/// Reads, migrations in both directions and CPU accesses, all with one file.
fn reads_and_migrations(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    for map in [Mapping::anon(64)?, huge(1, 1)?] {
        map.fill(1);
        let mut buffer = vec![0; map.len()];
        let moved = Moved::default();
        let read = || sees_in_the_end(&device, &map, 1, "during migrations");
        let jobs: Vec<Job<'_>> = vec![
            Box::new(read),
            Box::new(|| moved.disturbed(&device, &map, &mut buffer)),
            Box::new(|| moved.back(&device, &map)),
            Box::new(|| cpu_sees(&map, 1, "during migrations")),
        ];
        together(jobs, &moved, Moved::any)?;
        cpu_sees(&map, 1, "at the end")?;
        device_sees(&device, &map, 1, "at the end")?;
    }
    Ok(())
}

/// Two CPU threads increment a word of each page while the pages migrate back and forth.
fn count_and_migrate(ctx: &Ctx, map: &Mapping) -> Outcome {
    let device = ctx.open()?;
    (0..map.pages()).for_each(|page| map.set(page, 0, 0));
    let counted = AtomicU64::new(0);
    let count = || {
        for page in 0..map.pages() {
            map.atomic(page, 0).fetch_add(1, Ordering::Relaxed);
        }
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    let mut buffer = vec![0; map.len()];
    let moved = Moved::default();
    let jobs: Vec<Job<'_>> = vec![
        Box::new(count),
        Box::new(count),
        Box::new(|| moved.disturbed(&device, map, &mut buffer)),
        Box::new(|| moved.back(&device, map)),
    ];
    together(jobs, &moved, Moved::any)?;
    let expected = counted.load(Ordering::Relaxed);
    for page in 0..map.pages() {
        let found = map.get(page, 0);
        check!(found == expected, "page {page} counted {found}, expected {expected}: lost updates");
    }
    Ok(())
}

fn cpu_writers(ctx: &Ctx) -> Outcome {
    count_and_migrate(ctx, &Mapping::anon(64)?)
}

fn cpu_writers_huge(ctx: &Ctx) -> Outcome {
    count_and_migrate(ctx, &huge(1, 1)?)
}

/// The device is the only writer of each page. Its last write must be visible.
fn write_and_migrate(writer: &Device, mover: &Device, map: &Mapping) -> Outcome {
    map.fill(1);
    let mut seed = 1;
    let mut buffer = vec![0; map.len()];
    let moved = Moved::default();
    let write = || {
        seed += 1;
        let data = pattern::buffer(seed, 0, map.pages());
        let done = patiently(|| writer.write(map.addr(), &data));
        done.what("device write during migrations")?;
        sees_in_the_end(writer, map, seed, "of its own words")?;
        if seed % 4 == 0 {
            cpu_sees(map, seed, "of words that the device has just written")?;
        }
        Ok(())
    };
    let jobs: Vec<Job<'_>> = vec![
        Box::new(write),
        Box::new(|| moved.disturbed(mover, map, &mut buffer)),
        Box::new(|| moved.back(mover, map)),
    ];
    together(jobs, &moved, Moved::both)?;
    cpu_sees(map, seed, "at the end")
}

fn device_writer(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    write_and_migrate(&device, &device, &Mapping::anon(32)?)?;
    write_and_migrate(&device, &device, &huge(1, 1)?)
}

fn device_writer_other_file(ctx: &Ctx) -> Outcome {
    let writer = ctx.open()?;
    let mover = ctx.open()?;
    write_and_migrate(&writer, &mover, &Mapping::anon(32)?)?;
    write_and_migrate(&writer, &mover, &huge(1, 1)?)
}

/// A read of memory that is unmapped concurrently fails or returns the right data.
fn munmap_under_reads(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let begin = Instant::now();
    let mut moved = 0;
    let mut failed = 0;
    let mut rounds = 0;
    // The read and the unmap may be in either order. If the read is always first, the test proves
    // nothing.
    while !race_is_over(begin.elapsed(), failed > 0) {
        rounds += 1;
        let map = Mapping::anon(256)?;
        map.fill(1);
        moved += try_migrate(&device, &map).what("migrate")?.cpages;
        let mut data = vec![0; map.len()];
        let (read, unmapped) = std::thread::scope(|scope| {
            let unmapper = scope.spawn(|| map.unmap_pages(128, 128));
            (device.read(map.addr(), &mut data), unmapper.join())
        });
        check!(matches!(unmapped, Ok(Ok(()))), "munmap failed");
        match read {
            Ok(_) => pattern::check(1, 0, &data).what("read during munmap")?,
            Err(error) => {
                failed += 1;
                fails(Err::<(), _>(error), Errno::EFAULT, "read during munmap")?
            }
        }
        device_sees_pages(&device, &map, 1, 0, 128, "of the half that stays")?;
    }
    println!("# {moved} pages moved, {failed} of {rounds} reads failed");
    check!(moved > 0 && failed > 0, "{moved} pages moved, {failed} of {rounds} reads failed");
    Ok(())
}

/// Each page has its old contents or is zero, and stays zero from then on.
fn dontneed_under_migrations(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(64)?;
    let mut buffer = vec![0; map.len()];
    let moved = Moved::default();
    let mut seed = 0;
    let jobs: Vec<Job<'_>> = vec![
        Box::new(|| {
            seed += 1;
            map.fill(seed);
            map.advise(mapping::MADV_DONTNEED)?;
            device_sees_zero(&device, &map, 0, map.pages(), "after MADV_DONTNEED")?;
            map.check_zero(0, map.pages()).what("CPU read after MADV_DONTNEED")
        }),
        Box::new(|| moved.disturbed(&device, &map, &mut buffer)),
    ];
    together(jobs, &moved, Moved::any)
}

/// Children are forked while the device writes. Each sees the contents at the time of its fork: all
/// from before a write or all from after it.
fn forks_under_writes(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(16)?;
    map.fill(1);
    let begin = Instant::now();
    let mut seed = 1;
    let mut moved = 0;
    while !race_is_over(begin.elapsed(), moved > 0) {
        moved += try_migrate(&device, &map).what("migrate")?.cpages;
        // The threads end before the fork, because a forked child has only one thread.
        let child = hmm::Child::spawn(|| {
            for _ in 0..3 {
                cpu_sees(&map, seed, "by the child")?;
            }
            map.fill(1000);
            cpu_sees(&map, 1000, "by the child of its own words")
        })?;
        let before = seed;
        for _ in 0..3 {
            seed += 1;
            device_fills(&device, &map, seed, "while a child reads")?;
        }
        check!(seed > before, "no write");
        device_sees(&device, &map, seed, "while a child reads")?;
        child.join().map_err(Stop::Fail)?;
        cpu_sees(&map, seed, "by the parent")?;
    }
    check!(moved > 0, "no page moved");
    Ok(())
}

/// The first two accesses of a process to memory, in two windows. One copies for long, and the
/// other must not wait for it.
fn first_uses(ctx: &Ctx) -> Outcome {
    const ROUNDS: usize = 200;
    const PAGES: usize = 1024;
    let watch = ctx.open()?;
    let before = watch.set(Setting::CopyDelay, 1_000_000_000).what("set the delay")?;
    let round = || -> Result<(), Stop> {
        let device = Arc::new(ctx.open()?);
        let map = Mapping::anon(PAGES)?;
        let last = map.page_addr(PAGES - 1);
        map.set(0, 0, 1);
        map.set(PAGES - 1, 0, 2);
        let begin = Arc::new(Barrier::new(2));
        let done = Arc::new(AtomicBool::new(false));
        let first = (device.clone(), begin.clone(), done.clone());
        let addr = map.addr();
        // Not joined: the thread ends with the process.
        std::thread::spawn(move || {
            let (device, begin, done) = first;
            begin.wait();
            let _killed = device.migrate_to_device(addr, &mut [0; PAGE_SIZE]);
            done.store(true, Ordering::Release);
        });
        begin.wait();
        let mut word = [0; PAGE_SIZE];
        device.read(last, &mut word).what("read")?;
        check!(!done.load(Ordering::Acquire), "the read waited for the copies of the other window");
        check_eq!(word[0], 2, "words read");
        // Unmapping would wait for the copies.
        std::mem::forget(map);
        Ok(())
    };
    let mut outcome = Ok(());
    for number in 0..ROUNDS {
        if let Err(why) = Child::spawn(round)?.join() {
            outcome = Err(Stop::Fail(format!("round {number}: {why}")));
            break;
        }
    }
    watch.set(Setting::CopyDelay, before).what("set the delay back")?;
    outcome
}
