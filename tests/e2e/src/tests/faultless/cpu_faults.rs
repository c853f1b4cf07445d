// SPDX-License-Identifier: GPL-2.0
//! Migrations by CPU faults beside ordinary ones, and while write access is taken (H13, H14).

use super::*;
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::mover::rounds;
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::engine::Way;
use hmm::files::Ksm;
use hmm::pattern::{
    self,
    WORDS, //
};
use hmm::uffd::WriteProtect;
use hmm::PAGE_SIZE;
use hmm::{
    Child,
    Command,
    EngineOp,
    Errno,
    Mapping,
    Prot,
    Setting, //
};
use std::sync::atomic::{
    AtomicBool,
    Ordering, //
};
use std::time::Duration;

/// Pages of `h14_write_access_is_taken_during_cpu_faults`: some windows of CPU faults.
const PAGES_TAKEN: usize = 128;

/// An operation that takes write access from pages.
#[derive(Clone, Copy)]
enum Taking<'a> {
    Fork,
    Mprotect,
    Userfaultfd(&'a WriteProtect),
    Merging(&'a Ksm),
}

impl Taking<'_> {
    fn name(self) -> &'static str {
        match self {
            Self::Fork => "fork",
            Self::Mprotect => "mprotect",
            Self::Userfaultfd(_) => "userfaultfd",
            Self::Merging(_) => "KSM",
        }
    }
}

