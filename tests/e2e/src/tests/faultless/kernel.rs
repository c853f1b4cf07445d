// SPDX-License-Identifier: GPL-2.0
//! Activity of the kernel on memory that migrates: reclaim, collapse into huge pages, folios of
//! other sizes, write protection by userfaultfd.

use super::*;
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
use hmm::files::{
    Khugepaged,
    SmallThp, //
};
use hmm::uffd::WriteProtect;
use hmm::{
    pattern,
    Child,
    Command,
    Device,
    EngineOp,
    Errno,
    Mapping,
    Prot,
    PAGE_SIZE, //
};
use std::time::{
    Duration,
    Instant, //
};

pub const TESTS: &[Test] = &[
    Test::new("faultless", "h03_userfaultfd_during_the_copy", h03_userfaultfd).only_rust(OURS),
    Test::new("faultless", "h08_folios_of_64_kib", h08_small_folios).only_rust(OURS),
    Test::new("faultless", "pageout_during_the_copy", pageout).only_rust(OURS).seconds(180),
    Test::new("faultless", "collapse_during_the_copy", collapse).only_rust(OURS),
    Test::new("faultless", "khugepaged_during_the_copy", khugepaged).only_rust(OURS),
];

/// Pages that are dropped and populated in a test.
const PART: usize = 64;

/// Write protection by userfaultfd removes write access from migration entries, with the mmap lock
/// held for reading. The commit must not give it back.
fn h03_userfaultfd(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon_in_block(PAGES)?;
    let protection = match WriteProtect::new(&map) {
        Err(Errno::ENOSYS | Errno::EINVAL) => {
            return Err(Stop::Skip("this kernel's userfaultfd cannot write-protect".to_string()))
        }
        other => other.what("register with userfaultfd")?,
    };
    let mover = Mover::start(&device, &map)?;
    map.fill(1);
    let mut waited = 0;
    race(&[&mover], |round| {
        let first = (round as usize * 61) % (map.pages() - PART);
        let fill = Command::new(EngineOp::Fill, map.page_addr(first), PART * PAGE_SIZE);
        let old = 2 * round + 1;
        let new = 2 * round + 2;
        check_eq!(device.run(fill.value(old))?.error, None, "write without protection");
        mover.during(|| protection.set(&map, first, PART, true)).what("protect")?;
        let job = device.submit(fill.value(new))?;
        // The step in flight ends, and the write takes its fault.
        mover.wait_for(1)?;
        for page in first..first + PART {
            check_eq!(map.get(page, 7), old, "word of page {page}, which is protected");
        }
        let early = job.poll(Duration::ZERO)?.0;
        protection.set(&map, first, PART, false).what("protect no longer")?;
        let error = match early {
            Some(ended) => {
                check!(ended.error.is_some(), "a write to protected pages succeeded");
                ended.error
            }
            None => {
                waited += 1;
                job.wait()?.error
            }
        };
        // A write that waited succeeds when the protection ends. A write that did not wait has
        // returned an error.
        match error {
            None => check_eq!(map.get(first + PART - 1, 7), new, "words written at the end"),
            Some(Errno::EFAULT | Errno::EPERM) => {
                check_eq!(device.run(fill.value(new))?.error, None, "write after the protection")
            }
            Some(other) => return Err(Stop::Fail(format!("write to protected pages: {other}"))),
        }
        Ok(())
    })?;
    mover.end()?;
    println!("# {waited} writes waited for the protection to go");
    no_stale_hits(&device)
}

