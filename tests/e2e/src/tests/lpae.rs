// SPDX-License-Identifier: GPL-2.0
//! The sample whose hardware walks its page table, in the format of 64-bit Arm. The kernel's
//! io-pgtable code does the walks.

use super::mirror_only::{
    reads,
    Loaded, //
};
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    Test,
    What, //
};
use crate::support::huge;
use crate::{
    check,
    check_eq, //
};
use hmm::inject::{
    self,
    Kernel,
    Kind,
    Source, //
};
use hmm::rng::Rng;
use hmm::{
    pagemap,
    pattern,
    Errno,
    LpaeWalk,
    Mapping,
    MirrorOnly,
    Prot,
    SyncFile,
    HUGE_PAGES,
    PAGE_SIZE, //
};
use std::time::{
    Duration,
    Instant, //
};

const OURS: &str = "needs our library";
const NAME: &str = "rust_lpae";
const NODE: &str = "hmm_lpae";
/// The nodes of the sample, with log2 of the granules of their tables. The second one is only there
/// with pages of its granule.
const NODES: [(&str, u32); 2] = [(NODE, 12), ("hmm_lpae_16k", 14)];
/// Module with the kernel's code that walks the table.
const WALK: &str = "hmm_io_pgtable";
const PAGES: usize = 700;
/// Number of tries with failing page allocations in the queue's thread, and the percentage that
/// fails.
const TRIES: usize = 40;
const PERCENT: u32 = 2;
/// Number of blocks, with a page in each.
const BLOCKS: usize = 32;

pub const TESTS: &[Test] = &[
    Test::new("lpae", "reads_wait_for_fences_of_another_driver", |ctx| reads(ctx, NAME, NODE))
        .only_rust(OURS),
    Test::new("lpae", "entries_follow_the_cpu_page_table", follows).only_rust(OURS),
    Test::new("lpae", "random_tables_agree_with_the_cpu_page_table", random_tables)
        .only_rust(OURS)
        .seconds(240),
    Test::new("lpae", "walks_find_stable_pages_during_updates", walks_during_updates)
        .only_rust(OURS),
    Test::new("lpae", "failed_allocation_is_reported_and_retry_works", no_memory)
        .only_rust(OURS)
        .seconds(120),
];

/// The open sample, and the kernel's code that walks its table.
struct Walked {
    device: MirrorOnly,
    walk: LpaeWalk,
    root: u64,
    granule: u32,
}

impl Walked {
    fn open((node, granule): (&str, u32)) -> Result<Walked, Stop> {
        let device = MirrorOnly::open_node(node).what("open the sample")?;
        let walk = LpaeWalk::open().what("open the walker")?;
        let root = device.table_root().what("root of the table")?;
        Ok(Walked { device, walk, root, granule })
    }

    /// Returns the address to which a walk translates `addr`, or 0 if there is no entry.
    fn walk(&self, addr: usize) -> Result<u64, Stop> {
        self.walk.walk(self.root, self.granule, addr).what("walk")
    }

    fn sum(&self, map: &Mapping) -> Result<u64, Errno> {
        let none: Option<&SyncFile> = None;
        self.device.sum(map.addr(), map.pages(), none)
    }
}

/// Calls `check` with the open sample, for each granule that it has here.
fn each_granule(ctx: &Ctx, check: impl Fn(&Walked) -> Outcome) -> Outcome {
    let _loaded = [Loaded::new(ctx, NAME)?, Loaded::new(ctx, WALK)?];
    for node in NODES {
        if node.1 == 12 || PAGE_SIZE == 1 << node.1 {
            println!("# a granule of {} KiB", (1 << node.1) / 1024);
            check(&Walked::open(node)?)?;
        }
    }
    Ok(())
}

/// Returns the physical addresses of the pages of `map` that the kernel reports.
fn addresses(map: &Mapping) -> Result<Vec<u64>, Stop> {
    let frames = pagemap::pfns(map.addr(), map.pages()).what("page frames")?;
    Ok(frames.iter().map(|frame| frame * PAGE_SIZE as u64).collect())
}

/// Like [`addresses()`], but waits for the end of migrations by the kernel.
fn resident_addresses(map: &Mapping) -> Result<Vec<u64>, Stop> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let entries = pagemap::read(map.addr(), map.pages()).what("entries")?;
        if entries.iter().all(|entry| entry.pfn().is_some()) {
            return addresses(map);
        }
        check!(Instant::now() < end, "pages without a frame for 10 s");
    }
}

/// Opens the device and has it sum the words of a mapping.
fn open_and_sum(map: &Mapping) -> Result<u64, Errno> {
    let none: Option<&SyncFile> = None;
    MirrorOnly::open_node(NODE)?.sum(map.addr(), map.pages(), none)
}

