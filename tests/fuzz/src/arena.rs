// SPDX-License-Identifier: GPL-2.0
//! Arena: the memory to which the calls refer, at fixed addresses with holes in between, below all
//! other memory of the process.

use crate::sys;
use hmm::rng::Rng;
use hmm::{
    Errno,
    HUGE_SIZE,
    PAGE_SIZE, //
};

/// Addresses below belong to the arena or are unmapped.
pub const LIMIT: usize = 1 << 40;
/// Distance between the starts of two regions.
const GAP: usize = 8 * HUGE_SIZE;
const BASE: usize = 0x10_0000_0000;

/// Maximum number of threads with pages for arguments.
pub const THREADS: usize = 8;
/// Never mapped.
pub const HOLE: usize = BASE + 14 * GAP;
/// Buffer for results, always mapped and followed by a hole.
pub const BUFFER: usize = BASE + 8 * GAP;
/// Bytes of [`BUFFER`].
pub const BUFFER_LEN: usize = 512 * PAGE_SIZE;
const ARGS: usize = BASE + 9 * GAP;
const ARGS_STEP: usize = 8 * PAGE_SIZE;

/// Addresses that are never mapped: of the kernel, non-canonical, tagged, or at the ends of user
/// space.
pub const FOREIGN: [usize; 16] = [
    0xffff_8880_0000_0000,
    0xffff_8880_0010_0000,
    0xffff_ffff_8100_0000,
    0xffff_c900_0000_0000,
    0xffff_ea00_0000_0000,
    0xffff_ffff_ff60_0000,
    0xffff_ffff_ffff_f000,
    0xffff_0000_0000_0000,
    0xfff0_0000_0000_0000,
    0x8000_0000_0000_0000,
    0x0000_8000_0000_0000,
    0x0000_7fff_ffff_f000,
    0x000f_ffff_ffff_f000,
    (1 << 56) + BASE,
    0xdead_beef_dead_b000,
    0,
];

/// Type of the memory of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Private anonymous, base pages.
    Small,
    /// Private anonymous, with huge pages where possible.
    Huge,
    /// Private anonymous, read-only.
    ReadOnly,
    /// Shared anonymous.
    Shared,
    /// A file, mapped private.
    File,
    /// Not accessible.
    None,
    /// A device node, mapped private.
    Node,
    /// hugetlb.
    Hugetlb,
}

/// A region.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Its kind.
    pub kind: Kind,
    /// Its start.
    pub start: usize,
    /// Its length in bytes.
    pub len: usize,
}

const fn region(index: usize, kind: Kind, len: usize) -> Region {
    Region { kind, start: BASE + index * GAP, len }
}

/// Length of the file of [`Kind::File`].
const FILE_LEN: usize = 64 * PAGE_SIZE;

/// All regions.
pub const REGIONS: [Region; 8] = [
    region(0, Kind::Small, 1024 * PAGE_SIZE),
    region(1, Kind::Huge, 2 * HUGE_SIZE),
    region(2, Kind::ReadOnly, 64 * PAGE_SIZE),
    region(3, Kind::Shared, 128 * PAGE_SIZE),
    region(4, Kind::File, FILE_LEN),
    region(5, Kind::None, 64 * PAGE_SIZE),
    region(6, Kind::Node, 16 * PAGE_SIZE),
    region(7, Kind::Hugetlb, 2 << 20),
];

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
const FIXED: i32 = libc::MAP_FIXED;
const ANON: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | FIXED;

/// Whether a word is in memory that is always mapped, readable and writable.
pub fn is_kept(addr: usize) -> bool {
    let in_buffer = (BUFFER..BUFFER + BUFFER_LEN).contains(&addr);
    let args = addr.wrapping_sub(ARGS);
    in_buffer || (args < THREADS * ARGS_STEP && matches!(args % ARGS_STEP / PAGE_SIZE, 1 | 5))
}

/// A thread's page for arguments. It is followed by a hole and then by a read-only mapping of the
/// same page.
pub fn arguments(thread: usize) -> usize {
    ARGS + thread * ARGS_STEP + PAGE_SIZE
}

/// A thread's page for `DMIRROR_SET`, which no other thread writes. A hole follows.
pub fn settings(thread: usize) -> usize {
    arguments(thread) + 4 * PAGE_SIZE
}

/// Address of the read-only mapping of [`arguments`].
pub fn read_only_alias(thread: usize) -> usize {
    arguments(thread) + 2 * PAGE_SIZE
}

fn must(what: &str, result: isize) -> Result<usize, String> {
    usize::try_from(result).map_err(|_| format!("{what}: {}", Errno(-result as i32)))
}

fn memfd(len: usize) -> Result<i32, String> {
    let fd =
        must("memfd", sys::call3(libc::SYS_memfd_create, c"hmm-fuzz".as_ptr() as usize, 0, 0))?;
    must("ftruncate", sys::call3(libc::SYS_ftruncate, fd, len, 0))?;
    Ok(fd as i32)
}

