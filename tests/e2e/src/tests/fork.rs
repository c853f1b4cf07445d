// SPDX-License-Identifier: GPL-2.0
//! fork(): a process must not see writes by the CPU or the device of another process.

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
use hmm::{
    Child,
    Gate,
    Mapping, //
};

const PAGES: usize = 32;
const NO_COW: &str = "a device write after fork fails with a warning";
const STALE: &str = "reads its own device page as system memory: oops";

pub const TESTS: &[Test] = &[
    Test::new("fork", "device_write_hidden_small", device_write_hidden_small).defect(NO_COW),
    Test::new("fork", "device_write_hidden_thp", device_write_hidden_thp).defect(NO_COW),
    Test::new("fork", "device_write_hidden_in_ram", device_write_hidden_in_ram),
    Test::new("fork", "device_write_while_child_reads_first", child_reads_first).defect(STALE),
    Test::new("fork", "child_cpu_write_hidden_small", child_cpu_write_small).defect(STALE),
    Test::new("fork", "child_cpu_write_hidden_thp", child_cpu_write_thp).defect(STALE),
    Test::new("fork", "child_device_write_hidden_small", child_device_small).defect(NO_COW),
    Test::new("fork", "child_device_write_hidden_thp", child_device_thp).defect(NO_COW),
    Test::new("fork", "child_device_write_hidden_in_ram", child_device_in_ram),
    Test::new("fork", "child_exit_keeps_device_pages", child_exit).defect(STALE),
    Test::new("fork", "child_keeps_pages_after_parent_munmap", child_outlives),
    Test::new("fork", "inherited_file_accesses_the_parent", inherited_file),
];

/// Body of a child that checks its memory when the parent opens the gate, and again before it ends.
fn watcher<'a>(map: &'a Mapping, seed: u64, looks: &'a Gate, seen: &'a Gate) -> Outcome {
    looks.wait().what("gate")?;
    cpu_sees(map, seed, "by the child")?;
    seen.open().what("gate")?;
    looks.wait().what("gate")?;
    cpu_sees(map, seed, "by the child, the second time")
}

fn device_write_hidden(ctx: &Ctx, map: &Mapping, resident_before: bool) -> Outcome {
    let device = ctx.open()?;
    map.fill(1);
    if resident_before {
        migrate(&device, map, 1)?;
    } else {
        // Writable device PTEs must not survive the fork.
        device_fills(&device, map, 1, "before the fork").map(|_| ())?;
    }
    let looks = Gate::new()?;
    let seen = Gate::new()?;
    let child = Child::spawn(|| watcher(map, 1, &looks, &seen))?;
    let delta = Delta::start(ctx, &device)?;
    let done = device_fills(&device, map, 2, "after the fork")?;
    check!(done.faults >= 1, "a device write after fork took no fault");
    delta.at_least("faults_write", 1, "of the write after fork")?;
    looks.open().what("gate")?;
    if let Err(error) = seen.wait() {
        // The child's own report is more specific than an error of the gate.
        child.join().map_err(Stop::Fail)?;
        return Err(error.into());
    }
    device_sees(&device, map, 2, "of its own words")?;
    cpu_sees(map, 2, "by the parent after the device write")?;
    looks.open().what("gate")?;
    child.join().map_err(Stop::Fail)?;
    device_sees(&device, map, 2, "after the child exited")?;
    device_fills(&device, map, 3, "after the child exited")?;
    cpu_sees(map, 3, "at the end")
}

fn device_write_hidden_small(ctx: &Ctx) -> Outcome {
    device_write_hidden(ctx, &Mapping::anon(PAGES)?, true)
}

fn device_write_hidden_thp(ctx: &Ctx) -> Outcome {
    device_write_hidden(ctx, &huge(1, 1)?, true)
}

fn device_write_hidden_in_ram(ctx: &Ctx) -> Outcome {
    device_write_hidden(ctx, &Mapping::anon(PAGES)?, false)
}

/// The child's read migrates the shared device page back for both processes.
fn child_reads_first(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    migrate(&device, &map, 1)?;
    let looks = Gate::new()?;
    let seen = Gate::new()?;
    let child = Child::spawn(|| watcher(&map, 1, &looks, &seen))?;
    looks.open().what("gate")?;
    seen.wait().what("the child's first look")?;
    device_sees(&device, &map, 1, "after the child brought the pages back")?;
    device_fills(&device, &map, 2, "after the child brought the pages back")?;
    looks.open().what("gate")?;
    child.join().map_err(Stop::Fail)?;
    cpu_sees(&map, 2, "by the parent")
}

