// SPDX-License-Identifier: GPL-2.0
//! Processes that exit while the device holds their pages, and device files that outlive the
//! process which opened them.

use crate::{
    check,
    check_eq,
    harness::{
        Ctx,
        Outcome,
        Stop,
        Test,
        What, //
    },
    support::*, //
};
use hmm::{
    mapping::has_huge_pages,
    uffd::Missing,
    Child,
    Device,
    Errno,
    Gate,
    Mapping,
    Op,
    Ptr,
    HUGE_PAGES,
    PAGE_SIZE, //
};
use std::time::{
    Duration,
    Instant, //
};

const PAGES: usize = 128;
const EXTENSION: &str = "the kernel's 7.2 driver has no READ_UNLOCKED";

pub const TESTS: &[Test] = &[
    Test::new("file_lifetime", "exit_with_device_pages", |ctx| end_with_pages(ctx, false)),
    Test::new("file_lifetime", "kill_with_device_pages", |ctx| end_with_pages(ctx, true)),
    Test::new("file_lifetime", "process_exit_frees_device_pages_of_an_open_file", file_outlives),
    Test::new("file_lifetime", "commands_after_process_exit_fail", commands_without_process)
        .only_rust("not run with test_hmm, whose result is not defined"),
    Test::new("file_lifetime", "userfaultfd_populates_during_a_device_read", userfaultfd)
        .only_rust(EXTENSION),
    Test::new("file_lifetime", "many_mirrors_of_a_process_work", many_opens),
];

