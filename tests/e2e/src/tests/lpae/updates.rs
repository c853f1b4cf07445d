// SPDX-License-Identifier: GPL-2.0
//! Walks of tables after many updates, and beside them.

use super::{
    addresses,
    each_granule,
    resident_addresses,
    sum_of,
    Walked, //
};
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::support::huge;
use crate::{
    check,
    check_eq, //
};
use hmm::rng::Rng;
use hmm::{
    pagemap,
    pattern,
    Errno,
    Mapping,
    Prot,
    SyncFile,
    HUGE_PAGES,
    PAGE_SIZE, //
};
use std::time::{
    Duration,
    Instant, //
};

/// Blocks of random tables, a number of updates, and the largest range that is summed by the CPU,
/// too.
const RANDOM_BLOCKS: usize = 3;
const UPDATES: usize = 100;
const SUMMED: usize = 16;

pub(super) fn random_tables(ctx: &Ctx) -> Outcome {
    each_granule(ctx, |walked| (1..=3).try_for_each(|seed| random_tables_with(walked, seed)))
}

/// Compares where a walk of each page ends with the CPU page table. The device may have no entry.
/// It must have none for a page that is not mapped or not readable. Returns the number of entries,
/// and of those that are missing in `installed`.
fn compare(
    walked: &Walked,
    map: &Mapping,
    readable: &[bool],
    installed: &std::ops::Range<usize>,
    when: &str,
) -> Result<(usize, usize), Stop> {
    let mut entries = 0;
    let mut missing = 0;
    let end = Instant::now() + Duration::from_secs(10);
    let read = || pagemap::read(map.addr(), map.pages()).what("entries");
    let mut before = read()?;
    let mut page = 0;
    while page < map.pages() {
        let found = walked.walk(map.page_addr(page))?;
        let frame = before[page].pfn().map(|frame| frame * PAGE_SIZE as u64);
        let expected = frame.filter(|_| readable[page]);
        if found == 0 || expected == Some(found) {
            entries += usize::from(found != 0);
            missing += usize::from(found == 0 && installed.contains(&page));
            page += 1;
            continue;
        }
        // The kernel may move pages, for instance for compaction.
        let after = read()?;
        let moved = after[page] != before[page] || after[page].pfn().is_none();
        check!(
            moved && readable[page] && Instant::now() < end,
            "{when}: the walk of page {page} ends at {found:#x}, not {expected:x?}"
        );
        before = after;
    }
    Ok((entries, missing))
}

/// Random mappings: small and huge pages, holes, pages without or with fewer access rights. After
/// each update the kernel's walks of all pages are compared with the CPU page table.
fn random_tables_with(walked: &Walked, seed: u64) -> Outcome {
    let mut rng = Rng::new(seed, 0);
    let map = huge(RANDOM_BLOCKS, seed)?;
    let pages = map.pages();
    let mut readable = vec![true; pages];
    let mut writable = vec![true; pages];
    let mut below = |end: usize| (rng.bits() % end as u64) as usize;
    let none: Option<&SyncFile> = None;
    let mut most = 0;
    let mut kinds = [0; 6];
    for update in 0..UPDATES {
        let block = below(RANDOM_BLOCKS) * HUGE_PAGES;
        let range = match below(4) {
            0 => block..block + HUGE_PAGES,
            1 => block + below(HUGE_PAGES)..block + HUGE_PAGES,
            _ => {
                let first = below(pages);
                first..pages.min(first + 1 + below(40))
            }
        };
        let count = range.len();
        let kind = [0, 0, 0, 1, 2, 2, 3, 4, 5][below(9)];
        kinds[kind] += 1;
        let mut installed = 0..0;
        match kind {
            0 => {
                let sum = walked.device.sum(map.page_addr(range.start), count, none);
                if range.clone().all(|page| readable[page]) {
                    let sum = sum.what("sum")?;
                    installed = range.clone();
                    if count <= SUMMED {
                        let words = range.clone().flat_map(|page| {
                            (0..pattern::WORDS).map(move |word| (page, word)) //
                        });
                        let expected = words
                            .map(|(page, word)| map.get(page, word))
                            .fold(0, u64::wrapping_add);
                        check_eq!(sum, expected, "seed {seed}, update {update}: the sum");
                    }
                } else {
                    check_eq!(sum, Err(Errno::EFAULT), "a sum of unreadable memory");
                }
            }
            1 | 2 => {
                let prot = [Prot::None, Prot::Read, Prot::ReadWrite][below(3)];
                map.protect_pages(prot, range.start, count)?;
                readable[range.clone()].fill(prot != Prot::None);
                writable[range.clone()].fill(prot == Prot::ReadWrite);
            }
            3 => map.advise_pages(libc::MADV_DONTNEED, range.start, count)?,
            4 => {
                // New rights everywhere, so that the block can be huge again.
                map.protect_pages(Prot::ReadWrite, block, HUGE_PAGES)?;
                readable[block..block + HUGE_PAGES].fill(true);
                writable[block..block + HUGE_PAGES].fill(true);
                map.advise_pages(libc::MADV_DONTNEED, block, HUGE_PAGES)?;
                map.fill_pages(seed, block, HUGE_PAGES);
            }
            _ => {
                for page in range.clone().filter(|page| writable[*page]) {
                    map.fill_pages(seed + update as u64, page, 1);
                }
            }
        }
        let when = format!("seed {seed}, update {update} of kind {kind} in {range:?}");
        let (mut entries, mut missing) = compare(walked, &map, &readable, &installed, &when)?;
        // The kernel has moved pages after the sum. It does so rarely.
        for _ in 0..3 {
            if missing != 0 {
                walked.device.sum(map.page_addr(range.start), count, none).what("sum again")?;
                (entries, missing) = compare(walked, &map, &readable, &installed, &when)?;
            }
        }
        check_eq!(missing, 0, "{when}: missing entries");
        most = most.max(entries);
    }
    println!("# seed {seed}: updates by kind {kinds:?}, at most {most} of {pages} entries");
    check!(kinds.iter().all(|count| *count != 0), "a kind of update is missing: {kinds:?}");
    check!(most > HUGE_PAGES, "at most {most} entries of {pages} pages");
    Ok(())
}