/// The parent's device must not see writes of the child's CPU.
fn child_cpu_write(ctx: &Ctx, map: &Mapping) -> Outcome {
    let device = ctx.open()?;
    map.fill(1);
    migrate(&device, map, 1)?;
    let go = Gate::new()?;
    let done = Gate::new()?;
    let child = Child::spawn(|| {
        map.fill(2);
        done.open().what("gate")?;
        go.wait().what("gate")?;
        cpu_sees(map, 2, "by the child of its own words")
    })?;
    done.wait().what("the child's write")?;
    device_sees(&device, map, 1, "after the child's CPU write")?;
    device_fills(&device, map, 3, "after the child's CPU write")?;
    go.open().what("gate")?;
    child.join().map_err(Stop::Fail)?;
    cpu_sees(map, 3, "by the parent")
}

fn child_cpu_write_small(ctx: &Ctx) -> Outcome {
    child_cpu_write(ctx, &Mapping::anon(PAGES)?)
}

fn child_cpu_write_thp(ctx: &Ctx) -> Outcome {
    child_cpu_write(ctx, &huge(1, 1)?)
}

/// Neither the parent nor its device may see writes of the child's device.
fn child_device_write(ctx: &Ctx, map: &Mapping, resident_before: bool) -> Outcome {
    let device = ctx.open()?;
    map.fill(1);
    if resident_before {
        migrate(&device, map, 1)?
    } else {
        device_sees(&device, map, 1, "before the fork").map(|_| ())?
    }
    let go = Gate::new()?;
    let done = Gate::new()?;
    let child = Child::spawn(|| {
        let own = ctx.open()?;
        device_sees(&own, map, 1, "by the child's device")?;
        device_fills(&own, map, 2, "by the child's device")?;
        done.open().what("gate")?;
        go.wait().what("gate")?;
        device_sees(&own, map, 2, "by the child's device of the child's words")?;
        cpu_sees(map, 2, "by the child")
    })?;
    if let Err(error) = done.wait() {
        child.join().map_err(Stop::Fail)?;
        return Err(error.into());
    }
    device_sees(&device, map, 1, "by the parent after the child's device wrote")?;
    device_fills(&device, map, 3, "by the parent after the child's device wrote")?;
    go.open().what("gate")?;
    child.join().map_err(Stop::Fail)?;
    // Closing the child's file evicted all device memory, including the parent's pages.
    device_sees(&device, map, 3, "after the child's close")?;
    cpu_sees(map, 3, "by the parent at the end")
}

fn child_device_small(ctx: &Ctx) -> Outcome {
    child_device_write(ctx, &Mapping::anon(PAGES)?, true)
}

fn child_device_thp(ctx: &Ctx) -> Outcome {
    child_device_write(ctx, &huge(1, 1)?, true)
}

fn child_device_in_ram(ctx: &Ctx) -> Outcome {
    child_device_write(ctx, &Mapping::anon(PAGES)?, false)
}

/// A child that exits drops only its own references.
fn child_exit(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    let delta = Delta::start(ctx, &device)?;
    migrate(&device, &map, 1)?;
    delta.exactly("device_pages_used", PAGES as i64, "after the migration")?;
    let child = Child::spawn(|| Ok::<(), Stop>(()))?;
    child.join().map_err(Stop::Fail)?;
    check_eq!(resident(&device, &map, 0, PAGES)?, PAGES, "device pages after the child's end");
    delta.exactly("device_pages_used", PAGES as i64, "after the child's end")?;
    device_sees(&device, &map, 1, "after the child's end")?;
    device_fills(&device, &map, 2, "after the child's end")?;
    cpu_sees(&map, 2, "after the child's end")
}

/// The child's reference keeps a device page alive when the parent unmaps it.
fn child_outlives(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    let delta = Delta::start(ctx, &device)?;
    migrate(&device, &map, 1)?;
    let go = Gate::new()?;
    let child = Child::spawn(|| {
        go.wait().what("gate")?;
        cpu_sees(&map, 1, "by the child after the parent unmapped")
    })?;
    map.unmap_pages(0, PAGES)?;
    delta.exactly("device_pages_used", PAGES as i64, "while the child holds them")?;
    go.open().what("gate")?;
    child.join().map_err(Stop::Fail)?;
    delta.exactly("device_pages_used", 0, "when no process holds them")
}

/// A device file that the child inherits still accesses the parent's memory.
fn inherited_file(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    device_sees(&device, &map, 1, "before the fork")?;
    let child = Child::spawn(|| {
        map.fill(2);
        device_sees(&device, &map, 1, "by the child through the parent's file")?;
        device_fills(&device, &map, 3, "by the child through the parent's file")?;
        cpu_sees(&map, 2, "by the child of its own memory")
    })?;
    child.join().map_err(Stop::Fail)?;
    cpu_sees(&map, 3, "by the parent")?;
    device_sees(&device, &map, 3, "by the parent's device")?;
    let child = Child::spawn(|| {
        let mut data = vec![0; map.len()];
        let done = device.migrate_to_device(map.addr(), &mut data);
        done.what("migration by the child through the parent's file")?;
        cpu_sees(&map, 3, "by the child")
    })?;
    child.join().map_err(Stop::Fail)?;
    cpu_sees(&map, 3, "by the parent after the child migrated")
}
