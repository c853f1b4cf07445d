// SPDX-License-Identifier: GPL-2.0
//! Access to another process's memory: through an open file, a file that was passed on or
//! inherited, and after an exit.

use super::{
    NOBODY,
    PAGES, //
};
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::support::*;
use crate::tests::memory::{
    unload_soon,
    with, //
};
use crate::{
    check,
    check_eq, //
};
use hmm::{
    child,
    hostile,
    pattern,
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
use std::os::unix::fs::{
    MetadataExt,
    PermissionsExt, //
};

/// The node belongs to root, and no other user has access.
pub(super) fn only_root_may_open(ctx: &Ctx) -> Outcome {
    let path = Device::path(ctx.device);
    let node = std::fs::metadata(&path)?;
    check_eq!((node.uid(), node.gid()), (0, 0), "owner of the node");
    check_eq!(node.permissions().mode() & 0o7777, 0o600, "mode of the node");
    let child = Child::spawn(|| -> Outcome {
        hostile::become_user(NOBODY).what("setuid")?;
        let opened = Device::open(ctx.device).map(|_| ());
        fails(opened, Errno::EACCES, "opened by another user")
    })?;
    child.join().map_err(Stop::Fail)
}

/// A child inherits the file and has other memory at the same addresses. The file accesses the
/// parent's memory.
pub(super) fn child_drives_parent(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    let child = Child::spawn(|| -> Outcome {
        map.fill(2);
        device_sees(&device, &map, 1, "by the child")?;
        // The write changes the parent's memory, not the child's.
        device_fills_pages(&device, &map, 3, 0, 1, "by the child")?;
        check_eq!(map.get(0, 0), pattern::word(2, 0, 0), "the child's own memory");
        // A migration does not take the child's pages either.
        try_migrate(&device, &map).what("migration by the child")?;
        map.check(2).what("the child's memory after a migration")
    })?;
    child.join().map_err(Stop::Fail)?;
    map.check_pages(3, 0, 1).what("the page that the child wrote by the device")?;
    map.check_pages(1, 1, PAGES - 1).what("the other pages")?;
    device_sees_pages(&device, &map, 1, 1, PAGES - 1, "by the parent").map(|_| ())
}

/// Opens the device, fills memory with secrets, sends the descriptor and the address, and waits for
/// the receiver.
fn open_and_send(ctx: &Ctx, opened: &Gate, go: &Gate) -> Result<(Device, Mapping), Stop> {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(7);
    opened.send(device.fd() as u64)?;
    opened.send(map.addr() as u64)?;
    go.wait()?;
    Ok((device, map))
}

/// Body of a process that opens the device, and checks its memory after the receiver has used the
/// file.
fn opener(ctx: &Ctx, opened: &Gate, go: &Gate) -> Outcome {
    let (_device, map) = open_and_send(ctx, opened, go)?;
    map.check_pages(7, 1, PAGES - 1).what("the opener's memory")?;
    map.check_pages(9, 0, 1).what("words written by the receiver")
}

/// A process that receives the file can read and write the opener's memory with it, but not its
/// own.
pub(super) fn passed_file(ctx: &Ctx) -> Outcome {
    let opened = Gate::new()?;
    let go = Gate::new()?;
    let child = Child::spawn(|| opener(ctx, &opened, &go))?;
    let fd = opened.receive().what("the opener's file")? as i32;
    let theirs = opened.receive().what("the opener's address")? as usize;
    let device = Device::of_process(child.pid(), fd).what("the opener's file")?;
    let mut data = vec![0; PAGES * PAGE_SIZE];
    device.read(theirs, &mut data).what("read of the opener's memory")?;
    pattern::check(7, 0, &data).what("the opener's memory")?;
    device.write(theirs, &pattern::buffer(9, 0, 1)).what("write of the opener's memory")?;
    // The receiver's memory is at another address, where the opener has mapped nothing.
    let mine = Mapping::anon(PAGES)?;
    mine.fill(5);
    if mine.addr() != theirs {
        let read = device.read(mine.addr(), &mut data);
        fails(read, Errno::EFAULT, "read at an address of the receiver's")?;
        let written = device.write(mine.addr(), &pattern::buffer(6, 0, PAGES));
        fails(written, Errno::EFAULT, "write at an address of the receiver's")?;
        cpu_sees(&mine, 5, "of the receiver's memory")?;
    }
    go.open()?;
    child.join().map_err(Stop::Fail)?;
    // The opener has exited, and its mm is no longer accessible through the file.
    let read = device.read(theirs, &mut data);
    check!(read.is_err(), "read of the memory of an exited process: {read:?}");
    Ok(())
}

/// After exec() in the opener the file gives no access to the new program. Otherwise a file would
/// give access to programs with more privileges.
pub(super) fn exec_revokes_access(ctx: &Ctx) -> Outcome {
    let opened = Gate::new()?;
    let go = Gate::new()?;
    let child = Child::spawn(|| -> Outcome {
        let _opened = open_and_send(ctx, &opened, &go)?;
        let why = hostile::exec(&["/bin/busybox", "sleep", "60"]);
        Err(Stop::Fail(format!("exec: {why}")))
    })?;
    let fd = opened.receive().what("the opener's file")? as i32;
    let addr = opened.receive().what("the opener's address")? as usize;
    let device = Device::of_process(child.pid(), fd).what("the opener's file")?;
    let mut data = vec![0; PAGE_SIZE];
    device.read(addr, &mut data).what("read before exec")?;
    go.open()?;
    let maps = hostile::wait_for_program(child.pid(), "busybox").what("exec")?;
    check!(!maps.is_empty(), "the new program has no memory");
    for start in maps.into_iter().chain([addr]) {
        data.fill(0);
        let read = device.read(start, &mut data);
        check!(read.is_err(), "read at {start:#x} after exec: {read:?}");
        check!(data.iter().all(|byte| *byte == 0), "memory of the new program");
        let written = device.write(start, &data);
        check!(written.is_err(), "write at {start:#x} after exec: {written:?}");
        let moved = try_op(&device, Op::MigrateToDev, start);
        check!(moved.is_err(), "migration at {start:#x} after exec: {moved:?}");
    }
    child.signal(child::SIGKILL);
    Ok(())
}

fn try_op(device: &Device, op: Op, addr: usize) -> Result<hmm::Done, Errno> {
    let answer = Mapping::anon(1)?;
    device.probe(op, addr as u64, 1, Ptr::Map(&answer))
}

/// The file keeps working after the process has dropped its privileges. A new open is refused.
pub(super) fn setuid_keeps_the_mirror(ctx: &Ctx) -> Outcome {
    let child = Child::spawn(|| -> Outcome {
        let device = ctx.open()?;
        let map = Mapping::anon(PAGES)?;
        map.fill(1);
        hostile::become_user(NOBODY).what("setuid")?;
        device_sees(&device, &map, 1, "without rights")?;
        migrate(&device, &map, 1)?;
        cpu_sees(&map, 1, "without rights")
    })?;
    child.join().map_err(Stop::Fail)
}

/// Device and system memory of an exited process: the next user must not see their contents.
pub(super) fn memory_of_exited_processes_is_cleared(ctx: &Ctx) -> Outcome {
    const BLOCKS: usize = 2;
    const MANY: usize = BLOCKS * HUGE_PAGES;
    let child = Child::spawn(|| -> Outcome {
        let device = ctx.open()?;
        let map = Mapping::anon_aligned(BLOCKS)?;
        map.fill(0x5ec2e7);
        try_migrate(&device, &map).what("migration of secrets")?;
        std::mem::forget((device, map));
        Ok(())
    })?;
    child.join().map_err(Stop::Fail)?;
    let device = ctx.open()?;
    // Holes are migrated to device memory that was used before.
    let map = Mapping::anon_aligned(BLOCKS)?;
    let done = try_migrate(&device, &map).what("migration of holes")?;
    check_eq!(done.cpages, MANY as u64, "cpages of the migration");
    check!(resident(&device, &map, 0, MANY)? > 0, "nothing has moved");
    device_sees_zero(&device, &map, 0, MANY, "of memory that belonged to another process")?;
    map.check_zero(0, MANY).what("CPU read of memory that belonged to another process")
}

/// The same on a device that has no other memory than that of the exited process.
pub(super) fn full_memory(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &vram(2))?;
    memory_of_exited_processes_is_cleared(ctx)?;
    unload_soon(ctx)
}
