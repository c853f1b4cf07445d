// SPDX-License-Identifier: GPL-2.0
//! Pulls of pages: connections, pages that move or stay, failures, and files that are closed.

use super::{
    pair,
    while_pulled,
    Pair, //
};
use crate::check_eq;
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::support::*;
use hmm::engine::Way;
use hmm::{
    inject,
    Child,
    Connection,
    Device,
    Errno,
    Gate,
    Mapping,
    PageState,
    Setting,
    HUGE_PAGES, //
};

pub(super) fn connectivity(ctx: &Ctx) -> Outcome {
    let Pair { one, two } = pair(ctx, Connection::Unified)?;
    let ask = |from: &Device, to: &Device| from.connection(to).what("connection");
    // Access in place requires memory that the CPU can address.
    let best = if ctx.coherent() { Connection::Unified } else { Connection::Migratable };
    check_eq!((ask(&one, &two)?, ask(&two, &one)?), (best, best), "at first");
    for (mine, theirs, both) in [
        (Connection::None, Connection::Unified, Connection::None),
        (Connection::Migratable, Connection::None, Connection::None),
        (Connection::Migratable, Connection::Unified, Connection::Migratable),
    ] {
        one.set(Setting::Connection, mine as u64).what("set")?;
        two.set(Setting::Connection, theirs as u64).what("set")?;
        let found = (ask(&one, &two)?, ask(&two, &one)?);
        check_eq!(found, (both, both), "of {mine:?} and {theirs:?}");
        let again = ctx.open()?;
        check_eq!(ask(&one, &again)?, Connection::Unified, "of a device with itself");
    }
    // A mirror of another process.
    let ready = Gate::new()?;
    let child = Child::spawn(|| -> Result<(), Stop> {
        let mine = ctx.open()?;
        check_eq!(ask(&mine, &two)?, Connection::None, "with a mirror of another process");
        let map = Mapping::anon(1)?;
        fails(mine.pull(map.addr(), 1, &two), Errno::EINVAL, "pull from another process")?;
        ready.open().what("tell")
    })?;
    ready.wait()?;
    child.join().map_err(Stop::Fail)?;
    let map = Mapping::anon(1)?;
    let mut words = [72, u64::from(u32::MAX), map.addr() as u64, 1, 0, 0, 0, 0, 0];
    fails(one.probe_extension(0x78, &mut words), Errno(libc::EBADF), "no file")?;
    words[1] = 0;
    fails(one.probe_extension(0x78, &mut words), Errno(libc::EBADF), "a file that is no device")
}

pub(super) fn moves(ctx: &Ctx) -> Outcome {
    let Pair { one, two } = pair(ctx, Connection::Migratable)?;
    let small = Mapping::anon(1100)?;
    small.fill(3);
    let large = huge(2, 4)?;
    for (map, seed) in [(&small, 3), (&large, 4)] {
        migrate(&one, map, seed)?;
        device_fills_pages(&one, map, seed + 10, 0, map.pages(), "on the first device")?;
        let delta = Delta::start(ctx, &one)?;
        let other = Delta::start(ctx, &two)?;
        let pulled = two.pull(map.addr(), map.pages(), &one).what("pull")?;
        check_eq!(pulled.connection, Connection::Migratable, "connection");
        check_eq!((pulled.moved, pulled.copy_failed), (map.pages() as u64, 0), "pages that moved");
        check_eq!(resident(&two, map, 0, map.pages())?, map.pages(), "pages on the second");
        device_sees(&two, map, seed + 10, "by the second device")?;
        other.exactly("faults_read", 0, "of the second device")?;
        for (name, delta) in [("first", &delta), ("second", &other)] {
            delta.exactly("cpu_faults", 0, name)?;
            delta.exactly("migrated_to_system", 0, name)?;
        }
        delta.exactly("device_pages_used", -(map.pages() as i64), "of the first")?;
        other.exactly("device_pages_used", map.pages() as i64, "of the second")?;
    }
    if !ctx.coherent() {
        check_eq!(resident_huge(&two, &large)?, 2 * HUGE_PAGES, "pages that are still huge");
    }
    // The source has no page left. Then all pages are pulled back.
    check_eq!(two.pull(small.addr(), small.pages(), &one).what("pull")?.moved, 0, "a second time");
    check_eq!(one.pull(small.addr(), 100, &two).what("back")?.moved, 100, "pages back");
    device_sees_pages(&one, &small, 13, 0, 100, "by the first device")?;
    cpu_sees(&small, 13, "at the end")?;
    cpu_sees(&large, 14, "at the end")
}

