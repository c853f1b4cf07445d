// SPDX-License-Identifier: GPL-2.0
//! Files on a file system with writeback, which tmpfs does not have. Device writes must dirty the
//! page cache, and device PTEs must follow write protection, truncation and reclaim.

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
use hmm::{
    files,
    pattern,
    Command,
    Device,
    EngineOp,
    Errno,
    Mapping,
    PAGE_SIZE, //
};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{
    AtomicBool,
    Ordering::SeqCst, //
};
use std::time::Duration;

const DIR: &str = "/mnt/ext4";
const PAGES: usize = 32;
const OURS: &str = "the C driver has no engines";

pub const TESTS: &[Test] = &[
    Test::new("writeback", "device_writes_reach_the_disk", reach_the_disk),
    Test::new("writeback", "write_after_writeback_is_dirty_again", dirty_again),
    Test::new("writeback", "truncated_pages_are_unmapped", truncated),
    Test::new("writeback", "punched_pages_read_zero", punched),
    Test::new("writeback", "reclaimed_pages_are_read_again", reclaimed),
    Test::new("writeback", "additions_survive_concurrent_writeback", additions).only_rust(OURS),
    Test::new("writeback", "reads_survive_concurrent_truncation", races).only_rust(OURS),
];

/// Creates a file on ext4 with the pattern `seed`, and maps it shared.
fn shared(seed: u64) -> Result<(File, Mapping), Stop> {
    let mounts = std::fs::read_to_string("/proc/mounts").what("mounts")?;
    if !mounts.lines().any(|line| line.split(' ').nth(1) == Some(DIR)) {
        return Err(Stop::Skip("this kernel has no file system with writeback".to_string()));
    }
    let file = files::temp_file(DIR, seed, PAGES).what("a file on ext4")?;
    let map = Mapping::file_shared(&file, PAGES)?;
    Ok((file, map))
}

/// Returns the contents on disk. The page cache of the file is written back and dropped first, so a
/// page that was never marked dirty has its old contents.
fn disk(file: &File) -> Result<Vec<u8>, Stop> {
    file.sync_all().what("fsync")?;
    std::fs::write("/proc/sys/vm/drop_caches", "1").what("drop the page cache")?;
    let mut data = vec![0; PAGES * PAGE_SIZE];
    file.read_exact_at(&mut data, 0).what("read the file")?;
    Ok(data)
}

fn on_disk(file: &File, map: Mapping, seed: u64, what: &str) -> Outcome {
    // Mapped pages are not dropped from the page cache.
    drop(map);
    pattern::check(seed, 0, &disk(file)?).what(what)
}

fn reach_the_disk(ctx: &Ctx) -> Outcome {
    let (file, map) = shared(1)?;
    let device = ctx.open()?;
    device_sees(&device, &map, 1, "of a file")?;
    device_fills(&device, &map, 2, "to a file")?;
    cpu_sees(&map, 2, "of a file")?;
    on_disk(&file, map, 2, "the disk after a device write")
}

/// Writeback write-protects the page. A device that kept write access would write to a clean page,
/// which the file system never writes back.
fn dirty_again(ctx: &Ctx) -> Outcome {
    let (file, map) = shared(1)?;
    let device = ctx.open()?;
    for seed in 2..8 {
        device_fills(&device, &map, seed, "before writeback")?;
        file.sync_all().what("fsync")?;
        let states = device.snapshot(map.addr(), PAGES).what("snapshot")?;
        let writable = states.iter().filter(|state| state.is_writable()).count();
        check_eq!(writable, 0, "pages that are writable after writeback");
    }
    device_fills(&device, &map, 9, "after writeback")?;
    on_disk(&file, map, 9, "the disk after a device write that followed writeback")
}

fn truncated(ctx: &Ctx) -> Outcome {
    let (file, map) = shared(1)?;
    let device = ctx.open()?;
    device_fills(&device, &map, 2, "before the truncation")?;
    let half = PAGES / 2;
    file.set_len((half * PAGE_SIZE) as u64).what("truncate")?;
    device_sees_pages(&device, &map, 2, 0, half, "of pages that stay")?;
    let mut data = vec![0; PAGE_SIZE];
    for page in [half, PAGES - 1] {
        fails(device.read(map.page_addr(page), &mut data), Errno::EFAULT, "read beyond the end")?;
        fails(device.write(map.page_addr(page), &data), Errno::EFAULT, "write beyond the end")?;
    }
    file.set_len((PAGES * PAGE_SIZE) as u64).what("extend")?;
    device_sees_zero(&device, &map, half, PAGES - half, "of truncated pages")?;
    device_fills(&device, &map, 3, "of the file that is long again")?;
    on_disk(&file, map, 3, "the disk after a truncation")
}

fn punched(ctx: &Ctx) -> Outcome {
    let (file, map) = shared(1)?;
    let device = ctx.open()?;
    device_fills(&device, &map, 2, "before the hole")?;
    files::punch(&file, 8, 8).what("punch a hole")?;
    device_sees_zero(&device, &map, 8, 8, "of the hole")?;
    device_sees_pages(&device, &map, 2, 0, 8, "before the hole")?;
    device_sees_pages(&device, &map, 2, 16, PAGES - 16, "behind the hole")?;
    device_fills_pages(&device, &map, 3, 8, 4, "into the hole")?;
    drop(map);
    let data = disk(&file)?;
    let pages = |first: usize, end: usize| &data[first * PAGE_SIZE..end * PAGE_SIZE];
    pattern::check(2, 0, pages(0, 8)).what("the disk before the hole")?;
    pattern::check(3, 8, pages(8, 12)).what("the disk where the device filled the hole")?;
    pattern::check_zero(pages(12, 16)).what("the disk in the hole")?;
    pattern::check(2, 16, pages(16, PAGES)).what("the disk behind the hole")
}