/// Maps the parts that are always mapped.
pub fn build_kept() -> Result<(), String> {
    must("buffer", sys::mmap(BUFFER, BUFFER_LEN, RW, ANON, -1, 0))?;
    let fd = memfd(THREADS * PAGE_SIZE)?;
    for thread in 0..THREADS {
        let shared = libc::MAP_SHARED | FIXED;
        let offset = thread * PAGE_SIZE;
        must("arguments", sys::mmap(arguments(thread), PAGE_SIZE, RW, shared, fd, offset))?;
        let alias = read_only_alias(thread);
        must("alias", sys::mmap(alias, PAGE_SIZE, libc::PROT_READ, shared, fd, offset))?;
        must("settings", sys::mmap(settings(thread), PAGE_SIZE, RW, ANON, -1, 0))?;
    }
    sys::call3(libc::SYS_close, fd as usize, 0, 0);
    Ok(())
}

/// Maps a part of a region again. `file` and `node` are open files for the kinds that need one.
pub fn map(region: Region, start: usize, len: usize, file: i32, node: i32) -> isize {
    let plain = |prot, flags, fd| sys::mmap(start, len, prot, flags, fd, 0);
    match region.kind {
        Kind::Small => {
            let ret = plain(RW, ANON, -1);
            advise(start, len, libc::MADV_NOHUGEPAGE);
            ret
        }
        Kind::Huge => {
            let ret = plain(RW, ANON, -1);
            advise(start, len, libc::MADV_HUGEPAGE);
            ret
        }
        Kind::ReadOnly => plain(libc::PROT_READ, ANON, -1),
        Kind::Shared => plain(RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS | FIXED, -1),
        Kind::File => plain(RW, libc::MAP_PRIVATE | FIXED, file),
        Kind::None => plain(libc::PROT_NONE, ANON, -1),
        Kind::Node => plain(RW, libc::MAP_PRIVATE | FIXED, node),
        // Without a reservation the hugetlb pool may be empty on a fault: SIGBUS, or EFAULT in the
        // kernel.
        Kind::Hugetlb => {
            let huge = ANON | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB | libc::MAP_NORESERVE;
            sys::mmap(region.start, region.len, RW, huge, -1, 0)
        }
    }
}

/// `madvise`.
pub fn advise(start: usize, len: usize, advice: i32) -> isize {
    sys::call3(libc::SYS_madvise, start, len, advice as usize)
}

/// Maps all regions, and returns the file of [`Kind::File`]. A kind that the kernel does not
/// support stays unmapped.
pub fn build(node: i32) -> Result<i32, String> {
    build_kept()?;
    let file = memfd(FILE_LEN)?;
    for region in REGIONS {
        let ret = map(region, region.start, region.len, file, node);
        if !matches!(region.kind, Kind::Node | Kind::Hugetlb) {
            must("region", ret)?;
        }
    }
    Ok(file)
}

/// Checks that the program's own memory is above the arena, so that stray writes cannot hit it.
pub fn check_own_memory() -> Result<(), String> {
    let maps = hmm::smaps::read().map_err(|error| format!("/proc/self/smaps: {error}"))?;
    let low = maps.iter().find(|vma| vma.start < LIMIT && !(BASE..HOLE).contains(&vma.start));
    match low {
        None => Ok(()),
        Some(vma) => Err(format!("own memory at {:#x}, where the arena is alone", vma.start)),
    }
}

/// Accesses memory through a system call, so that a failed fault is an error and not a signal.
pub fn touch(addr: usize, len: usize, write: bool) {
    if write {
        sys::call3(libc::SYS_getrandom, addr, len.min(256), 0);
        return;
    }
    // Reads a file name up to its first zero byte; the file does not exist.
    sys::call3(libc::SYS_faccessat, libc::AT_FDCWD as usize, addr, 0);
}

/// A page of the arena, usually a mapped one.
pub fn page(rng: &mut Rng) -> usize {
    let region = match rng.below(32) {
        0..14 => REGIONS[0],
        14..22 => REGIONS[1],
        _ => rng.pick(&REGIONS),
    };
    region.start + rng.below(region.len / PAGE_SIZE) * PAGE_SIZE
}

/// An address of any kind, page-aligned.
pub fn any_page(rng: &mut Rng) -> usize {
    match rng.below(8) {
        0..3 => page(rng),
        3 => HOLE + rng.below(64) * PAGE_SIZE,
        4 => rng.pick(&FOREIGN) & !(PAGE_SIZE - 1),
        // Near the end of a region.
        5 => {
            let region = rng.pick(&REGIONS);
            let end = region.start + region.len;
            (end + PAGE_SIZE).wrapping_sub(rng.below(4) * PAGE_SIZE)
        }
        6 => BUFFER + BUFFER_LEN - rng.below(8) * PAGE_SIZE,
        _ => rng.bits() as usize & !(PAGE_SIZE - 1) & (LIMIT - 1),
    }
}

/// A part of a region: start and length in bytes.
pub fn piece(rng: &mut Rng) -> (Region, usize, usize) {
    let region = rng.pick(&REGIONS);
    let pages = region.len / PAGE_SIZE;
    let most = if rng.one_in(8) { pages } else { 16 };
    let first = rng.below(pages);
    let count = (1 + rng.below(most)).min(pages - first);
    if region.kind == Kind::Huge && rng.one_in(2) {
        let start = region.start + rng.below(region.len / HUGE_SIZE) * HUGE_SIZE;
        return (region, start, HUGE_SIZE);
    }
    (region, region.start + first * PAGE_SIZE, count * PAGE_SIZE)
}