/// Makes each allocation fail once: of the page table, of its entries, and of everything else.
fn no_memory(ctx: &Ctx) -> Outcome {
    let _loaded = Loaded::new(ctx, NAME)?;
    let map = Mapping::anon(PAGES)?;
    map.fill(4);
    let sum = sum_of(&map);
    for kind in [Kind::Slab, Kind::Pages] {
        if !kind.is_there() {
            return Err(Stop::Skip("allocations cannot fail on this kernel".into()));
        }
        let _kernel = Kernel::prepare(&[kind], 0).what("prepare failing allocations")?;
        let mut failures = 0;
        let mut reported = 0;
        loop {
            let armed = inject::arm(&Source::Kernel(kind), failures + 1).what("have one fail")?;
            let result = open_and_sum(&map);
            let failed = armed.disarm().what("ask whether it failed")?;
            match result {
                Ok(found) => check_eq!(found, sum, "the sum, {kind:?} {}", failures + 1),
                Err(Errno::ENOMEM) if failed => reported += 1,
                Err(error) => {
                    return Err(Stop::Fail(format!("{kind:?} {}: {error}", failures + 1)))
                }
            }
            check_eq!(open_and_sum(&map), Ok(sum), "the sum after it");
            if !failed {
                break;
            }
            failures += 1;
        }
        println!("# {kind:?}: {failures} failures, {reported} reported as errors");
        check!(reported != 0, "none of {failures} failures of {kind:?} was reported");
    }
    no_tables()
}

/// The queue's thread allocates further tables. Failures there can only be injected at random.
fn no_tables() -> Outcome {
    let none: Option<&SyncFile> = None;
    // One page in each block. This needs more tables than are preallocated when the device is
    // opened.
    let map = Mapping::anon(BLOCKS * HUGE_PAGES)?;
    map.forbid_huge()?;
    let mut expected = 0;
    for block in 0..BLOCKS {
        let value = block as u64 + 1;
        map.set(block * HUGE_PAGES, 0, value);
        expected += value;
    }
    let sum = |device: &MirrorOnly| -> Result<u64, Errno> {
        let mut total = 0;
        for block in 0..BLOCKS {
            total += device.sum(map.page_addr(block * HUGE_PAGES), 1, none)?;
        }
        Ok(total)
    };
    let mut reported = 0;
    let mut read = 0;
    for round in 0..TRIES {
        let device = MirrorOnly::open_node(NODE).what("open the device")?;
        let kernel = Kernel::prepare(&[Kind::Pages], PERCENT).what("prepare failing pages")?;
        let result = sum(&device);
        drop(kernel);
        match result {
            Ok(found) => {
                check_eq!(found, expected, "the sum, try {round}");
                read += 1;
            }
            Err(Errno::ENOMEM) => reported += 1,
            Err(error) => return Err(Stop::Fail(format!("try {round}: {error}"))),
        }
        check_eq!(sum(&device), Ok(expected), "the sum after try {round}");
    }
    println!("# {TRIES} tries, {PERCENT} % of the pages fail: {reported} reported as errors");
    check!(reported != 0 && read != 0, "{reported} failed, {read} did not");
    Ok(())
}

/// Returns the sum of the words of a mapping.
fn sum_of(map: &Mapping) -> u64 {
    (0..map.pages())
        .flat_map(|page| (0..pattern::WORDS).map(move |word| map.get(page, word)))
        .fold(0, u64::wrapping_add)
}

fn follows(ctx: &Ctx) -> Outcome {
    each_granule(ctx, follows_with)
}

fn follows_with(walked: &Walked) -> Outcome {
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    let sum = || walked.sum(&map).what("sum");
    let walk = |page: usize| walked.walk(map.page_addr(page));
    let mapped = || -> Result<usize, Stop> {
        let mut count = 0;
        for page in 0..PAGES {
            count += usize::from(walk(page)? != 0);
        }
        Ok(count)
    };
    check_eq!(mapped()?, 0, "entries before an access");
    check_eq!(sum()?, sum_of(&map), "the sum");
    check_eq!(mapped()?, PAGES, "entries after it");
    for (page, address) in addresses(&map)?.into_iter().enumerate() {
        check_eq!(walk(page)?, address, "where the walk of page {page} ends");
    }
    // Entries are removed together with the CPU PTEs. More entries may be removed, because an event
    // covers the whole block if the kernel splits a VMA.
    map.protect_pages(Prot::None, 100, 50)?;
    for page in 100..150 {
        check_eq!(walk(page)?, 0, "where the walk of page {page} ends, which is not readable");
    }
    check_eq!(walked.sum(&map), Err(Errno::EFAULT), "a sum over unreadable memory");
    map.protect_pages(Prot::ReadWrite, 100, 50)?;
    // The child writes and gets pages of its own. The device still reads the parent's pages.
    let before = sum_of(&map);
    let child = hmm::Child::spawn(|| {
        map.fill(2);
        Ok::<(), Stop>(())
    })?;
    child.join().map_err(Stop::Fail)?;
    check_eq!(sum()?, before, "the sum after a child has written");
    map.fill(3);
    check_eq!(sum()?, sum_of(&map), "the sum after the parent has written");
    map.advise_pages(libc::MADV_DONTNEED, 0, 300)?;
    check!(mapped()? <= PAGES - 300, "entries of pages that were given up");
    check_eq!(sum()?, sum_of(&map), "the sum with zeros");
    Ok(())
}

/// Blocks of random tables, a number of updates, and the largest range that is summed by the CPU,
/// too.
const RANDOM_BLOCKS: usize = 3;
const UPDATES: usize = 100;
const SUMMED: usize = 16;

fn random_tables(ctx: &Ctx) -> Outcome {
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
fn walks_during_updates(ctx: &Ctx) -> Outcome {
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