/// While CPU faults bring pages back, `taking` takes the write access that the device had. Returns
/// whether both happened at the same time.
fn taken(device: &Device, map: &Mapping, taking: Taking<'_>, round: u64) -> Result<bool, Stop> {
    let pages = map.pages();
    let old = 2 * round + 1;
    let fill = |value| Command::new(EngineOp::Fill, map.addr(), map.len()).value(value);
    let holds = |value: u64, when: &str| -> Outcome {
        for page in 0..pages {
            let place = format!("page {page} {when}, {}", taking.name());
            check_eq!(map.get(page, page % WORDS), value, "word of {place}");
        }
        Ok(())
    };
    check_eq!(device.run(fill(old))?.error, None, "a write at first");
    device.migrate(map.addr(), pages, Way::ToDevice)?;
    check_eq!(device.run(fill(old))?.error, None, "a write to device memory");
    let start = device.counters()?;
    // Pages whose entries were switched, and whether others are being copied.
    let progress = || -> Result<(u64, bool), Stop> {
        let now = device.counters()?;
        let switched = now.switched_pages - start.switched_pages;
        let copied = (now.bytes_copied - start.bytes_copied) / PAGE_SIZE as u64;
        Ok((switched, copied > switched))
    };
    let (raced, child, early) = std::thread::scope(|scope| -> Result<_, Stop> {
        let toucher = scope.spawn(|| (0..pages).map(|page| map.get(page, 5)).max());
        // Vary the page that is copied.
        std::thread::sleep(Duration::from_millis(3 * (round % 16)));
        let mut begin = progress()?;
        while !begin.1 && !toucher.is_finished() {
            begin = progress()?;
        }
        let mut child = None;
        match taking {
            Taking::Fork => {
                child = Some(Child::spawn(|| -> Outcome {
                    std::thread::sleep(Duration::from_millis(20));
                    holds(old, "of the child")
                })?);
            }
            Taking::Mprotect => map.protect(Prot::Read)?,
            Taking::Userfaultfd(protection) => protection.set(map, 0, pages, true)?,
            Taking::Merging(ksm) => {
                ksm.advise(map)?;
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        let end = progress()?;
        let raced = begin.1 && (end.1 || end.0 > begin.0);
        // A write while the remaining pages are copied. It waits until the protection ends.
        let early = match taking {
            Taking::Userfaultfd(_) => Some(device.submit(fill(old + 1))?),
            Taking::Fork | Taking::Mprotect | Taking::Merging(_) => None,
        };
        let last = toucher.join().map_err(|_| Stop::Fail("a thread panicked".into()))?;
        check_eq!(last, Some(old), "words that the CPU has read");
        Ok((raced, child, early))
    })?;
    match taking {
        Taking::Fork => check_eq!(device.run(fill(old + 1))?.error, None, "a write after it"),
        Taking::Mprotect => {
            let error = device.run(fill(old + 1))?.error;
            check_eq!(error, Some(Errno::EPERM), "a write to read-only memory");
            holds(old, "of read-only memory")?;
            map.protect(Prot::ReadWrite)?;
        }
        Taking::Userfaultfd(protection) => {
            holds(old, "at the end of the protection")?;
            protection.set(map, 0, pages, false)?;
            // It may have failed while the pages were protected.
            if let Some(early) = early {
                early.wait()?;
            }
        }
        Taking::Merging(_) => {
            // A write to a merged page must not be seen in the others.
            let one = Command::new(EngineOp::Fill, map.page_addr(3), PAGE_SIZE).value(old + 1);
            check_eq!(device.run(one)?.error, None, "a write to a page that merges");
            for page in 0..pages {
                let value = old + u64::from(page == 3);
                check_eq!(map.get(page, 9), value, "word of page {page} that merges");
            }
            map.advise(libc::MADV_UNMERGEABLE)?;
        }
    }
    check_eq!(device.run(fill(old + 1))?.error, None, "a write at the end");
    holds(old + 1, "at the end")?;
    if let Some(child) = child {
        child.join().map_err(Stop::Fail)?;
    }
    Ok(raced)
}

pub(super) fn h14_taken(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    device.set(Setting::CopyDelay, 10_000_000)?;
    let map = Mapping::anon(PAGES_TAKEN)?;
    let watched = Mapping::anon(PAGES_TAKEN)?;
    let protection = WriteProtect::new(&watched).what("userfaultfd")?;
    let ksm = hmm::files::Ksm::start().what("KSM")?;
    let ways = [
        (&map, Taking::Fork),
        (&map, Taking::Mprotect),
        (&watched, Taking::Userfaultfd(&protection)),
        (&map, Taking::Merging(&ksm)),
    ];
    for (map, taking) in ways {
        let mut raced = 0;
        rounds(4, |round| {
            raced += u64::from(taken(&device, map, taking, round)?);
            Ok(raced > 0)
        })?;
        println!("# {}: CPU faults switched entries during {raced} of them", taking.name());
        check!(raced > 0, "no page moved during {}", taking.name());
    }
    no_stale_hits(&device)
}

/// An ordinary migration leaves entries of pages unchanged that are on the device already, but not
/// entries of pages that a CPU fault is migrating back.
pub(super) fn h13_ordinary(ctx: &Ctx) -> Outcome {
    let device = open(ctx)?;
    let map = Mapping::anon(16)?;
    let mut overlapped = 0;
    for round in 0..4 {
        map.fill(round);
        device.migrate(map.addr(), map.pages(), Way::ToDevice)?;
        device_sees(&device, &map, round, "on the device")?;
        device.set(Setting::CopyDelay, 20_000_000)?;
        let touched = AtomicBool::new(false);
        let before = device.counters()?.bytes_copied;
        let (seen, was_early) = std::thread::scope(|scope| -> Result<_, Stop> {
            let touch = scope.spawn(|| {
                let word = map.get(3, 0);
                touched.store(true, Ordering::SeqCst);
                word
            });
            // The first copy of the CPU fault is done, and the others are not.
            until("a copy of the CPU fault", || Ok(device.counters()?.bytes_copied > before))?;
            let was_early = !touched.load(Ordering::SeqCst);
            device.migrate(map.addr(), map.pages(), Way::ToDevice.faultless(false))?;
            let seen = touch.join().map_err(|_| Stop::Fail("a thread panicked".into()))?;
            Ok((seen, was_early))
        })?;
        device.set(Setting::CopyDelay, 0)?;
        overlapped += u32::from(was_early);
        check_eq!(seen, pattern::word(round, 3, 0), "CPU read during the copy");
        map.fill(round + 100);
        device_sees(&device, &map, round + 100, "after the CPU fault")?;
    }
    check!(overlapped > 0, "no migration began within the CPU fault");
    no_stale_hits(&device)
}