pub(super) fn snapshot_of_remote(ctx: &Ctx) -> Outcome {
    let Pair { one, two } = pair(ctx, Connection::Migratable)?;
    let map = Mapping::anon(8)?;
    map.fill(3);
    migrate(&one, &map, 3)?;
    let states = two.snapshot(map.addr(), 8).what("snapshot")?;
    // Memory that the CPU cannot address is reported as not present.
    let state = if ctx.coherent() {
        PageState(PageState::DEV_COHERENT_REMOTE | PageState::WRITE)
    } else {
        PageState::NONE
    };
    check_eq!(states, [state; 8], "the first device's memory, by the second");
    cpu_sees(&map, 3, "at the end")
}

pub(super) fn in_parts(ctx: &Ctx) -> Outcome {
    let Pair { one, two } = pair(ctx, Connection::Migratable)?;
    let map = huge(1, 5)?;
    let other = huge(1, 6)?;
    migrate(&one, &map, 5)?;
    migrate(&one, &other, 6)?;
    let pull = |map: &Mapping, setting| {
        inject::set_point("device_page", setting).what("set the point")?;
        let pulled = two.pull(map.addr(), map.pages(), &one);
        inject::clear_points().what("clear the points")?;
        pulled.what("pull")
    };
    let pages = map.pages() as u64;
    let all = pull(&map, "1")?;
    check_eq!((all.moved, all.no_memory), (pages, 0), "pages with small memory only");
    check_eq!(resident(&two, &map, 0, map.pages())?, map.pages(), "pages on the second");
    check_eq!(resident_huge(&two, &map)?, 0, "of these, huge");
    device_sees(&two, &map, 5, "by the second device")?;
    let none = pull(&other, "1 every")?;
    check_eq!((none.moved, none.no_memory), (0, pages), "pages with no memory at all");
    check_eq!(resident(&one, &other, 0, other.pages())?, other.pages(), "pages that stayed");
    device_sees(&one, &other, 6, "by the first device")?;
    cpu_sees(&map, 5, "at the end")?;
    cpu_sees(&other, 6, "at the end")
}

pub(super) fn around_holes(ctx: &Ctx) -> Outcome {
    let Pair { one, two } = pair(ctx, Connection::Migratable)?;
    let map = Mapping::anon(64)?;
    map.fill(6);
    migrate(&one, &map, 6)?;
    map.advise_pages(libc::MADV_DONTNEED, 16, 8)?;
    let delta = Delta::start(ctx, &two)?;
    let pulled = two.pull(map.addr(), 64, &one).what("pull")?;
    check_eq!((pulled.moved, pulled.no_memory), (56, 0), "pages that moved");
    delta.exactly("device_pages_used", 56, "of the second")?;
    check_eq!(resident(&two, &map, 16, 8)?, 0, "pages of the hole on the second");
    device_sees_pages(&two, &map, 6, 0, 16, "before the hole")?;
    device_sees_zero(&two, &map, 16, 8, "in the hole")?;
    device_sees_pages(&two, &map, 6, 24, 40, "behind the hole")?;
    map.check_pages(6, 24, 40).what("CPU read")
}

