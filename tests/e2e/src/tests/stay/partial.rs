// SPDX-License-Identifier: GPL-2.0
//! Memory of which some pages cannot migrate: the others do, and none is evicted.

use super::{
    all,
    few_events,
    PAGES, //
};
use crate::check_eq;
use crate::harness::{
    Ctx,
    Outcome,
    What, //
};
use crate::support::*;
use crate::tests::memory::{
    block,
    engine_reads,
    to_device,
    with, //
};
use crate::tests::module_reload::unload;
use hmm::engine::Way;
use hmm::placement::Policy;
use hmm::{
    files,
    Mapping,
    PageOutcome,
    HUGE_PAGES,
    PAGE_SIZE, //
};
use std::fs::File;

/// Pages of the policy's smallest and largest windows, of 64 KiB and 2 MiB.
const LEAF: usize = (64 << 10) / PAGE_SIZE;
const WINDOW: usize = (2 << 20) / PAGE_SIZE;

/// A private mapping of a file has file pages and anonymous copies, alternating by 64 KiB and page
/// by page. The copies must migrate wherever the boundaries of the policy's windows of 64 KiB and 2
/// MiB are.
pub(super) fn private_copies(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &vram(4))?;
    let file = files::temp_file("/tmp", 1, PAGES)?;
    // Offsets at the boundaries of a window, beside them and between them, and the same elsewhere
    // in a block.
    let small = [0, 1, LEAF / 2 - 1, LEAF - 1, LEAF, LEAF + 1, LEAF * 3 / 2, 2 * LEAF - 1];
    let large = [WINDOW / 2 - 1, WINDOW / 2, WINDOW / 2 + 1, WINDOW - 31, WINDOW - 1];
    let mut offsets: Vec<usize> = small.into_iter().chain(large).chain([HUGE_PAGES - 1]).collect();
    offsets.dedup();
    for offset in offsets {
        private_copies_at(ctx, &file, offset)?;
    }
    unload(ctx)
}

fn private_copies_at(ctx: &Ctx, file: &File, offset: usize) -> Outcome {
    let device = ctx.open()?;
    device.set_policy(Policy::Default)?;
    let map = Mapping::file_private_at(file, PAGES, offset)?;
    let mut copies = 0;
    for part in 0..PAGES / (2 * LEAF) {
        map.fill_pages(1, part * 2 * LEAF, LEAF);
        copies += LEAF as u64;
    }
    for page in (LEAF + 1..2 * LEAF).step_by(2) {
        map.fill_pages(1, page, 1);
        copies += 1;
    }
    for round in 0..3 {
        let (before, _) = all(&device)?;
        engine_reads(&device, &map, 1)?;
        let (after, _) = all(&device)?;
        let bytes = after.bytes_copied - before.bytes_copied;
        let expected = if round == 0 { copies * PAGE_SIZE as u64 } else { 0 };
        check_eq!(bytes, expected, "bytes copied in round {round}, {offset} pages behind a block");
        check_eq!(resident(&device, &map, 0, PAGES)? as u64, copies, "pages on the device");
    }
    cpu_sees(&map, 1, "after all")?;
    device.close().what("close")
}

pub(super) fn one_page_of_a_block(ctx: &Ctx) -> Outcome {
    const PAGE: usize = 77;
    const OTHERS: u64 = BLOCK_PAGES - 1;
    let owner = ctx.open()?;
    for pinned in [true, false] {
        let device = ctx.open()?;
        let map = block(1)?;
        let locked = if pinned {
            Some(owner.lock(map.page_addr(PAGE), PAGE_SIZE, 1, false).what("lock")?)
        } else {
            None
        };
        let _pipe = files::Pin::of(map.page_addr(PAGE)).what("give the page to a pipe")?;
        let before = device.counters()?;
        let (done, outcomes) =
            device.migrate_pages(map.addr(), HUGE_PAGES, Way::ToDevice).what("migrate")?;
        check_eq!((done.moved, done.skipped), (OTHERS, 1), "moved and skipped (pinned: {pinned})");
        check_eq!(outcomes[PAGE], PageOutcome::Skipped, "outcome of the page");
        let first = device.counters()?;
        let copied = first.bytes_copied - before.bytes_copied;
        check_eq!(copied, OTHERS * PAGE_SIZE as u64, "bytes copied (pinned: {pinned})");
        // From now on there is no work to do.
        for _ in 0..10 {
            let done =
                device.migrate(map.addr(), HUGE_PAGES, Way::ToDevice).what("migrate again")?;
            check_eq!((done.moved, done.skipped), (0, 1), "moved and skipped again");
        }
        device.set_policy(Policy::Default)?;
        engine_reads(&device, &map, 1)?;
        let last = device.counters()?;
        check_eq!(last.bytes_copied, first.bytes_copied, "bytes copied again");
        few_events(&first, &last, "of tries for one page")?;
        check_eq!(resident(&device, &map, 0, HUGE_PAGES)? as u64, OTHERS, "pages on the device");
        if let Some(locked) = locked {
            owner.unlock(locked.device_addr).what("unlock")?;
        }
        drop(_pipe);
        check_eq!(to_device(&device, &map)?.moved, 1, "pages that moved when it was let go");
        cpu_sees(&map, 1, "after all")?;
    }
    Ok(())
}

/// All pages of a block but one are on the device, whose memory is full. Requests for the block,
/// and an engine that reads it with a policy, evict nothing for the page that cannot migrate.
pub(super) fn full_memory(ctx: &Ctx) -> Outcome {
    const PAGE: usize = 77;
    let _restore = with(ctx, &vram(1))?;
    let owner = ctx.open()?;
    let device = ctx.open()?;
    let map = block(1)?;
    let locked = owner.lock(map.page_addr(PAGE), PAGE_SIZE, 1, false).what("lock")?;
    let done = device.migrate(map.addr(), HUGE_PAGES, Way::ToDevice).what("migrate")?;
    check_eq!((done.moved, done.skipped), (BLOCK_PAGES - 1, 1), "pages moved and skipped");
    let last = Mapping::anon(1)?;
    last.fill(2);
    check_eq!(to_device(&device, &last)?.moved, 1, "pages that fill the memory");
    check_eq!(device.counters()?.device_pages_used, BLOCK_PAGES, "pages on the device");

    let before = device.counters()?;
    for _ in 0..10 {
        let done = device.migrate(map.addr(), HUGE_PAGES, Way::ToDevice).what("migrate again")?;
        check_eq!((done.moved, done.skipped), (0, 1), "pages moved and skipped again");
    }
    for policy in [Policy::Default, Policy::OnePage] {
        device.set_policy(policy)?;
        engine_reads(&device, &map, 1)?;
    }
    let after = device.counters()?;
    check_eq!(after.evicted_pages, before.evicted_pages, "pages evicted");
    check_eq!(after.bytes_copied, before.bytes_copied, "bytes copied");
    few_events(&before, &after, "of tries for one page")?;
    check_eq!(after.device_pages_used, BLOCK_PAGES, "pages on the device after all");
    owner.unlock(locked.device_addr).what("unlock")?;
    cpu_sees(&map, 1, "after all")?;
    cpu_sees(&last, 2, "after all")?;
    device.close().what("close")?;
    owner.close().what("close")?;
    unload(ctx)
}
