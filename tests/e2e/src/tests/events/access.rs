// SPDX-License-Identifier: GPL-2.0
//! Events of other mirrors and processes, and calls that are refused.

use super::{
    all_types,
    listen,
    mask,
    of,
    other,
    records,
    PAGES, //
};
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::events::{
    Type,
    RECORD, //
};
use hmm::{
    Child,
    Device,
    Errno,
    Mapping, //
};

pub(super) fn own_only(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let again = ctx.open()?;
    listen(&device, all_types())?;
    listen(&again, all_types())?;
    let index = ctx.device;
    // Fork before the device is opened, because a later fork would be an event of our own memory.
    let child = Child::spawn(|| other(index)).what("fork")?;
    child.join().map_err(Stop::Fail)?;
    let foreign = [
        Type::FaultBegin,
        Type::FaultEnd,
        Type::CpuFault,
        Type::MigrateBegin,
        Type::MigrateEnd,
        Type::Evict,
    ];
    for device in [&device, &again] {
        let all = records(device)?;
        let heard = all.iter().find(|record| foreign.contains(&record.kind));
        check_eq!(heard, None, "what another process did");
        // A fork invalidates our own memory.
        check!(all.iter().all(|record| record.kind == Type::Invalidate), "{all:?}");
    }
    // Each of two mirrors of a process reports its own events.
    let map = Mapping::anon_in_block(PAGES)?;
    map.fill(1);
    device_sees(&device, &map, 1, "by one mirror")?;
    check!(!of(&records(&device)?, Type::FaultEnd).is_empty(), "nothing of its own");
    check_eq!(of(&records(&again)?, Type::FaultEnd), [], "events of the other mirror");
    Ok(())
}

pub(super) fn privileged(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    device.events(all_types(), true).what("ask for all as root")?;
    let index = ctx.device;
    let child = Child::spawn(|| other(index)).what("fork")?;
    child.join().map_err(Stop::Fail)?;
    let all = records(&device)?;
    let moved = of(&all, Type::MigrateEnd).iter().any(|record| record.moved == PAGES as u64);
    check!(moved, "nothing of the other process: {all:?}");
    // Without the capability the call is refused and changes nothing.
    let fd = device.fd();
    let child = Child::spawn(|| -> Result<(), String> {
        // SAFETY: `setgid` takes a number and accesses no memory of the process.
        unsafe { libc::setgid(65534) };
        // SAFETY: `setuid` takes a number and accesses no memory of the process.
        unsafe { libc::setuid(65534) };
        let pid = std::process::id() as i32;
        let own = Device::of_process(pid, fd).map_err(|error| error.to_string())?;
        match own.events(all_types(), true) {
            Err(Errno::EPERM) => {}
            other => return Err(format!("all events without the right: {other:?}")),
        }
        own.events(all_types(), false).map(|_| ()).map_err(|error| error.to_string())
    });
    child.what("fork")?.join().map_err(Stop::Fail)?;
    records(&device)?;
    let child = Child::spawn(|| other(index)).what("fork")?;
    child.join().map_err(Stop::Fail)?;
    check_eq!(
        of(&records(&device)?, Type::MigrateEnd),
        [],
        "events of other processes while only own ones are requested"
    );
    Ok(())
}

pub(super) fn bad_calls(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(2)?;
    map.fill(1);
    fails(
        device.read_stream(&mut [0; RECORD]),
        Errno::EINVAL,
        "read before events were asked for",
    )?;
    fails(device.events(1 << Type::ALL.len(), false), Errno::EINVAL, "a type that there is not")?;
    let mut words = [40 | (2 << 32), 0, 0, 0, 0];
    fails(device.probe_extension(0x7a, &mut words), Errno::EINVAL, "an unknown flag")?;
    let mut words = [39, 0, 0, 0, 0];
    fails(device.probe_extension(0x7a, &mut words), Errno::EINVAL, "too small")?;
    listen(&device, all_types())?;
    device.set_nonblocking(true).what("fcntl")?;
    fails(device.read_stream(&mut [0; RECORD]), Errno::EAGAIN, "read of nothing")?;
    device_sees(&device, &map, 1, "for events")?;
    fails(device.read_stream(&mut [0; RECORD - 1]), Errno::EINVAL, "read of a part of a record")?;
    fails(device.read_stream(&mut []), Errno::EINVAL, "read of nothing at all")?;
    // A record that cannot be copied to user space is not lost.
    records(&device)?;
    let mut left = 0;
    // A fault that an invalidation interrupts emits more than one record.
    for _ in 0..8 {
        listen(&device, mask(&[Type::FaultEnd]))?;
        device.discard(map.addr(), 2).what("discard")?;
        device_sees(&device, &map, 1, "for an event")?;
        // SAFETY: The buffer is a guard page, so the kernel writes no memory of the process.
        let read = unsafe { libc::read(device.fd(), map.guard() as *mut libc::c_void, RECORD) };
        fails(Errno::check(read as i64), Errno::EFAULT, "read to nowhere")?;
        left = records(&device)?.len();
        check!(left > 0, "the record was lost");
        if left == 1 {
            break;
        }
    }
    check_eq!(left, 1, "records after a read to nowhere");
    // Records of a mirror that is destroyed are discarded without harm.
    let index = ctx.device;
    let child = Child::spawn(|| -> Result<(), String> {
        let device = Device::open(index).map_err(|error| error.to_string())?;
        device.events(all_types(), false).map_err(|error| error.to_string())?;
        let map = Mapping::anon(8).map_err(|error| error.to_string())?;
        map.fill(1);
        let mut data = vec![0; map.len()];
        device.read(map.addr(), &mut data).map_err(|error| error.to_string())?;
        // The exit closes the device, with records that were not read.
        std::mem::forget(device);
        Ok(())
    });
    child.what("fork")?.join().map_err(Stop::Fail)
}
