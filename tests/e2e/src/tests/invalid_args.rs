// SPDX-License-Identifier: GPL-2.0
//! Invalid input. Every command returns one well-defined error, and the data of the process stays
//! unchanged.

use crate::harness::{
    Ctx,
    Driver,
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
use hmm::inject::{
    self,
    Source, //
};
use hmm::{
    pattern,
    smaps,
    Device,
    Errno,
    Mapping,
    Op,
    PageState,
    Prot,
    Ptr,
    PAGE_SIZE, //
};

const PAGES: usize = 4;

/// All commands but `ReadUnlocked`, which the C driver of 7.2 lacks.
const RANGE_OPS: [Op; 9] = [
    Op::Read,
    Op::Write,
    Op::MigrateToDev,
    Op::MigrateToSys,
    Op::Snapshot,
    Op::Exclusive,
    Op::CheckExclusive,
    Op::Release,
    Op::Flags,
];

pub const TESTS: &[Test] = &[
    Test::new("invalid_args", "malformed_ranges_are_refused", ranges),
    Test::new("invalid_args", "huge_lengths_are_refused", huge_lengths),
    Test::new("invalid_args", "unmapped_ranges_are_refused", unmapped),
    Test::new("invalid_args", "kernel_addresses_are_refused", kernel_addresses),
    Test::new("invalid_args", "prot_none_ranges_are_refused", no_access),
    Test::new("invalid_args", "writes_to_read_only_memory_are_refused", read_only),
    Test::new("invalid_args", "read_only_memory_is_refused_after_a_lost_race", lost_race)
        .only_rust("needs our library"),
    Test::new("invalid_args", "pfn_mappings_are_refused", pfn_mapping),
    Test::new("invalid_args", "bad_user_buffers_are_refused", user_buffer),
    Test::new("invalid_args", "bad_argument_pointers_are_refused", argument_pointer),
    Test::new("invalid_args", "unknown_commands_are_refused", unknown_commands),
    Test::new("invalid_args", "undersized_counters_are_refused", counters)
        .only_rust("test_hmm has no counters"),
];

/// Data that must not change, and a buffer for the output of the kernel.
struct Room {
    device: Device,
    map: Mapping,
    answer: Mapping,
}

impl Room {
    fn new(ctx: &Ctx) -> Result<Room, Stop> {
        let room =
            Room { device: ctx.open()?, map: Mapping::anon(PAGES)?, answer: Mapping::anon(PAGES)? };
        room.map.fill(1);
        // Contents that a WRITE would store if it were accepted.
        room.answer.fill(99);
        Ok(room)
    }

    fn try_op(&self, op: Op, addr: u64, npages: u64) -> Result<hmm::Done, Errno> {
        self.device.probe(op, addr, npages, Ptr::Map(&self.answer))
    }

    /// Checks that the command fails with `errno` and does not change the output buffer.
    fn fails(&self, op: Op, addr: u64, npages: u64, errno: Errno, why: &str) -> Outcome {
        self.answer.fill(99);
        let what = format!("{} of {why}", op.name());
        fails(self.try_op(op, addr, npages), errno, &what)?;
        if op != Op::Snapshot {
            self.answer.check(99).what(&format!("buffer after {what}"))?;
        }
        Ok(())
    }

    fn unharmed(&self) -> Outcome {
        cpu_sees(&self.map, 1, "after bad input")?;
        device_sees(&self.device, &self.map, 1, "after bad input")?;
        settle()?;
        migrate(&self.device, &self.map, 1)?;
        device_fills(&self.device, &self.map, 2, "after bad input")?;
        cpu_sees(&self.map, 2, "after bad input and a device write")
    }
}

fn ranges(ctx: &Ctx) -> Outcome {
    let room = Room::new(ctx)?;
    let addr = room.map.addr() as u64;
    let page = PAGE_SIZE as u64;
    for op in RANGE_OPS {
        for odd in [1, 8, page / 2, page - 1] {
            room.fails(op, addr + odd, 1, Errno::EINVAL, "an unaligned address")?;
        }
        room.fails(op, addr, 0, Errno::EINVAL, "no pages")?;
        room.fails(op, u64::MAX - page + 1, 1, Errno::EINVAL, "the last page of all")?;
        room.fails(op, addr, u64::MAX / page + 1, Errno::EINVAL, "2^64 bytes")?;
        room.fails(op, addr, u64::MAX, Errno::EINVAL, "2^64 - 1 pages")?;
        let beyond = u64::MAX / page - addr / page + 1;
        room.fails(op, addr, beyond, Errno::EINVAL, "a range that overflows")?;
    }
    room.unharmed()
}

/// Lengths that are valid numbers but larger than any memory.
fn huge_lengths(ctx: &Ctx) -> Outcome {
    let room = Room::new(ctx)?;
    let addr = room.map.addr() as u64;
    // The C driver allocates a buffer of that size first. Ours starts, and fails at the end of the
    // mapping.
    let errno = match ctx.driver {
        Driver::C => Errno::ENOMEM,
        Driver::Rust | Driver::Hw => Errno::EFAULT,
    };
    for npages in [(1 << 52) / PAGE_SIZE as u64, (1 << 62) / PAGE_SIZE as u64] {
        // Data that was read before the end may be in the buffer.
        fails(room.try_op(Op::Read, addr, npages), errno, "READ of a huge length")?;
        room.answer.fill(1);
        let written = room.try_op(Op::Write, addr, npages);
        fails(written, errno, "WRITE of a huge length")?;
        // The guard page ends the mapping.
        room.fails(Op::MigrateToDev, addr, npages, Errno::EINVAL, "a huge length")?;
        room.fails(Op::MigrateToSys, addr, npages, Errno::EINVAL, "a huge length")?;
        room.fails(Op::Exclusive, addr, npages, Errno::EFAULT, "a huge length")?;
    }
    // The output is one byte per page, so it extends into the guard page.
    let npages = 1 << 24;
    room.fails(Op::Snapshot, addr, npages, Errno::EFAULT, "more than its buffer")?;
    room.unharmed()
}

fn unmapped(ctx: &Ctx) -> Outcome {
    let room = Room::new(ctx)?;
    let gone = Mapping::anon(PAGES)?;
    gone.unmap_pages(0, PAGES)?;
    for addr in [gone.addr() as u64, PAGE_SIZE as u64] {
        room.fails(Op::Read, addr, 1, Errno::EFAULT, "unmapped memory")?;
        room.fails(Op::Write, addr, 1, Errno::EFAULT, "unmapped memory")?;
        if ctx.driver == Driver::Rust {
            room.fails(Op::ReadUnlocked, addr, 1, Errno::EFAULT, "unmapped memory")?;
        }
        room.fails(Op::MigrateToDev, addr, 1, Errno::EINVAL, "unmapped memory")?;
        room.fails(Op::MigrateToSys, addr, 1, Errno::EINVAL, "unmapped memory")?;
        room.fails(Op::Exclusive, addr, 1, Errno::EFAULT, "unmapped memory")?;
        let states = room.device.snapshot(addr as usize, 1).what("SNAPSHOT of unmapped memory")?;
        check_eq!(states, [PageState::ERROR], "SNAPSHOT of unmapped memory");
    }
    // Half of the range is mapped. That is an error, too, and the mapped half stays unchanged.
    let map = Mapping::anon(PAGES)?;
    map.fill(3);
    map.unmap_pages(PAGES / 2, PAGES / 2)?;
    let addr = map.addr() as u64;
    let pages = PAGES as u64;
    room.fails(Op::Read, addr, pages, Errno::EFAULT, "half unmapped memory")?;
    room.fails(Op::MigrateToDev, addr, pages, Errno::EINVAL, "half unmapped memory")?;
    map.check_pages(3, 0, PAGES / 2).what("CPU read of the mapped half")?;
    room.unharmed()
}

fn kernel_addresses(ctx: &Ctx) -> Outcome {
    let room = Room::new(ctx)?;
    for addr in [0xffff_8880_0000_0000, 0xffff_ffff_8100_0000, 0x8000_0000_0000_0000] {
        room.fails(Op::Read, addr, 1, Errno::EFAULT, "a kernel address")?;
        room.fails(Op::Write, addr, 1, Errno::EFAULT, "a kernel address")?;
        room.fails(Op::MigrateToDev, addr, 1, Errno::EINVAL, "a kernel address")?;
        room.fails(Op::MigrateToSys, addr, 1, Errno::EINVAL, "a kernel address")?;
        room.fails(Op::Exclusive, addr, 1, Errno::EFAULT, "a kernel address")?;
    }
    room.unharmed()
}

fn no_access(ctx: &Ctx) -> Outcome {
    let room = Room::new(ctx)?;
    let map = Mapping::anon(1)?;
    map.fill(5);
    map.protect(Prot::None)?;
    let addr = map.addr() as u64;
    room.fails(Op::Read, addr, 1, Errno::EFAULT, "PROT_NONE")?;
    room.fails(Op::Write, addr, 1, Errno::EFAULT, "PROT_NONE")?;
    room.fails(Op::MigrateToDev, addr, 1, Errno::EINVAL, "PROT_NONE")?;
    room.fails(Op::MigrateToSys, addr, 1, Errno::EINVAL, "PROT_NONE")?;
    room.fails(Op::Exclusive, addr, 1, Errno::EFAULT, "PROT_NONE")?;
    let states = room.device.snapshot(map.addr(), 1).what("SNAPSHOT of PROT_NONE")?;
    check_eq!(states, [PageState::ERROR], "SNAPSHOT of PROT_NONE");
    map.protect(Prot::ReadWrite)?;
    cpu_sees(&map, 5, "after PROT_NONE")?;
    room.unharmed()
}

fn read_only(ctx: &Ctx) -> Outcome {
    let room = Room::new(ctx)?;
    let map = Mapping::anon(PAGES)?;
    map.fill(5);
    map.protect(Prot::Read)?;
    let addr = map.addr() as u64;
    let pages = PAGES as u64;
    room.fails(Op::Write, addr, pages, Errno::EPERM, "read-only memory")?;
    room.fails(Op::Exclusive, addr, pages, Errno::EFAULT, "read-only memory")?;
    cpu_sees(&map, 5, "after a refused write")?;
    device_sees(&room.device, &map, 5, "after a refused write")?;
    room.fails(Op::Write, addr, pages, Errno::EPERM, "read-only memory that is mapped")?;
    cpu_sees(&map, 5, "after a refused write of mapped memory")?;
    room.unharmed()
}

/// The call loses a race and makes the page writable for its next try. It must return the same
/// error as without the race.
fn lost_race(ctx: &Ctx) -> Outcome {
    let room = Room::new(ctx)?;
    let map = Mapping::anon(1)?;
    map.fill(5);
    map.protect(Prot::Read)?;
    let lost = inject::arm(&Source::Point("exclusive".into()), 1).what("lose a race")?;
    room.fails(Op::Exclusive, map.addr() as u64, 1, Errno::EFAULT, "read-only memory")?;
    check!(lost.disarm().what("ask whether it was lost")?, "no race was lost");
    cpu_sees(&map, 5, "after it")?;
    room.unharmed()
}

/// Memory without page structures: `VM_IO` and `VM_PFNMAP`.
fn pfn_mapping(ctx: &Ctx) -> Outcome {
    let room = Room::new(ctx)?;
    let special = |vma: &smaps::Vma| vma.has_flag("io") || vma.has_flag("pf");
    let vmas = smaps::read()?;
    let own = vmas.iter().find(|vma| special(vma)).map(|vma| vma.start);
    // The VGA window is not RAM, so even a strict kernel maps it.
    let window = std::fs::File::open("/dev/mem").map_err(Errno::from);
    let window = window.and_then(|file| Mapping::physical_at(&file, 0xa0000, 1));
    let addr = match (own, &window) {
        (Some(addr), _) => addr as u64,
        (None, Ok(map)) => map.addr() as u64,
        _ => return Err(Stop::Skip("no mapping with VM_IO or VM_PFNMAP is available".into())),
    };
    room.fails(Op::Read, addr, 1, Errno::EFAULT, "a VM_PFNMAP mapping")?;
    room.fails(Op::Write, addr, 1, Errno::EFAULT, "a VM_PFNMAP mapping")?;
    room.fails(Op::MigrateToDev, addr, 1, Errno::EINVAL, "a VM_PFNMAP mapping")?;
    room.fails(Op::MigrateToSys, addr, 1, Errno::EINVAL, "a VM_PFNMAP mapping")?;
    room.fails(Op::Exclusive, addr, 1, Errno::EFAULT, "a VM_PFNMAP mapping")?;
    let states = room.device.snapshot(addr as usize, 1).what("SNAPSHOT of VM_PFNMAP")?;
    check_eq!(states, [PageState::ERROR], "SNAPSHOT of a VM_PFNMAP mapping");
    room.unharmed()
}

/// Buffers that the kernel cannot access.
fn user_buffer(ctx: &Ctx) -> Outcome {
    let room = Room::new(ctx)?;
    let addr = room.map.addr() as u64;
    let pages = PAGES as u64;
    for op in [Op::Read, Op::Write, Op::MigrateToDev, Op::Snapshot, Op::Exclusive] {
        for null in [false, true] {
            let ptr = if null { Ptr::Null } else { Ptr::Guard(&room.answer) };
            let result = room.device.probe(op, addr, pages, ptr);
            fails(result, Errno::EFAULT, &format!("{} with a bad buffer", op.name()))?;
            cpu_sees(&room.map, 1, &format!("after {} with a bad buffer", op.name()))?;
        }
    }
    // These commands use no buffer.
    for op in [Op::MigrateToSys, Op::CheckExclusive] {
        let result = room.device.probe(op, addr, pages, Ptr::Guard(&room.answer));
        result.map(|_| ()).what(&format!("{} with a bad buffer", op.name()))?;
    }
    // The buffer is the memory itself, so the device reads into the pages that it reads.
    let result = room.device.probe(Op::Read, addr, pages, Ptr::Map(&room.map));
    result.map(|_| ()).what("READ into the memory that is read")?;
    room.unharmed()
}

fn argument_pointer(ctx: &Ctx) -> Outcome {
    let room = Room::new(ctx)?;
    for op in RANGE_OPS {
        let result = room.device.probe_bad_argument(op, &room.answer);
        fails(result, Errno::EFAULT, &format!("{} with a bad argument", op.name()))?;
    }
    room.unharmed()
}

fn unknown_commands(ctx: &Ctx) -> Outcome {
    let room = Room::new(ctx)?;
    let addr = room.map.addr() as u64;
    let size = size_of::<hmm::abi::Cmd>();
    for nr in [0x0a, 0x20, 0x3f, 0x49, 0x80, 0xff] {
        let request = hmm::abi::iowr(nr, size);
        let result = room.device.probe_request(request, addr, 1, Ptr::Map(&room.answer));
        fails(result, Errno::EINVAL, &format!("command {nr:#x}"))?;
    }
    room.answer.check(99).what("buffer after unknown commands")?;
    room.unharmed()
}

/// The counters extension with sizes that are too small, and with valid ones.
fn counters(ctx: &Ctx) -> Outcome {
    let room = Room::new(ctx)?;
    for size in [0, 1, 8, 15] {
        fails(room.device.counters_sized(size), Errno::EINVAL, "counters in too little room")?;
    }
    let full = size_of::<hmm::Counters>() as u32;
    let counters = room.device.counters().what("counters")?;
    let version = hmm::abi::ABI_VERSION;
    check_eq!((counters.size, counters.version), (full, version), "size and version");
    check!(counters.device_pages_total >= 512, "a device with hardly any memory");
    device_sees(&room.device, &room.map, 1, "before the short form")?;
    let short = room.device.counters_sized(16).what("counters, short form")?;
    check_eq!(short.size, 16, "size of the short form");
    check_eq!((short.faults_read, short.faults_write), (1, 0), "fields of the short form");
    check_eq!(short.device_pages_total, 0, "fields beyond the short form");
    let wrong = pattern::buffer(9, 0, 1);
    check!(room.device.write(room.map.guard(), &wrong).is_err(), "write of a guard page");
    room.unharmed()
}
