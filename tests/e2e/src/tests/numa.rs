// SPDX-License-Identifier: GPL-2.0
//! NUMA balancing of memory that a device uses. Needs a machine with two nodes: `tests/run/e2e
//! --nodes 2`.

use super::memory::to_device;
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    Test,
    What, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::placement::Policy;
use hmm::{
    procfs,
    Command,
    EngineOp,
    Mapping,
    Settings, //
};
use std::path::Path;
use std::sync::atomic::{
    AtomicBool,
    Ordering::Relaxed, //
};
use std::time::{
    Duration,
    Instant, //
};

const TESTS: &[Test] = &[Test::new("numa", "written_device_memory_stays", written_memory_stays)
    .only_rust("needs counters and engines")
    .private()
    .seconds(120)];

/// Returns the tests if there are two nodes.
pub fn tests() -> &'static [Test] {
    if Path::new("/sys/devices/system/node/node1").exists() {
        TESTS
    } else {
        &[]
    }
}

/// Returns the number of PTEs that NUMA balancing has changed.
fn scanned() -> Result<u64, Stop> {
    let table = procfs::vmstat().what("vmstat")?;
    table.get("numa_pte_updates").copied().ok_or_else(|| Stop::Fail("no numa_pte_updates".into()))
}

/// NUMA balancing removes write access from device memory, too. A device write restores it in
/// place.
fn written_memory_stays(ctx: &Ctx) -> Outcome {
    const SCANS: u64 = 2;
    let mut settings = Settings::new();
    settings.set("/proc/sys/kernel/numa_balancing", "1")?;
    for (name, value) in [("scan_period_min_ms", "100"), ("scan_delay_ms", "10")] {
        settings.set(format!("/sys/kernel/debug/sched/numa_balancing/{name}"), value)?;
    }
    let device = ctx.open()?;
    device.set_policy(Policy::Default)?;
    let map = Mapping::anon_aligned(2)?;
    map.forbid_huge()?;
    map.fill(1);
    to_device(&device, &map)?;
    let fill = Command::new(EngineOp::Fill, map.addr(), map.len());
    check_eq!(device.run(fill.rounds(1)).what("fill")?.error, None, "end of the first round");
    let job = device.submit(fill.rounds(0)).what("submit")?;
    let before = device.counters()?;
    let first = scanned()?;
    let pages = map.pages() as u64;
    let over = AtomicBool::new(false);
    // Only tasks that use a processor are scanned.
    let result: Outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                std::hint::spin_loop();
            }
        });
        let start = Instant::now();
        let mut seen = before.invalidated_pages;
        let mut changes = 0;
        while changes < SCANS && start.elapsed() < Duration::from_secs(90) {
            std::thread::sleep(Duration::from_millis(50));
            let now = device.counters()?.invalidated_pages;
            changes += u64::from(now != seen);
            seen = now;
        }
        over.store(true, Relaxed);
        check!(changes >= SCANS, "the memory was scanned {changes} times");
        Ok(())
    });
    over.store(true, Relaxed);
    let after = device.counters()?;
    job.stop().what("stop")?;
    check_eq!(job.wait().what("wait")?.error, None, "end of the engine");
    result?;
    eprintln!(
        "# numa: {} pages scanned, {} entries lost, {} write faults, {} CPU faults, {} bytes copied",
        scanned()? - first,
        after.invalidated_pages - before.invalidated_pages,
        after.engine_faults_write - before.engine_faults_write,
        after.cpu_faults - before.cpu_faults,
        after.bytes_copied - before.bytes_copied,
    );
    check_eq!(after.cpu_faults, before.cpu_faults, "pages that came back");
    check_eq!(after.bytes_copied, before.bytes_copied, "bytes copied");
    check_eq!(resident(&device, &map, 0, map.pages())? as u64, pages, "pages on the device");
    Ok(())
}
