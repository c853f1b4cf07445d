// SPDX-License-Identifier: GPL-2.0
//! Memory that cannot migrate at all costs no event, no copy and no eviction.

use super::{
    all,
    few_events,
    BLOCKS,
    PAGES, //
};
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
use crate::{
    check,
    check_eq, //
};
use hmm::engine::checksum;
use hmm::pattern::WORDS;
use hmm::placement::Policy;
use hmm::{
    files,
    Command,
    Device,
    EngineOp,
    Mapping,
    Settings, //
};

/// Has an engine read `map` once with the default policy. No page may be moved, copied, unmapped or
/// evicted for it.
fn costs_nothing(device: &Device, map: &Mapping, seed: u64, what: &str) -> Outcome {
    costs_nothing_by(device, map, what, || engine_reads(device, map, seed))
}

/// The same for pages with other contents: `read` has an engine read `map` once.
fn costs_nothing_by(
    device: &Device,
    map: &Mapping,
    what: &str,
    read: impl Fn() -> Outcome,
) -> Outcome {
    device.set_policy(Policy::None)?;
    let (before, _) = all(device)?;
    read()?;
    let (after, _) = all(device)?;
    let faults = after.engine_faults_read - before.engine_faults_read;
    device.discard(map.addr(), map.pages()).what("discard")?;
    for policy in [Policy::Default, Policy::OnePage] {
        device.set_policy(policy)?;
        for round in 0..2 {
            let (before, placed) = all(device)?;
            read()?;
            let (after, now) = all(device)?;
            let what = format!("of {what}, {policy:?}, round {round}");
            check_eq!(now.moved, placed.moved, "pages moved {what}");
            check_eq!(after.bytes_copied, before.bytes_copied, "bytes copied {what}");
            check_eq!(after.evicted_pages, before.evicted_pages, "pages evicted {what}");
            few_events(&before, &after, &what)?;
            check_eq!(after.device_pages_used, before.device_pages_used, "pages in use {what}");
            let rounds = after.engine_faults_read - before.engine_faults_read;
            check!(rounds <= faults, "faults {what}: {rounds}, without a policy {faults}");
            device.discard(map.addr(), map.pages()).what("discard")?;
        }
    }
    Ok(())
}

/// Pages of zeros that a driver has inserted into a mapping.
fn device_file_costs_nothing(device: &Device, owner: &Device) -> Outcome {
    let map = owner.map_file(16).what("map the device file")?;
    let zeros = checksum(std::iter::repeat_n(0, map.pages() * WORDS));
    let read = Command::new(EngineOp::Checksum, map.addr(), map.len()).verify(zeros);
    costs_nothing_by(device, &map, "a device file", || {
        check_eq!(device.run(read).what("engine")?.error, None, "an engine's read of zeros");
        Ok(())
    })
}

pub(super) fn immovable_memory(ctx: &Ctx) -> Outcome {
    let mut settings = Settings::new();
    check!(settings.set("/proc/sys/vm/nr_hugepages", "8")?, "no hugetlb pages");
    let _restore = with(ctx, &vram(4))?;
    let device = ctx.open()?;
    // The device memory is full of memory that could be evicted.
    let full = (0..4).map(block).collect::<Result<Vec<_>, _>>()?;
    for map in &full {
        check_eq!(to_device(&device, map)?.moved, BLOCK_PAGES, "pages that moved");
    }

    let map = Mapping::shared(PAGES)?;
    map.fill(1);
    costs_nothing(&device, &map, 1, "shared anonymous memory")?;
    let memfd = files::memfd(2, PAGES)?;
    costs_nothing(&device, &Mapping::file_shared(&memfd, PAGES)?, 2, "a shared memfd")?;
    costs_nothing(&device, &Mapping::file_private(&memfd, PAGES)?, 2, "a private memfd")?;
    let file = files::temp_file("/tmp", 3, PAGES)?;
    costs_nothing(&device, &Mapping::file_shared(&file, PAGES)?, 3, "a shared file")?;
    let private = Mapping::file_private(&file, PAGES + 1);
    costs_nothing(&device, &Mapping::file_private(&file, PAGES)?, 3, "a private file")?;
    drop(private);
    let hugetlb = Mapping::hugetlb(BLOCKS).what("map hugetlb pages")?;
    hugetlb.fill(4);
    costs_nothing(&device, &hugetlb, 4, "hugetlb pages")?;
    let owner = ctx.open()?;
    device_file_costs_nothing(&device, &owner)?;

    // Anonymous memory that is pinned for a device.
    let map = block(5)?;
    let locked = owner.lock(map.addr(), map.len(), 1, false).what("lock")?;
    costs_nothing(&device, &map, 5, "pinned memory")?;
    owner.unlock(locked.device_addr).what("unlock")?;
    // Anonymous memory whose pages pipes hold, too.
    let map = Mapping::anon(128)?;
    map.fill(6);
    let _pins = (0..map.pages())
        .map(|page| files::Pin::of(map.page_addr(page)))
        .collect::<Result<Vec<_>, _>>()
        .what("give pages to pipes")?;
    settle()?;
    costs_nothing(&device, &map, 6, "memory of pipes")?;
    // Memory that may be merged by KSM.
    let map = block(7)?;
    map.advise(hmm::mapping::MADV_MERGEABLE).what("make memory mergeable")?;
    costs_nothing(&device, &map, 7, "memory that may be merged")?;

    check_eq!(device.counters()?.device_pages_used, 4 * BLOCK_PAGES, "pages on the device");
    for (seed, map) in full.iter().enumerate() {
        cpu_sees(map, seed as u64, "after all")?;
    }
    device.close().what("close")?;
    owner.close().what("close")?;
    unload(ctx)
}