/// Entries of single pages in a huge leaf and in its contiguous runs are removed and installed
/// again. Walks of all other pages must always find their entry. The kernel may move the block
/// meanwhile, for instance for compaction; then its pages are compared with their new addresses.
pub(super) fn walks_during_updates(ctx: &Ctx) -> Outcome {
    each_granule(ctx, walks_during_updates_with)
}

fn walks_during_updates_with(walked: &Walked) -> Outcome {
    const GO: [usize; 3] = [5, 100, HUGE_PAGES - 1];
    /// Number of moves by the kernel after which a different address is an error.
    const MAX_MOVES: u32 = 10;
    let map = huge(1, 5)?;
    // Give these pages VMAs of their own with the same rights. If the kernel had to split a VMA,
    // the event would cover the whole block.
    for page in GO {
        map.advise_pages(libc::MADV_DONTDUMP, page, 1)?;
    }
    let expected = sum_of(&map);
    check_eq!(walked.sum(&map), Ok(expected), "the sum");
    let mut there = addresses(&map)?;
    let mut walks = 0u64;
    let mut gone = 0u64;
    let mut moves = 0;
    let mut failed = None;
    let rounds = std::thread::scope(|scope| {
        let changes = scope.spawn(|| -> Result<u64, Stop> {
            let end = Instant::now() + Duration::from_millis(1500);
            let mut rounds = 0;
            while Instant::now() < end || rounds < 20 {
                let page = GO[rounds as usize % GO.len()];
                map.protect_pages(Prot::None, page, 1)?;
                map.protect_pages(Prot::ReadWrite, page, 1)?;
                check_eq!(walked.sum(&map), Ok(expected), "the sum in round {rounds}");
                rounds += 1;
            }
            Ok(rounds)
        });
        while !changes.is_finished() && failed.is_none() {
            for page in 0..map.pages() {
                let found = walked.walk(map.page_addr(page))?;
                if found == there[page] {
                    walks += 1;
                } else if found == 0 && GO.contains(&page) {
                    gone += 1;
                } else {
                    let now = resident_addresses(&map)?;
                    if now == there || moves == MAX_MOVES {
                        failed = Some(format!("page {page}: {found:#x}, not {:#x}", there[page]));
                        break;
                    }
                    there = now;
                    moves += 1;
                }
            }
        }
        changes.join().unwrap_or_else(|_| Err(Stop::Fail("the thread panicked".into())))
    })?;
    println!("# {rounds} rounds, {walks} walks, {gone} to a page that had gone, {moves} moves");
    check!(failed.is_none(), "a walk of a page that stays: {failed:?}");
    check!(walks > 10 * map.pages() as u64, "{walks} walks found their page");
    Ok(())
}
