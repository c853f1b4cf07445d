// SPDX-License-Identifier: GPL-2.0
//! Addresses of the kernel and ranges of all addresses.

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
use crate::{
    check,
    check_eq, //
};
use hmm::engine::Way;
use hmm::{
    hostile,
    procfs,
    Child,
    Command,
    EngineOp,
    Errno,
    Mapping,
    Op,
    Ptr,
    PAGE_SIZE, //
};
use std::time::Duration;

const KERNEL: [usize; 6] = [
    0xffff_8880_0000_0000,
    0xffff_ffff_8100_0000,
    0xffff_ffff_ffff_f000,
    0x8000_0000_0000_0000,
    0x0000_8000_0000_0000,
    0x0000_7fff_ffff_f000,
];

/// Engines and migrations refuse kernel addresses as the old ioctls do.
pub(super) fn kernel_addresses(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(1)?;
    map.fill(1);
    for addr in KERNEL {
        for op in [EngineOp::Read, EngineOp::Fill, EngineOp::Chase] {
            let ended = device.run(Command::new(op, addr, 8)).what("command")?;
            check_eq!(ended.error, Some(Errno::EFAULT), "{op:?} at {addr:#x}");
        }
        let add = Command::new(EngineOp::AtomicAdd, addr, 8).stride(8).value(1);
        check_eq!(device.run(add)?.error, Some(Errno::EFAULT), "atomic at {addr:#x}");
        let copies = [
            Command::new(EngineOp::Memcpy, map.addr(), 8).from(addr),
            Command::new(EngineOp::Memcpy, addr, 8).from(map.addr()),
        ];
        for copy in copies {
            check_eq!(device.run(copy)?.error, Some(Errno::EFAULT), "copy at {addr:#x}");
        }
        for way in [Way::ToDevice, Way::ToSystem] {
            let moved = device.migrate(addr, 1, way);
            check!(
                matches!(moved, Err(Errno::EINVAL | Errno::EFAULT)),
                "migration at {addr:#x}: {moved:?}"
            );
        }
        // A chain that leads to a kernel address from the process's own memory.
        map.set(0, 0, addr as u64);
        let chase = device.run(Command::new(EngineOp::Chase, map.addr(), 16))?;
        check_eq!(chase.error, Some(Errno::EFAULT), "chain to {addr:#x}");
        check_eq!(map.get(0, 0), addr as u64, "the chain");
    }
    map.fill(1);
    device_sees(&device, &map, 1, "after bad addresses").map(|_| ())
}

/// The time of commands on all possible addresses depends only on the mapped memory.
pub(super) fn everything(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    device_sees(&device, &map, 1, "before")?;
    let start = PAGE_SIZE as u64;
    let all = u64::MAX / PAGE_SIZE as u64 - 1;
    device
        .probe(Op::CheckExclusive, start, all, Ptr::Null)
        .what("CHECK_EXCLUSIVE of everything")?;
    let mut data = vec![0; PAGE_SIZE];
    device.exclusive(map.page_addr(3), &mut data).what("EXCLUSIVE")?;
    let found = device.probe(Op::CheckExclusive, start, all, Ptr::Null);
    fails(found.map(|_| ()), Errno::EPERM, "CHECK_EXCLUSIVE of everything")?;
    device.discard(PAGE_SIZE, all as usize).what("DISCARD of everything")?;
    device.probe(Op::CheckExclusive, start, all, Ptr::Null).what("CHECK_EXCLUSIVE at the end")?;
    device_sees(&device, &map, 1, "after")?;
    cpu_sees(&map, 1, "after")
}

/// Checks that `call` takes no longer for any of `sizes`, in ascending order, than for the first.
/// Compares the least processor time of this thread over many calls, because other work on the
/// machine only adds to it.
fn no_longer(sizes: &[usize], what: &str, call: impl Fn(usize) -> Outcome) -> Outcome {
    for size in &sizes[1..] {
        let pair = [sizes[0], *size];
        let mut least = [Duration::MAX; 2];
        for _ in 0..64 {
            for (size, least) in pair.into_iter().zip(&mut least) {
                let before = procfs::thread_time();
                call(size)?;
                *least = (procfs::thread_time() - before).min(*least);
            }
        }
        check!(least[1] * 5 <= least[0] * 6, "{what}: {least:?} for {pair:x?}");
    }
    Ok(())
}

/// Maps memory with a hole behind it.
fn before_a_hole() -> Result<Mapping, Stop> {
    let map = Mapping::anon(PAGES + 1)?;
    map.unmap_pages(PAGES, 1)?;
    map.fill_pages(1, 0, PAGES);
    Ok(map)
}

/// The cost of a lock depends on the mapped memory and not on the length of the range. This holds
/// for a privileged process and for one that may lock nothing.
pub(super) fn lock_everything(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = before_a_hole()?;
    let locked = device.lock(map.addr(), PAGE_SIZE, 1, false).what("lock a page")?;
    let behind = map.page_addr(1);
    let hole = map.page_addr(PAGES);
    let refuse = |error: Errno| -> Outcome {
        // The ranges begin before the locked page, and end at its end or beyond.
        no_longer(
            &[1 << 21, 1 << 28, 1 << 40, 1 << 46, 1 << 52],
            "locks over a locked page",
            |bytes| {
                let start = behind.saturating_sub(bytes).max(PAGE_SIZE);
                let result = device.lock(start, bytes, 1, false).map(|_| ());
                check_eq!(
                    result,
                    Err(Errno::EEXIST),
                    "a lock of {bytes:#x} bytes over a locked one"
                );
                Ok(())
            },
        )?;
        // A list of all these pages would not fit into memory.
        let sizes = [28, 34, 40].map(|order| PAGE_SIZE << order);
        no_longer(&sizes, "locks of a hole", |bytes| {
            let result = device.lock(hole, bytes, 1, false).map(|_| ());
            check_eq!(result, Err(error), "a lock of {bytes:#x} bytes");
            Ok(())
        })
    };
    // Only the other process has a limit, which is checked first.
    refuse(Errno::EFAULT)?;
    let child = Child::spawn(|| -> Outcome {
        hostile::become_user(NOBODY).what("setuid")?;
        refuse(Errno::ENOMEM)
    })?;
    child.join().map_err(Stop::Fail)?;
    device.unlock(locked.device_addr).what("unlock")
}

/// A pull over the best connection, which a device has with itself, ends at the end of the mapping
/// as any other.
pub(super) fn pull_everything(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let again = ctx.open()?;
    let map = before_a_hole()?;
    no_longer(&[1 << 5, 1 << 10, 1 << 20, 1 << 31, 1 << 34], "refused pulls", |npages| {
        let pulled = device.pull(map.addr(), npages, &again).map(|_| ());
        check_eq!(pulled, Err(Errno::EINVAL), "a pull of {npages:#x} pages");
        Ok(())
    })?;
    device_sees_pages(&device, &map, 1, 0, PAGES, "after it")?;
    Ok(())
}
