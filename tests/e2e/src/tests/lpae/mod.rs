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

mod updates;

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
    Test::new("lpae", "random_tables_agree_with_the_cpu_page_table", updates::random_tables)
        .only_rust(OURS)
        .seconds(240),
    Test::new("lpae", "walks_find_stable_pages_during_updates", updates::walks_during_updates)
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
