// SPDX-License-Identifier: GPL-2.0
//! Hostile processes: access through a passed file descriptor, information leaks, and resources
//! that an attacker can hold or block. `hmm-fuzz` tests the same at random.

use super::memory::{
    unload_soon,
    with, //
};
use super::module_reload::grown;
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
use hmm::engine::Way;
use hmm::{
    child,
    hostile,
    pattern,
    procfs,
    slabs,
    Child,
    Command,
    Device,
    EngineOp,
    Errno,
    Gate, //
};
use hmm::{
    Mapping,
    Op,
    Prot,
    Ptr,
    HUGE_PAGES,
    HUGE_SIZE,
    PAGE_SIZE, //
};
use std::collections::BTreeMap;
use std::os::unix::fs::{
    MetadataExt,
    PermissionsExt, //
};
use std::time::{
    Duration,
    Instant, //
};

const PAGES: usize = 16;
const OURS: &str = "the C driver has no engines";
const NOBODY: u32 = 65534;

pub const TESTS: &[Test] = &[
    Test::new("security", "only_root_may_open", only_root_may_open)
        .only_rust("as upstream, by the node"),
    Test::new("security", "inherited_file_accesses_the_opener", child_drives_parent),
    Test::new("security", "passed_file_accesses_the_opener_only", passed_file),
    Test::new("security", "exec_revokes_access", exec_revokes_access),
    Test::new("security", "setuid_keeps_the_mirror", setuid_keeps_the_mirror),
    Test::new(
        "security",
        "memory_of_exited_processes_is_cleared",
        memory_of_exited_processes_is_cleared,
    ),
    Test::new("security", "full_memory_of_exited_processes_is_cleared", full_memory)
        .only_rust(OURS)
        .private(),
    Test::new("security", "commands_on_kernel_addresses_are_refused", kernel_addresses)
        .only_rust(OURS),
    Test::new("security", "commands_on_all_addresses_cost_mapped_memory_only", everything)
        .only_rust("a known hang of test_hmm"),
    Test::new("security", "commands_per_file_are_bounded", commands_per_file_are_bounded)
        .only_rust(OURS),
    Test::new(
        "security",
        "accesses_and_migrations_pin_no_pages",
        accesses_and_migrations_pin_no_pages,
    ),
    Test::new("security", "lock_of_all_addresses_is_refused_at_once", lock_everything)
        .only_rust(OURS),
    Test::new("security", "pull_of_all_addresses_ends_at_a_hole", pull_everything).only_rust(OURS),
    Test::new(
        "security",
        "page_tables_are_charged_to_the_cgroup",
        page_tables_are_charged_to_the_cgroup,
    )
    .only_rust("memory is not charged to a process"),
    Test::new("security", "file_close_frees_page_tables", files_give_back),
    Test::new("security", "kill_interrupts_copies", kill_interrupts_copies).only_rust(OURS),
    Test::new("security", "kill_interrupts_population", kill_interrupts_population)
        .only_rust("a known defect of test_hmm: it takes all memory"),
];

