// SPDX-License-Identifier: GPL-2.0
//! Migration of pages: by the mock device, or by the kernel's reclaim as a control.

use crate::{
    counts::{
        add,
        Counts,
        Op, //
    },
    maps::PAGE,
    sys::{
        madvise,
        Errno,
        Fd, //
    }, //
};

/// Maximum number of pages of an operation.
pub const MOST_PAGES: usize = 512;
/// Maximum number of pages that the device reads at once.
pub const MOST_READ: usize = 16;

/// `_IOWR('H', nr, size)`.
const fn iowr(nr: u64, size: usize) -> u64 {
    (3 << 30) | ((size as u64) << 16) | ((b'H' as u64) << 8) | nr
}

/// `struct hmm_dmirror_cmd` of the kernel's `lib/test_hmm_uapi.h`.
#[repr(C)]
struct Command {
    addr: u64,
    ptr: u64,
    npages: u64,
    cpages: u64,
    faults: u64,
}

/// `struct dmirror_migrate` of `samples/dmirror/dmirror_uapi.h`.
#[repr(C)]
struct Migrate {
    size: u32,
    flags: u32,
    addr: u64,
    npages: u64,
    outcomes: u64,
    moved: u64,
    switched: u64,
    skipped: u64,
    no_memory: u64,
    copy_failed: u64,
    ns: u64,
}

const READ: u64 = iowr(0x00, size_of::<Command>());
const SNAPSHOT: u64 = iowr(0x04, size_of::<Command>());
const MIGRATE: u64 = iowr(0x46, size_of::<Migrate>());
const TO_SYSTEM: u32 = 1;

/// Destination of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// To the mock device.
    Device,
    /// To swap.
    Pageout,
}

/// The open file for the operations.
pub enum Target {
    /// The mirror of this process.
    Device(Fd),
    /// The page map of this process.
    Pageout(Fd),
}

/// Memory for results.
pub struct Buffer([u64; MOST_READ * PAGE / 8]);

impl Buffer {
    /// Zeroes.
    pub const fn new() -> Buffer {
        Buffer([0; MOST_READ * PAGE / 8])
    }
}

// A snapshot has a byte for each page, the page map eight.
const _: () = assert!(size_of::<Buffer>() >= MOST_PAGES * 8);

impl Target {
    /// Opens the file for `mode`.
    pub fn open(mode: Mode) -> Result<Target, Errno> {
        match mode {
            Mode::Device => Fd::open(c"/dev/hmm_dmirror0", libc::O_RDWR).map(Target::Device),
            Mode::Pageout => {
                Fd::open(c"/proc/thread-self/pagemap", libc::O_RDONLY).map(Target::Pageout)
            }
        }
    }

    /// Applies `op` to `pages` pages at `addr`. Returns the number of pages that were migrated,
    /// read or found. The range may have changed since it was selected: then the kernel rejects it,
    /// or processes a part.
    pub fn apply(
        &self,
        op: Op,
        addr: usize,
        pages: usize,
        buffer: &mut Buffer,
        counts: &Counts,
    ) -> Result<u64, Errno> {
        match self {
            Target::Device(fd) => match op {
                Op::Out => migrate(*fd, 0, addr, pages, counts),
                Op::Back => migrate(*fd, TO_SYSTEM, addr, pages, counts),
                Op::Read => command(*fd, READ, addr, pages.min(MOST_READ), buffer),
                Op::Snapshot => command(*fd, SNAPSHOT, addr, pages.min(MOST_PAGES), buffer),
            },
            Target::Pageout(fd) => match op {
                Op::Out => {
                    madvise(addr, pages * PAGE, libc::MADV_PAGEOUT)?;
                    swapped(*fd, addr, pages, buffer)
                }
                Op::Back | Op::Read => {
                    let before = swapped(*fd, addr, pages, buffer)?;
                    madvise(addr, pages * PAGE, libc::MADV_POPULATE_READ)?;
                    Ok(before)
                }
                Op::Snapshot => swapped(*fd, addr, pages, buffer).map(|_| pages as u64),
            },
        }
    }
}

/// Migrates a range.
fn migrate(fd: Fd, flags: u32, addr: usize, pages: usize, counts: &Counts) -> Result<u64, Errno> {
    let mut arg = Migrate {
        size: size_of::<Migrate>() as u32,
        flags,
        addr: addr as u64,
        npages: pages as u64,
        outcomes: 0,
        moved: 0,
        switched: 0,
        skipped: 0,
        no_memory: 0,
        copy_failed: 0,
        ns: 0,
    };
    // SAFETY: `arg` is a `struct dmirror_migrate` of the size that it states. A migration moves
    // memory without changing its contents.
    unsafe { fd.ioctl(MIGRATE, &mut arg) }?;
    add(&counts.skipped, arg.skipped);
    add(&counts.no_memory, arg.no_memory);
    add(&counts.copy_failed, arg.copy_failed);
    Ok(arg.moved)
}

/// Reads a range by the device, or takes a snapshot of it.
fn command(
    fd: Fd,
    request: u64,
    addr: usize,
    pages: usize,
    buffer: &mut Buffer,
) -> Result<u64, Errno> {
    let mut arg = Command {
        addr: addr as u64,
        ptr: buffer.0.as_mut_ptr() as u64,
        npages: pages as u64,
        cpages: 0,
        faults: 0,
    };
    // SAFETY: `arg` is a `struct hmm_dmirror_cmd`. READ writes a page for each page to `buffer`, of
    // at most `MOST_READ`, and SNAPSHOT a byte for each, of at most `MOST_PAGES`.
    unsafe { fd.ioctl(request, &mut arg) }?;
    Ok(arg.cpages)
}

/// Counts the pages of the range that are in swap.
fn swapped(pagemap: Fd, addr: usize, pages: usize, buffer: &mut Buffer) -> Result<u64, Errno> {
    const SWAPPED: u64 = 1 << 62;
    let bytes = pages.min(MOST_PAGES) * 8;
    let data: *mut u8 = buffer.0.as_mut_ptr().cast();
    // SAFETY: the buffer has at least `MOST_PAGES * 8` bytes, checked above where it is defined,
    // and is borrowed for as long as the slice lives.
    let slice = unsafe { core::slice::from_raw_parts_mut(data, bytes) };
    let n = pagemap.read_at(slice, addr / PAGE * 8)?;
    Ok(buffer.0.iter().take(n / 8).filter(|&&entry| entry & SWAPPED != 0).count() as u64)
}
