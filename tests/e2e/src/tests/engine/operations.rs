// SPDX-License-Identifier: GPL-2.0
//! The results of the operations, in system memory and in device memory.

use super::{
    ends_with,
    run,
    PAGES, //
};
use crate::check_eq;
use crate::harness::{
    Ctx,
    Outcome, //
};
use crate::support::*;
use hmm::engine::checksum_of_pattern;
use hmm::pattern::{
    self,
    WORDS, //
};
use hmm::{
    Command,
    Device,
    EngineOp,
    Errno,
    Mapping,
    PAGE_SIZE, //
};

pub(super) fn words(map: &Mapping, seed: u64) -> impl Iterator<Item = u64> {
    (0..map.pages())
        .flat_map(move |page| (0..WORDS).map(move |word| pattern::word(seed, page, word)))
}

pub(super) fn every_operation(device: &Device, map: &Mapping) -> Outcome {
    let addr = map.addr();
    let len = map.len();
    map.fill(1);
    let sum = words(map, 1).fold(0u64, u64::wrapping_add);
    let ended = run(device, Command::new(EngineOp::Read, addr, len), "READ")?;
    check_eq!(ended.status.result, sum, "sum of READ");
    check_eq!(ended.status.rounds, 1, "rounds of READ");
    let ended = run(device, Command::new(EngineOp::Checksum, addr, len), "CHECKSUM")?;
    check_eq!(ended.status.result, checksum_of_pattern(1, map.pages()), "result of CHECKSUM");
    let strided = Command::new(EngineOp::Strided, addr, len).stride(PAGE_SIZE / 2);
    let ended = run(device, strided, "STRIDED")?;
    let want = (0..map.pages())
        .flat_map(|page| [0, WORDS / 2].map(|word| pattern::word(1, page, word)))
        .fold(0u64, u64::wrapping_add);
    check_eq!(ended.status.result, want, "sum of STRIDED");

    run(device, Command::new(EngineOp::Fill, addr + 8, PAGE_SIZE).value(77), "FILL")?;
    check_eq!(map.get(0, 0), pattern::word(1, 0, 0), "word before FILL");
    check_eq!((map.get(0, 1), map.get(1, 0)), (77, 77), "words of FILL");
    check_eq!(map.get(1, 1), pattern::word(1, 1, 1), "word after FILL");
    run(device, Command::new(EngineOp::Write, addr, len).value(1000), "WRITE")?;
    check_eq!(
        (map.get(0, 0), map.get(3, 5)),
        (1000, 1000 + 3 * WORDS as u64 + 5),
        "words of WRITE"
    );
    let add = Command::new(EngineOp::AtomicAdd, addr, len).stride(PAGE_SIZE).value(5).rounds(3);
    run(device, add, "ATOMIC_ADD")?;
    let third = 1000 + 2 * WORDS as u64;
    check_eq!((map.get(2, 0), map.get(2, 1)), (third + 15, third + 1), "after ATOMIC_ADD");
    // Source and destination have different offsets in their pages, so each page is copied in two
    // parts.
    map.fill(4);
    // The last word of a page that is copied from the page of the same number.
    const LAST: usize = WORDS - 64 - 1;
    let half = len / 2;
    let copy = Command::new(EngineOp::Memcpy, addr, half - 512).from(addr + half + 512);
    run(device, copy, "MEMCPY")?;
    for (page, word) in [(0, 0), (0, LAST), (0, LAST + 1), (PAGES / 2 - 1, LAST)] {
        let at = (PAGES / 2 + page) * WORDS + word + 64;
        let want = pattern::word(4, at / WORDS, at % WORDS);
        check_eq!(map.get(page, word), want, "word {word} of page {page} after MEMCPY");
    }
    let untouched = pattern::word(4, PAGES / 2 - 1, LAST + 1);
    check_eq!(map.get(PAGES / 2 - 1, LAST + 1), untouched, "word after MEMCPY");
    Ok(())
}

pub(super) fn operations(ctx: &Ctx) -> Outcome {
    every_operation(&ctx.open()?, &Mapping::anon(PAGES)?)
}

pub(super) fn operations_on_device(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(9);
    migrate(&device, &map, 9)?;
    let before = device.counters()?;
    run(&device, Command::new(EngineOp::Write, map.addr(), map.len()).value(3), "WRITE")?;
    let after = device.counters()?;
    check_eq!(after.engine_faults_write, before.engine_faults_write, "faults of device memory");
    check_eq!(resident(&device, &map, 0, PAGES)?, PAGES, "pages on the device");
    let sum = run(&device, Command::new(EngineOp::Read, map.addr(), map.len()), "READ")?;
    let words = (PAGES * WORDS) as u64;
    check_eq!(sum.status.result, 3 * words + words * (words - 1) / 2, "sum of the written words");
    every_operation(&device, &map)
}

pub(super) fn chase_and_checksum_detect_changes(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(0);
    // A chain through all pages in an irregular order.
    let mut page = 0;
    for _ in 0..PAGES {
        let next = (page + 11) % PAGES;
        map.set(page, page, map.page_addr(next) as u64 + 8 * next as u64);
        page = next;
    }
    let chase = Command::new(EngineOp::Chase, map.addr(), PAGES * 8);
    let ended = run(&device, chase, "CHASE")?;
    check_eq!(ended.status.result, map.addr() as u64, "end of the chain");
    map.set(11, 11, 1);
    ends_with(&device, chase, Errno::EFAULT, "CHASE to nowhere")?;

    map.fill(5);
    let right = checksum_of_pattern(5, map.pages());
    let command = Command::new(EngineOp::Checksum, map.addr(), map.len());
    run(&device, command.verify(right).rounds(3), "CHECKSUM that is right")?;
    map.set(7, 7, 0);
    ends_with(&device, command.verify(right).rounds(3), Errno::EILSEQ, "CHECKSUM that is wrong")
}

pub(super) fn atomics_with_the_cpu_lose_no_update(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(4)?;
    for page in 0..4 {
        map.set(page, 0, 0);
    }
    let add = Command::new(EngineOp::AtomicAdd, map.addr(), map.len()).stride(PAGE_SIZE);
    let job = device.submit(add.value(1).rounds(2000))?;
    for n in 0..8000 {
        map.atomic(n % 4, 0).fetch_add(1 << 32, std::sync::atomic::Ordering::Relaxed);
    }
    check_eq!(job.wait()?.error, None, "end of ATOMIC_ADD");
    for page in 0..4 {
        check_eq!(map.get(page, 0), (2000 << 32) + 2000, "sum of both in page {page}");
    }
    Ok(())
}