pub(super) fn through(ctx: &Ctx) -> Outcome {
    let Pair { one, two } = pair(ctx, Connection::None)?;
    let map = Mapping::anon(64)?;
    map.fill(3);
    migrate(&one, &map, 3)?;
    let delta = Delta::start(ctx, &one)?;
    let pulled = two.pull(map.addr(), 64, &one).what("pull")?;
    check_eq!((pulled.connection, pulled.moved), (Connection::None, 64), "pages that moved");
    delta.exactly("migrated_to_system", 64, "of the first")?;
    check_eq!(resident(&two, &map, 0, 64)?, 64, "pages on the second");
    device_sees(&two, &map, 3, "by the second device")?;
    if ctx.coherent() {
        // The memory is accessed in place: no page moves, and no access faults.
        let Pair { one, two } = pair(ctx, Connection::Unified)?;
        let delta = Delta::start(ctx, &two)?;
        let pulled = one.pull(map.addr(), 64, &two).what("pull")?;
        check_eq!((pulled.connection, pulled.moved), (Connection::Unified, 0), "in place");
        let before = one.counters().what("counters")?.faults_read;
        device_sees(&one, &map, 3, "in place")?;
        check_eq!(one.counters().what("counters")?.faults_read, before, "faults of the reader");
        delta.exactly("device_pages_used", 0, "where it is")?;
    }
    cpu_sees(&map, 3, "at the end")
}

pub(super) fn failed(ctx: &Ctx) -> Outcome {
    let Pair { one, two } = pair(ctx, Connection::Migratable)?;
    let map = Mapping::anon(16)?;
    map.fill(3);
    migrate(&one, &map, 3)?;
    // One copy in the middle, made by the source's engine, fails.
    one.set(Setting::CopyFail, 5).what("set")?;
    let pulled = two.pull(map.addr(), 16, &one).what("pull")?;
    check_eq!((pulled.moved, pulled.copy_failed), (15, 1), "pages moved and failed");
    check_eq!(resident(&one, &map, 0, 16)?, 1, "pages that stay");
    check_eq!(resident(&two, &map, 0, 16)?, 15, "pages that moved");
    two.discard(map.addr(), 16).what("discard")?;
    cpu_sees(&map, 3, "after it")?;
    Ok(())
}

/// Has `to` pull all of `map` from `from`, while the file `closed`, which is one of the two, is
/// closed.
fn pull_while_closed(
    to: &Device,
    map: &Mapping,
    from: &Device,
    closed: &Device,
    copies: u64,
) -> Outcome {
    let close = || closed.detach().what("close one of the files");
    let pulled = while_pulled(to, map, from, copies, close)?.what("pull")?;
    check_eq!(pulled.moved, map.pages() as u64, "pages moved");
    Ok(())
}

/// Migrates all pages to system memory. CPU reads would not do that for coherent memory.
fn migrate_back(devices: &[&Device], map: &Mapping) -> Outcome {
    for device in devices {
        device.migrate(map.addr(), map.pages(), Way::ToSystem).what("migrate to the system")?;
        check_eq!(resident(device, map, 0, map.pages())?, 0, "pages that stayed");
    }
    Ok(())
}

pub(super) fn closed(ctx: &Ctx) -> Outcome {
    let Pair { one, two } = pair(ctx, Connection::Migratable)?;
    let map = Mapping::anon(32)?;
    map.fill(3);
    for round in 0..4 {
        let source = ctx.open()?;
        migrate(&source, &map, 3)?;
        source.set(Setting::CopyDelay, 10_000_000).what("set the delay")?;
        // The source is closed while its pages are copied. The call holds a reference on the file
        // until it returns.
        let copies = 2 + 5 * round;
        pull_while_closed(&two, &map, &source, &source, copies)?;
        one.set(Setting::CopyDelay, 0).what("set the delay back")?;
        device_sees(&two, &map, 3, "after the source was unplugged")?;
        cpu_sees(&map, 3, "after the source was unplugged")?;
        migrate_back(&[&one, &two], &map)?;
        // The destination is closed. Pages that have moved are migrated back; the others stay in
        // place.
        migrate(&one, &map, 3)?;
        one.set(Setting::CopyDelay, 10_000_000).what("set the delay")?;
        let destination = Device::open(ctx.second).what("open the second")?;
        pull_while_closed(&destination, &map, &one, &destination, copies)?;
        one.set(Setting::CopyDelay, 0).what("set the delay back")?;
        device_sees(&one, &map, 3, "after the destination was unplugged")?;
        cpu_sees(&map, 3, "after the destination was unplugged")?;
        migrate_back(&[&one, &two], &map)?;
    }
    Ok(())
}