/// Waits until exactly `pages` pages of the device are in use.
fn settles(ctx: &Ctx, device: &Device, pages: u64, when: &str) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let Some(counters) = ctx.counters(device)? else { return Ok(()) };
        if counters.device_pages_used == pages {
            return Ok(());
        }
        let used = counters.device_pages_used;
        check!(Instant::now() < deadline, "{used} device pages {when}, expected {pages}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Body of a child that migrates small pages and, if possible, a huge page, and then waits.
fn holder(ctx: &Ctx, ready: &Gate, go: &Gate) -> Outcome {
    let device = ctx.open()?;
    let small = Mapping::anon(PAGES)?;
    small.fill(1);
    migrate(&device, &small, 1)?;
    let big = if has_huge_pages() { huge(1, 1)? } else { Mapping::anon(HUGE_PAGES)? };
    big.fill(1);
    migrate(&device, &big, 1)?;
    ready.send(device.fd() as u64)?;
    go.wait()?;
    // Exit without unmapping or closing anything.
    std::mem::forget((device, small, big));
    Ok(())
}

fn end_with_pages(ctx: &Ctx, kill: bool) -> Outcome {
    let own = ctx.open()?;
    let ready = Gate::new()?;
    let go = Gate::new()?;
    let child = Child::spawn(|| holder(ctx, &ready, &go))?;
    ready.receive().what("the child's device")?;
    if let Some(counters) = ctx.counters(&own)? {
        check_eq!(
            counters.device_pages_used,
            (PAGES + HUGE_PAGES) as u64,
            "device pages of the child"
        );
    }
    if kill {
        child.signal(hmm::child::SIGKILL);
        check_eq!(child.join(), Err("killed by signal 9".to_string()), "the child's end");
    } else {
        go.open()?;
        child.join().map_err(Stop::Fail)?;
    }
    settles(ctx, &own, 0, "after the child's end")?;
    let map = Mapping::anon(PAGES)?;
    map.fill(2);
    migrate(&own, &map, 2)?;
    cpu_sees(&map, 2, "by the next process")
}

/// A process exits but its device file stays open. Its device pages must be freed nevertheless.
fn file_outlives(ctx: &Ctx) -> Outcome {
    let own = ctx.open()?;
    let ready = Gate::new()?;
    let go = Gate::new()?;
    let child = Child::spawn(|| holder(ctx, &ready, &go))?;
    let fd = ready.receive().what("the child's device")?;
    let copy = Device::of_process(child.pid(), fd as i32).what("the child's device file")?;
    go.open()?;
    child.join().map_err(Stop::Fail)?;
    settles(ctx, &own, 0, "after the end of a process whose file is still open")?;
    copy.close().what("close the file of the ended process")
}

/// Commands on the mirror of a process that has exited.
fn commands_without_process(ctx: &Ctx) -> Outcome {
    let ready = Gate::new()?;
    let go = Gate::new()?;
    let map = Mapping::anon(1)?;
    map.fill(1);
    let child = Child::spawn(|| holder(ctx, &ready, &go))?;
    let fd = ready.receive().what("the child's device")?;
    let device = Device::of_process(child.pid(), fd as i32).what("the child's device file")?;
    go.open()?;
    child.join().map_err(Stop::Fail)?;
    let expected = [
        (Op::Read, Some(Errno::EFAULT)),
        (Op::Write, Some(Errno::EFAULT)),
        (Op::MigrateToDev, Some(Errno::EINVAL)),
        (Op::MigrateToSys, Some(Errno::EINVAL)),
        (Op::Snapshot, Some(Errno::EINVAL)),
        (Op::Exclusive, Some(Errno::EINVAL)),
        (Op::CheckExclusive, None),
        (Op::Flags, None),
        (Op::Release, None),
    ];
    for (op, errno) in expected {
        let mut buffer = vec![0; PAGE_SIZE];
        // FLAGS takes its flags from the number of pages. The value 2 sets no flag that exists.
        let npages = if op == Op::Flags { 2 } else { 1 };
        let ptr = if op == Op::Flags { Ptr::Null } else { Ptr::Slice(&mut buffer) };
        let result = device.probe(op, map.addr() as u64, npages, ptr);
        let name = op.name();
        match errno {
            Some(errno) => fails(result, errno, &format!("{name} without a process"))?,
            None => result.map(|_| ()).what(&format!("{name} without a process"))?,
        }
    }
    cpu_sees(&map, 1, "of our own memory at the same address")
}

/// Memory that a userfaultfd handler populates while the device waits.
fn userfaultfd(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(4)?;
    let missing = match Missing::new(&map) {
        Err(Errno(38)) => return Err(Stop::Skip("this kernel has no userfaultfd".to_string())),
        other => other.what("register with userfaultfd")?,
    };
    // No handler serves the range yet, so a command that cannot wait returns an error.
    fails(device.read(map.addr(), &mut [0; PAGE_SIZE]), Errno::EFAULT, "READ")?;
    let (served, read) = std::thread::scope(|scope| {
        let handler = scope.spawn(|| {
            let mut pages = 0;
            while pages < map.pages() {
                match missing.serve(0xab, Duration::from_secs(60)) {
                    Ok(Some(_)) => pages += 1,
                    _ => break,
                }
            }
            pages
        });
        let mut data = vec![0; map.len()];
        let read = device.read_unlocked(map.addr(), &mut data).map(|done| (done, data));
        (handler.join(), read)
    });
    let (done, data) = read.what("READ_UNLOCKED")?;
    check_eq!(done.cpages, 4, "cpages");
    check!(data.iter().all(|byte| *byte == 0xab), "the device read something else");
    check_eq!(served.ok(), Some(4), "pages that the handler filled");
    check_eq!(map.get(3, 0), 0xabab_abab_abab_abab, "CPU read");
    Ok(())
}

/// Many mirrors of one process exist together and all work.
fn many_opens(ctx: &Ctx) -> Outcome {
    let map = Mapping::anon(8)?;
    map.fill(1);
    let mut devices = Vec::new();
    for _ in 0..32 {
        let device = ctx.open()?;
        device_sees(&device, &map, 1, "through one of many files")?;
        devices.push(device);
    }
    map.protect(hmm::Prot::Read)?;
    map.protect(hmm::Prot::ReadWrite)?;
    device_fills(&devices[7], &map, 2, "through one of many files")?;
    for device in &devices {
        device_sees(device, &map, 2, "through each of many files")?;
    }
    cpu_sees(&map, 2, "at the end")
}