/// The node belongs to root, and no other user has access.
fn only_root_may_open(ctx: &Ctx) -> Outcome {
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
fn child_drives_parent(ctx: &Ctx) -> Outcome {
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
fn passed_file(ctx: &Ctx) -> Outcome {
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
fn exec_revokes_access(ctx: &Ctx) -> Outcome {
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
fn setuid_keeps_the_mirror(ctx: &Ctx) -> Outcome {
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
fn memory_of_exited_processes_is_cleared(ctx: &Ctx) -> Outcome {
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
fn full_memory(ctx: &Ctx) -> Outcome {
    let _restore = with(ctx, &vram(2))?;
    memory_of_exited_processes_is_cleared(ctx)?;
    unload_soon(ctx)
}

const KERNEL: [usize; 6] = [
    0xffff_8880_0000_0000,
    0xffff_ffff_8100_0000,
    0xffff_ffff_ffff_f000,
    0x8000_0000_0000_0000,
    0x0000_8000_0000_0000,
    0x0000_7fff_ffff_f000,
];

/// Engines and migrations refuse kernel addresses as the old ioctls do.
fn kernel_addresses(ctx: &Ctx) -> Outcome {
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
fn everything(ctx: &Ctx) -> Outcome {
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

/// Number of commands that a file can have.
fn commands_per_file_are_bounded(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let other = ctx.open()?;
    let map = Mapping::anon(1)?;
    map.fill(1);
    let info = device.info()?;
    let long = Command::new(EngineOp::Read, map.addr(), 8).rounds(0).think(Duration::from_secs(1));
    // The queue of an engine is limited and then refuses commands. Other engines are not affected.
    for n in 0..info.queue_depth {
        device.submit(long).what(&format!("command {n}"))?;
    }
    fails(device.submit(long).map(|_| ()), Errno::EBUSY, "one more")?;
    let free = Command::new(EngineOp::Read, map.addr(), 8).engine(1);
    check_eq!(other.run(free)?.error, None, "a command of another engine");
    // Completed commands that no process waits for are limited, too.
    let mut made = info.queue_depth;
    loop {
        match device.submit(free) {
            Ok(_) => made += 1,
            Err(Errno::EBUSY) if made == 1024 => break,
            // The engine has not completed earlier commands yet.
            Err(Errno::EBUSY) if made < 1024 => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => return Err(Stop::Fail(format!("command {made}: {error}"))),
        }
        check!(made <= 1024, "more than 1024 commands without a waiter");
    }
    // The engine takes commands in order. When a command of another file has ended, so have all of
    // these, and the queue has room.
    until("room in the engine", || match other.run(free) {
        Ok(ended) => {
            check_eq!(ended.error, None, "a command of another file");
            Ok(true)
        }
        Err(Errno::EBUSY) => Ok(false),
        Err(error) => Err(error.into()),
    })?;
    fails(device.submit(free).map(|_| ()), Errno::EBUSY, "more than a file may have")?;
    // Closing the file ends all of its commands.
    drop(device);
    check_eq!(other.run(Command::new(EngineOp::Read, map.addr(), 8))?.error, None, "afterwards");
    Ok(())
}

/// With RLIMIT_MEMLOCK of 0. Device accesses and migrations must not lock or pin pages.
fn accesses_and_migrations_pin_no_pages(ctx: &Ctx) -> Outcome {
    let pins = procfs::pins()?;
    let child = Child::spawn(|| -> Outcome {
        let device = ctx.open()?;
        hostile::forbid_locked_memory();
        hostile::become_user(NOBODY).what("setuid")?;
        let map = Mapping::anon(PAGES)?;
        map.fill(1);
        device_sees(&device, &map, 1, "with no right to lock memory")?;
        migrate(&device, &map, 1)?;
        let mut data = vec![0; PAGE_SIZE];
        cpu_sees(&map, 1, "with no right to lock memory")?;
        device.exclusive(map.addr(), &mut data).what("EXCLUSIVE")?;
        device_fills(&device, &map, 2, "with no right to lock memory")?;
        let mapped = device.map_file(4).what("mmap of the node")?;
        mapped.set(0, 0, 1);
        for name in ["VmLck", "VmPin"] {
            check_eq!(hostile::status_kib(name).what(name)?, 0, "{name}");
        }
        Ok(())
    })?;
    child.join().map_err(Stop::Fail)?;
    if let (Some((before, _)), Some((after, left))) = (pins, procfs::pins()?) {
        check_eq!((after - before, left), (0, 0), "pins made and left");
    }
    Ok(())
}

/// Page tables of a mirror are charged to the memory control group of the process, also if the
/// fault of an engine has allocated them.
fn page_tables_are_charged_to_the_cgroup(ctx: &Ctx) -> Outcome {
    /// Number of ranges of the size of a huge page, with a table for each.
    const TABLES: usize = 1024;
    /// Bytes of a table in the library's tree and in the image: 512 entries of 8 bytes in each.
    const BYTES: usize = 2 * 4096;
    let group = hostile::Group::new("hmm-e2e").what("a control group")?;
    let Some(group) = group else {
        return Err(Stop::Skip("this kernel has no memory control groups".to_string()));
    };
    let child = Child::spawn(|| -> Outcome {
        group.enter().what("enter the group")?;
        let device = ctx.open()?;
        let map = Mapping::reserve(TABLES * HUGE_SIZE, Prot::Read).what("map much")?;
        let before = group.kernel_bytes().what("charge")?;
        let strided = Command::new(EngineOp::Strided, map.addr(), map.len()).stride(HUGE_SIZE);
        check_eq!(device.run(strided)?.error, None, "accesses");
        let tables = (TABLES * BYTES) as u64;
        let grown = group.kernel_bytes().what("charge")?.saturating_sub(before);
        check!(grown >= tables, "{grown} bytes are charged for tables of {tables}");
        Ok(())
    })?;
    child.join().map_err(Stop::Fail)
}

/// Opens and closes many files with tables. No memory may stay allocated.
fn files_give_back(ctx: &Ctx) -> Outcome {
    let map = Mapping::anon(1)?;
    map.fill(1);
    let round = || -> Outcome {
        let devices: Result<Vec<_>, _> = (0..100).map(|_| ctx.open()).collect();
        for device in devices? {
            device_sees(&device, &map, 1, "by one of many")?;
        }
        Ok(())
    };
    // Page-table pages are counted exactly. vmalloc areas and slab objects are counted by caller
    // and cache.
    let used = || -> Result<BTreeMap<String, u64>, Stop> {
        let mut used = slabs::objects()?;
        let areas = procfs::vmallocinfo().unwrap_or_default();
        used.extend(areas.into_iter().map(|(name, sum)| (format!("vmalloc {name}"), sum.areas)));
        Ok(used)
    };
    let tables = || std::fs::read_to_string("/sys/kernel/debug/rust_hmm/tables");
    round()?;
    let pages = tables()?;
    let start = used()?;
    let many = || (0..10).try_for_each(|_| round());
    many()?;
    let middle = used()?;
    many()?;
    check_eq!(tables()?, pages, "pages of page tables");
    // Some objects are freed with a delay. Processors cache others, one slab or sheaf each, which a
    // leak in one of 30 files exceeds.
    const NOISE: u64 = 32;
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let end = used()?;
        let more = grown([&start, &middle, &end], |_| NOISE);
        if more.is_empty() {
            return Ok(());
        }
        check!(Instant::now() < deadline, "after 2 times 1000 files: {}", more.join(", "));
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Kills a child that sleeps in the ioctl after it has opened the gate. It must exit soon.
fn dies(child: Child, gate: &Gate, what: &str) -> Outcome {
    gate.wait().what(what)?;
    child_sleeps_in(&child, libc::SYS_ioctl)?;
    let mut child = child;
    check_eq!(child.try_wait(), None, "{what}: it ended by itself");
    child.signal(child::SIGKILL);
    let ended = child.wait_timeout(Duration::from_secs(10));
    check_eq!(ended, Some(child::Ended::Signal(9)), "{what}: 10 s after it was killed");
    Ok(())
}

/// Copies take a second each, and a step has a block of them. A task that waits for them can be
/// killed, and pages that were not copied stay in place.
fn kill_interrupts_copies(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    // The child maps the same memory and migrates its own view of it.
    let map = Mapping::anon_aligned(1)?;
    map.fill(1);
    for way in [Way::ToDevice, Way::ToSystem] {
        let gate = Gate::new()?;
        let child = Child::spawn(|| -> Outcome {
            let own = ctx.open()?;
            let mine = Mapping::anon_aligned(1)?;
            mine.fill(2);
            if way == Way::ToSystem {
                own.migrate(mine.addr(), mine.pages(), Way::ToDevice)?;
            }
            own.set(hmm::Setting::CopyDelay, 1_000_000_000)?;
            gate.open()?;
            own.migrate(mine.addr(), mine.pages(), way)?;
            Ok(())
        })?;
        let ended = dies(child, &gate, &format!("{way:?}"));
        device.set(hmm::Setting::CopyDelay, 0)?;
        ended?;
    }
    // The copy engine still serves other processes.
    let moved = device.migrate(map.addr(), map.pages(), Way::ToDevice)?;
    check_eq!(moved.moved, map.pages() as u64, "pages moved afterwards");
    cpu_sees(&map, 1, "afterwards")
}

/// mmap() of a large range of the node. A kill ends it before all pages are populated.
fn kill_interrupts_population(ctx: &Ctx) -> Outcome {
    let gate = Gate::new()?;
    let child = Child::spawn(|| -> Outcome {
        let device = ctx.open()?;
        gate.open()?;
        device.map_file((4 << 30) / PAGE_SIZE).what("mmap of 4 GiB")?;
        Ok(())
    })?;
    gate.wait().what("begin")?;
    let mut child = child;
    // The process itself has at most 4 MiB.
    until("pages of the mapping", || Ok(hostile::resident_kib(child.pid())? > 16 << 10))?;
    child.signal(child::SIGKILL);
    let ended = child.wait_timeout(Duration::from_secs(10));
    check_eq!(ended, Some(child::Ended::Signal(9)), "10 s after it was killed");
    Ok(())
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
fn lock_everything(ctx: &Ctx) -> Outcome {
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
fn pull_everything(ctx: &Ctx) -> Outcome {
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
