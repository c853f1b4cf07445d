// SPDX-License-Identifier: GPL-2.0
//! The sample whose device walks a page table of the kernel's own: ARM64 LPAE.

use super::mirror_only::{reads, Loaded};
use crate::harness::{Ctx, Outcome, Stop, Test, What};
use crate::{check, check_eq};
use hmm::{pagemap, pattern, Errno, Mapping, MirrorOnly, Prot, SyncFile, PAGE_SIZE};

const OURS: &str = "needs our library";
const NAME: &str = "rust_lpae";
const NODE: &str = "hmm_lpae";
/// The kernel's code for it, where the kernel itself has none.
const FORMAT: &str = "hmm_io_pgtable";
const PAGES: usize = 700;

pub const TESTS: &[Test] = &[
    Test::new("lpae", "reads_memory_after_fences_of_another_driver", |ctx| {
        let _format = format(ctx)?;
        reads(ctx, NAME, NODE)
    })
    .only_rust(OURS),
    Test::new("lpae", "its_entries_follow_the_process", follows).only_rust(OURS),
];

/// The format as a module, unless the kernel has it.
fn format(ctx: &Ctx) -> Result<Option<Loaded>, Stop> {
    let built = ctx.modules.join(format!("{FORMAT}.ko")).exists();
    built.then(|| Loaded::new(ctx, FORMAT)).transpose()
}

/// The words of a mapping, added up.
fn sum_of(map: &Mapping) -> u64 {
    (0..map.pages())
        .flat_map(|page| (0..pattern::WORDS).map(move |word| map.get(page, word)))
        .fold(0, u64::wrapping_add)
}

fn follows(ctx: &Ctx) -> Outcome {
    let _format = format(ctx)?;
    let _loaded = Loaded::new(ctx, NAME)?;
    let device = MirrorOnly::open_node(NODE).what("open the sample")?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    let none: Option<&SyncFile> = None;
    let sum = || device.sum(map.addr(), PAGES, none).what("sum");
    let walk = |page: usize| device.walk(map.page_addr(page)).what("walk");
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
    for page in [0, 1, 511, 512, PAGES - 1] {
        let entries = pagemap::read(map.page_addr(page), 1).what("page frame")?;
        let frame = entries.first().and_then(|entry| entry.pfn()).unwrap_or(0);
        check_eq!(walk(page)?, frame * PAGE_SIZE as u64, "where the walk of page {page} ends");
    }
    // What goes away there, goes away here: and nothing else.
    map.protect_pages(Prot::None, 100, 50)?;
    check_eq!(mapped()?, PAGES - 50, "entries without the pages that are not readable");
    check_eq!(walk(99)? != 0 && walk(150)? != 0, true, "their neighbours");
    let refused = device.sum(map.addr(), PAGES, none);
    check_eq!(refused, Err(Errno::EFAULT), "a sum over what is not readable");
    map.protect_pages(Prot::ReadWrite, 100, 50)?;
    // The child writes, and so gets pages of its own; what the device reads are the parent's.
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