/// Folios between a page and a huge page: whole, mapped in part, and shared.
fn h08_small_folios(ctx: &Ctx) -> Outcome {
    let small = match SmallThp::start() {
        Ok(small) => small,
        Err(error) => return Err(Stop::Skip(format!("no folios of 64 KiB: {error}"))),
    };
    let device = open(ctx)?;
    let fresh = || -> Result<Mapping, Stop> {
        let made = small.made()?;
        let map = Mapping::anon_in_block(PAGES)?;
        map.allow_huge()?;
        map.fill(1);
        check!(small.made()? >= made + 16, "hardly any folio of 64 KiB");
        Ok(map)
    };
    repeat(|round| {
        let map = fresh()?;
        let job = watch(&device, &map, 1)?;
        if round % 2 == 0 {
            // Ranges that begin and end within folios.
            for (first, pages) in [(3, 9), (30, 5), (100, 300)] {
                let done = device.migrate(map.page_addr(first), pages, Way::ToDevice)?;
                check_eq!(done.moved, pages as u64, "moved of {pages} pages from {first}");
            }
        }
        for way in [Way::ToDevice, Way::ToSystem, Way::ToDevice] {
            device.migrate(map.addr(), map.pages(), way)?;
            let there = if way == Way::ToDevice { map.pages() } else { 0 };
            check_eq!(resident(&device, &map, 0, map.pages())?, there, "on the device: {way:?}");
        }
        watched(&job, "of folios of 64 KiB")?;
        device_fills(&device, &map, 2, "of pages from folios of 64 KiB")?;
        cpu_sees(&map, 2, "of pages from folios of 64 KiB")?;
        // Folios that are mapped in part.
        let map = fresh()?;
        map.unmap_pages(5, 20)?;
        device_sees_pages(&device, &map, 1, 25, 100, "of folios mapped in part")?;
        device.migrate(map.addr(), 5, Way::ToDevice)?;
        device.migrate(map.page_addr(25), map.pages() - 25, Way::ToDevice)?;
        device_sees_pages(&device, &map, 1, 25, 100, "of folios mapped in part, there")?;
        map.check_pages(1, 0, 5).what("CPU read of folios mapped in part")?;
        map.check_pages(1, 25, map.pages() - 25).what("CPU read of folios mapped in part")?;
        // Folios that are shared by fork().
        let map = fresh()?;
        device_sees(&device, &map, 1, "before the fork")?;
        let gate = hmm::Gate::new()?;
        let child = Child::spawn(|| -> Outcome {
            gate.wait().what("gate")?;
            cpu_sees(&map, 1, "by the child")
        })?;
        device.migrate(map.addr(), map.pages(), Way::ToDevice)?;
        device_fills(&device, &map, 3, "of folios shared by fork")?;
        gate.open().what("gate")?;
        child.join().map_err(Stop::Fail)?;
        cpu_sees(&map, 3, "by the parent")
    })?;
    no_stale_hits(&device)
}

/// Reclaim unmaps pages concurrently. MADV_FREE allows it to drop these pages. Each is unchanged or
/// zero, and CPU and device agree on its contents.
fn pageout(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon_in_block(PAGES)?;
    let mover = Mover::start_slow(&device, &map)?;
    map.fill(1);
    // The mover isolates the pages most of the time, and pages that migrate back are dirty.
    let mut dropped = 0;
    let mut kept = 0;
    while dropped == 0 && kept < 200 * PART {
        race(&[&mover], |round| {
            dropped_or_kept((&device, &map, &mover), round, &mut dropped, &mut kept)
        })?;
    }
    mover.end()?;
    println!("# {dropped} pages dropped, {kept} kept");
    check!(dropped > 0, "reclaim took nothing of {kept} pages");
    no_stale_hits(&device)
}

