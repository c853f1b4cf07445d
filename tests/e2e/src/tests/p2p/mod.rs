// SPDX-License-Identifier: GPL-2.0
//! Connections between several devices, and migration between them.

mod competing;
mod pull;
mod readers;

use crate::check;
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    Test,
    What, //
};
use crate::support::*;
use hmm::{
    Connection,
    Device,
    Errno,
    Mapping,
    Pulled,
    Setting,
    PAGE_SIZE, //
};
use std::sync::atomic::{
    AtomicBool,
    Ordering, //
};

const OURS: &str = "the C driver has no connections";

pub const TESTS: &[Test] = &[
    Test::new("p2p", "connectivity_is_reported", pull::connectivity).only_rust(OURS),
    Test::new("p2p", "pages_migrate_between_devices", pull::moves).only_rust(OURS),
    Test::new("p2p", "huge_page_is_pulled_in_parts_without_a_free_block", pull::in_parts)
        .only_rust(OURS)
        .private(),
    Test::new("p2p", "snapshot_reports_remote_pages", pull::snapshot_of_remote).only_rust(OURS),
    Test::new("p2p", "holes_are_not_populated", pull::around_holes).only_rust(OURS),
    Test::new("p2p", "unconnected_devices_copy_through_system_memory", pull::through)
        .only_rust(OURS),
    Test::new("p2p", "connected_reader_in_place_never_faults", readers::in_place).only_rust(OURS),
    Test::new("p2p", "readers_of_the_source_never_fault", readers::readers)
        .only_rust(OURS)
        .private(),
    Test::new("p2p", "readers_on_both_devices_never_fault", readers::readers_on_both)
        .only_rust(OURS),
    Test::new("p2p", "source_reads_writes_of_the_destination", readers::source_first)
        .only_rust(OURS),
    Test::new("p2p", "two_competing_devices_make_progress", competing::fight)
        .only_rust(OURS)
        .seconds(120),
    Test::new("p2p", "failed_copy_keeps_contents", pull::failed).only_rust(OURS),
    Test::new("p2p", "file_close_keeps_contents", pull::closed).only_rust(OURS),
    Test::new("p2p", "one_process_uses_four_devices", competing::four_devices).only_rust(OURS),
    Test::new("p2p", "four_processes_share_one_device", competing::four_processes).only_rust(OURS),
];

pub(super) struct Pair {
    pub(super) one: Device,
    pub(super) two: Device,
}

/// Opens two devices with a connection over which pages are copied directly.
pub(super) fn pair(ctx: &Ctx, connection: Connection) -> Result<Pair, Stop> {
    let one = ctx.open()?;
    let two = Device::open(ctx.second).what("open the second device")?;
    for device in [&one, &two] {
        device.set(Setting::Connection, connection as u64).what("set the connection")?;
    }
    Ok(Pair { one, two })
}

/// Has `to` pull all of `map` from `from`, and runs `event` after `copies` copies. Fails if the
/// pull has ended before the event.
pub fn while_pulled(
    to: &Device,
    map: &Mapping,
    from: &Device,
    copies: u64,
    event: impl FnOnce() -> Outcome,
) -> Result<Result<Pulled, Errno>, Stop> {
    let counter = from.counters().what("counters")?;
    let pulled = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let puller = scope.spawn(|| {
            let result = to.pull(map.addr(), map.pages(), from);
            pulled.store(true, Ordering::SeqCst);
            result
        });
        let copied = |now: u64| (now - counter.bytes_copied) / PAGE_SIZE as u64;
        until("copies of a pull", || Ok(copied(from.counters()?.bytes_copied) >= copies))?;
        check!(!pulled.load(Ordering::SeqCst), "the pull was over before the event");
        event()?;
        puller.join().map_err(|_| Stop::Fail("the puller panicked".into()))
    })
}