fn reclaimed(ctx: &Ctx) -> Outcome {
    let (file, map) = shared(1)?;
    let device = ctx.open()?;
    device_fills(&device, &map, 2, "before reclaim")?;
    file.sync_all().what("fsync")?;
    let delta = Delta::start(ctx, &device)?;
    map.advise(libc::MADV_PAGEOUT)?;
    std::fs::write("/proc/sys/vm/drop_caches", "1").what("drop the page cache")?;
    device_sees(&device, &map, 2, "of reclaimed pages")?;
    delta.at_least("invalidated_pages", 1, "by reclaim")?;
    device_fills(&device, &map, 3, "of pages read again")?;
    on_disk(&file, map, 3, "the disk after reclaim")
}

/// An engine adds to each page while the file is written back repeatedly. At the end the disk must
/// have all additions.
fn additions(ctx: &Ctx) -> Outcome {
    let (file, map) = shared(1)?;
    let device = ctx.open()?;
    (0..PAGES).for_each(|page| map.set(page, 0, 0));
    let add = Command::new(EngineOp::AtomicAdd, map.addr(), map.len()).stride(PAGE_SIZE).value(1);
    let before = device.counters()?.engine_faults_write;
    let job = device.submit(add.rounds(0))?;
    for _ in 0..20 {
        let rounds = job.poll(Duration::ZERO)?.1.rounds;
        file.sync_all().what("fsync")?;
        until(
            "a round between two writebacks",
            || Ok(job.poll(Duration::ZERO)?.1.rounds > rounds),
        )?;
    }
    let ended = job.finish()?;
    check_eq!(ended.error, None, "end of the additions");
    let faults = device.counters()?.engine_faults_write - before;
    check!(faults >= 20, "{faults} write faults, with 20 times of writeback");
    let sums: Vec<u64> = (0..PAGES).map(|page| map.get(page, 0)).collect();
    let rounds = ended.status.rounds;
    check!(sums.iter().all(|sum| (rounds..=rounds + 1).contains(sum)), "{rounds}: {sums:?}");
    drop(map);
    let data = disk(&file)?;
    for (page, sum) in sums.into_iter().enumerate() {
        let mut word = [0; 8];
        word.copy_from_slice(&data[page * PAGE_SIZE..page * PAGE_SIZE + 8]);
        check_eq!(u64::from_ne_bytes(word), sum, "additions on the disk, page {page}");
    }
    Ok(())
}

/// The device reads while another thread truncates, extends and punches the file. Each page must
/// have its old contents, be zero, or be missing. The first page never changes.
fn races(ctx: &Ctx) -> Outcome {
    let (file, map) = shared(1)?;
    let device = ctx.open()?;
    let over = AtomicBool::new(false);
    let (read, changed) = std::thread::scope(|scope| {
        let changer = scope.spawn(|| -> Result<u64, Stop> {
            let mut rounds = 0;
            while !over.load(SeqCst) {
                file.set_len(PAGE_SIZE as u64).what("truncate")?;
                file.set_len((PAGES * PAGE_SIZE) as u64).what("extend")?;
                file.write_all_at(&pattern::buffer(1, 8, 8), 8 * PAGE_SIZE as u64).what("write")?;
                files::punch(&file, 12, 2).what("punch")?;
                rounds += 1;
            }
            Ok(rounds)
        });
        let read = reads(&device, &map);
        over.store(true, SeqCst);
        (read, changer.join())
    });
    let (whole, missing) = read?;
    let rounds = changed.map_err(|_| Stop::Fail("a thread panicked".into()))??;
    println!("# {whole} reads succeeded, {missing} met the end of the file; {rounds} truncations");
    check!(whole > 0 && missing > 0 && rounds > 0, "{whole} reads, {missing} met the end");
    device_sees_pages(&device, &map, 1, 0, 1, "of the page that was never touched").map(drop)
}

fn reads(device: &Device, map: &Mapping) -> Result<(u64, u64), Stop> {
    let mut whole = 0;
    let mut missing = 0;
    let mut data = vec![0; PAGE_SIZE];
    for round in 0..2000 {
        let page = round % 16;
        match device.read(map.page_addr(page), &mut data) {
            Ok(_) => whole += 1,
            Err(Errno::EFAULT) if page > 0 => {
                missing += 1;
                continue;
            }
            Err(error) => return Err(Stop::Fail(format!("read of page {page}: {error}"))),
        }
        // A concurrent write of the file may be observed byte by byte, because the kernel may copy
        // bytes.
        for (word, bytes) in data.chunks_exact(8).enumerate() {
            let old = pattern::word(1, page, word).to_ne_bytes();
            let known = |(found, old): (&u8, u8)| *found == old || (*found == 0 && page > 0);
            check!(
                bytes.iter().zip(old).all(known),
                "page {page}, word {word}: {bytes:02x?}, neither zero nor {old:02x?}"
            );
        }
    }
    Ok((whole, missing))
}