fn dropped_or_kept(
    (device, map, mover): (&Device, &Mapping, &Mover),
    round: u64,
    dropped: &mut usize,
    kept: &mut usize,
) -> Outcome {
    let seed = round + 1;
    map.fill_pages(seed, 0, PART);
    device_sees_pages(device, map, seed, 0, PART, "before MADV_PAGEOUT")?;
    // Vary the phase of the mover's trip.
    std::thread::sleep(Duration::from_millis(round % 7));
    mover.during(|| {
        map.advise_pages(libc::MADV_FREE, 0, PART)?;
        map.advise_pages(libc::MADV_PAGEOUT, 0, PART)?;
        map.advise_pages(libc::MADV_COLD, PART, PART)
    })?;
    let mut data = vec![0xaa; PART * PAGE_SIZE];
    device.read(map.addr(), &mut data).what("device read after MADV_PAGEOUT")?;
    for (page, bytes) in data.chunks_exact(PAGE_SIZE).enumerate() {
        if pattern::check_zero(bytes).is_ok() {
            *dropped += 1;
            map.check_zero(page, 1).what("CPU read of a dropped page")?;
        } else {
            *kept += 1;
            pattern::check(seed, page, bytes).what("device read of a page that stays")?;
            map.check_pages(seed, page, 1).what("CPU read of a page that stays")?;
        }
    }
    // Dirty pages must keep their contents.
    map.fill_pages(seed, 0, PART);
    map.advise_pages(libc::MADV_PAGEOUT, 0, PART)?;
    device_sees_pages(device, map, seed, 0, PART, "of dirty pages after MADV_PAGEOUT")?;
    map.check_pages(seed, 0, PART).what("CPU read of dirty pages after MADV_PAGEOUT")
}

/// Fills two blocks with small pages, which may then be collapsed into huge pages.
fn small_pages(map: &Mapping, seed: u64) -> Outcome {
    map.forbid_huge()?;
    map.advise(libc::MADV_DONTNEED)?;
    map.fill(seed);
    Ok(map.allow_huge()?)
}

fn collapse(ctx: &Ctx) -> Outcome {
    needs_huge_pages()?;
    let device = open(ctx)?;
    let map = Mapping::anon_huge(2)?;
    let mover = Mover::start_slow(&device, &map)?;
    small_pages(&map, 1)?;
    let job = watch(&device, &map, 1)?;
    let mut collapsed = 0;
    let begin = Instant::now();
    race(&[&mover], |_| {
        // The collapse fails while pages are on the device.
        while begin.elapsed() < Duration::from_secs(20) {
            if mover.during(|| map.collapse()).is_ok() {
                collapsed += 1;
                break;
            }
        }
        map.protect_pages(Prot::Read, 9, 1)?;
        Ok(map.protect_pages(Prot::ReadWrite, 9, 1)?)
    })?;
    watched(&job, "of pages that collapse")?;
    mover.end()?;
    println!("# collapsed {collapsed} times");
    check!(collapsed > 0, "nothing collapsed");
    cpu_sees(&map, 1, "at the end")?;
    no_stale_hits(&device)
}

fn khugepaged(ctx: &Ctx) -> Outcome {
    let daemon = match Khugepaged::start() {
        Ok(daemon) => daemon,
        Err(error) => return Err(Stop::Skip(format!("no khugepaged: {error}"))),
    };
    let device = open(ctx)?;
    let map = Mapping::anon_huge(2)?;
    let mover = Mover::start_slow(&device, &map)?;
    let begin = Instant::now();
    let mut seed = 0;
    while daemon.collapsed()? < 4 || !mover.raced() {
        let seen = daemon.collapsed()?;
        let elapsed = begin.elapsed();
        let limit = Duration::from_secs(40);
        check!(elapsed < limit, "khugepaged made {seen} huge pages, raced: {}", mover.raced());
        seed += 1;
        small_pages(&map, seed)?;
        let job = watch(&device, &map, seed)?;
        let round = Instant::now();
        mover.during(|| -> Outcome {
            while daemon.collapsed()? == seen && round.elapsed() < Duration::from_secs(2) {
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        })?;
        watched(&job, "while khugepaged makes huge pages")?;
        device_sees(&device, &map, seed, "after khugepaged")?;
        cpu_sees(&map, seed, "after khugepaged")?;
        device_fills(&device, &map, seed + 1, "after khugepaged")?;
        cpu_sees(&map, seed + 1, "of words that the device wrote after khugepaged")?;
    }
    mover.end()?;
    no_stale_hits(&device)
}
