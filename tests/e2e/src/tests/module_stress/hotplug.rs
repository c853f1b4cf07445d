// SPDX-License-Identifier: GPL-2.0
//! Suspend, hibernation, and hotplug of CPUs and of memory.

use crate::check;
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::support::*;
use hmm::engine::Way;
use hmm::procfs::selected;
use hmm::{
    Command,
    EngineOp,
    Mapping,
    Settings,
    HUGE_PAGES,
    HUGE_SIZE,
    PAGE_SIZE, //
};
use std::path::Path;
use std::sync::atomic::{
    AtomicBool,
    AtomicU64,
    Ordering, //
};

/// Waits until more pages have moved.
type GoesOn<'a> = &'a dyn Fn() -> Outcome;

/// Runs `disturb` while a thread migrates `map` back and forth and an engine increments its words.
/// Checks that no increment is lost.
fn undisturbed(ctx: &Ctx, disturb: impl FnOnce(GoesOn<'_>) -> Outcome) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(128)?;
    (0..map.pages()).for_each(|page| map.set(page, 0, 0));
    let add = Command::new(EngineOp::AtomicAdd, map.addr(), map.len()).stride(PAGE_SIZE).value(1);
    let job = device.submit(add.rounds(0)).what("ATOMIC_ADD")?;
    let stop = AtomicBool::new(false);
    let moved = AtomicU64::new(0);
    let moves = || -> Outcome {
        while !stop.load(Ordering::Relaxed) {
            for way in [Way::ToDevice, Way::ToSystem] {
                let done = device.migrate(map.addr(), map.pages(), way).what("migrate")?;
                moved.fetch_add(done.moved, Ordering::Relaxed);
            }
        }
        Ok(())
    };
    let goes_on = || -> Outcome {
        let before = moved.load(Ordering::Relaxed);
        until("migrations to go on", || {
            Ok(moved.load(Ordering::Relaxed) >= before + HUGE_PAGES as u64)
        })
    };
    let (disturbed, migrated) = std::thread::scope(|scope| {
        let mover = scope.spawn(moves);
        let disturbed = disturb(&goes_on).and_then(|()| goes_on());
        stop.store(true, Ordering::Relaxed);
        let migrated = mover.join().unwrap_or_else(|_| Err(Stop::Fail("panic".to_string())));
        (disturbed, migrated)
    });
    migrated?;
    disturbed?;
    let ended = job.finish().what("end of ATOMIC_ADD")?;
    let rounds = ended.status.rounds;
    check!(rounds > 0, "the engine did nothing");
    for page in 0..map.pages() {
        let found = map.get(page, 0);
        // The round that was stopped may have incremented the first pages.
        let fits = found == rounds || found == rounds + 1;
        check!(fits, "page {page} counts {found} after {rounds} rounds");
    }
    Ok(())
}

/// Suspends and resumes the machine, as deep as the kernel's test levels allow.
pub(super) fn sleep(ctx: &Ctx, state: &str) -> Outcome {
    let states = std::fs::read_to_string("/sys/power/state").unwrap_or_default();
    if !Path::new("/sys/power/pm_test").exists() || !states.contains(state) {
        return Err(Stop::Skip(format!("this kernel has no '{state}' to test")));
    }
    let kinds = std::fs::read_to_string("/sys/power/mem_sleep").unwrap_or_default();
    let mut settings = Settings::new();
    settings.set("/sys/module/suspend/parameters/pm_test_delay", "1")?;
    undisturbed(ctx, |_| {
        // Each level of suspend to disk takes 10 seconds. The last one includes the others.
        let levels: &[&str] = match state {
            "disk" if ctx.cycles <= 100 => &["core"],
            // Suspend to idle, all that QEMU's machine for arm64 has, ends before "core".
            "mem" if selected(&kinds) == "s2idle" => &["freezer", "devices", "platform"],
            _ => &["freezer", "devices", "core"],
        };
        for level in levels {
            std::fs::write("/sys/power/pm_test", level).what("choose the level")?;
            let slept = std::fs::write("/sys/power/state", state);
            let _ = std::fs::write("/sys/power/pm_test", "none");
            slept.what(&format!("{state} up to '{level}'"))?;
        }
        Ok(())
    })
}

pub(super) fn cpu_hotplug(ctx: &Ctx) -> Outcome {
    let online = "/sys/devices/system/cpu/cpu1/online";
    if !Path::new(online).exists() {
        return Err(Stop::Skip("there is no second processor that can go".to_string()));
    }
    let rounds = (ctx.cycles / 10).clamp(3, 40);
    let result = undisturbed(ctx, |goes_on| {
        for round in 0..rounds {
            std::fs::write(online, "0").what(&format!("take the processor, round {round}"))?;
            goes_on()?;
            std::fs::write(online, "1").what(&format!("bring it back, round {round}"))?;
            goes_on()?;
        }
        Ok(())
    });
    let _ = std::fs::write(online, "1");
    result
}

/// Chunks of device memory are added while others are in use.
pub(super) fn grows(ctx: &Ctx) -> Outcome {
    /// Size of a chunk.
    const CHUNK: usize = 256 << 20;
    let device = ctx.open()?;
    let before = device.counters().what("counters")?.device_pages_total;
    undisturbed(ctx, |_| {
        let map = huge((CHUNK + CHUNK / 6).div_ceil(HUGE_SIZE), 5)?;
        let done = device.migrate(map.addr(), map.pages(), Way::ToDevice).what("migrate")?;
        // Some pages may stay: in blocks that other allocations have begun, or pages with
        // additional references.
        let least = map.pages() * 9 / 10;
        check!(done.moved > least as u64, "{} of {} pages moved", done.moved, map.pages());
        cpu_sees(&map, 5, "after the memory grew")
    })?;
    let after = device.counters().what("counters")?.device_pages_total;
    let chunk = (CHUNK / PAGE_SIZE) as u64;
    check!(after > chunk && after >= before, "{after} device pages, {before} before");
    Ok(())
}
