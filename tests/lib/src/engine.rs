// SPDX-License-Identifier: GPL-2.0
//! Engines, migration with outcomes and test parameters: the extensions of
//! `samples/dmirror/dmirror_uapi.h`.

use crate::abi::{
    iowr,
    PAGE_SIZE, //
};
use crate::counters::EngineCounters;
use crate::device::Device;
use crate::errno::Errno;
use crate::mapping::Mapping;

mod command;
#[cfg(test)]
mod header;
mod migration;
mod setting;

pub use command::{
    checksum,
    checksum_of_pattern,
    checksum_of_write,
    Command,
    Ended,
    EngineOp,
    Job,
    Status, //
};
pub use migration::{
    Migration,
    PageOutcome,
    Way, //
};
pub use setting::Setting;

/// Properties of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Bytes of this structure.
    pub size: u32,
    /// [`crate::abi::ABI_VERSION`].
    pub version: u32,
    /// Number of engines.
    pub engines: u32,
    /// Entries of each engine's TLB.
    pub tlb_entries: u32,
    /// Threads of the copy engine.
    pub copy_threads: u32,
    /// 1 if the CPU can address the memory.
    pub coherent: u32,
    /// Most bytes of device memory.
    pub vram_bytes: u64,
    /// Commands that one engine holds at most.
    pub queue_depth: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Discard {
    size: u32,
    flags: u32,
    addr: u64,
    npages: u64,
}

/// A structure of the interface: begins with its size, in `u32`.
///
/// # Safety
///
/// Any bytes must be a valid value, and no field may be a pointer that the
/// kernel writes through without the caller's leave.
pub(crate) unsafe trait Extension: Copy {}
// SAFETY: Plain numbers.
unsafe impl Extension for Info {}
// SAFETY: Plain numbers.
unsafe impl Extension for EngineCounters {}
// SAFETY: Plain numbers.
unsafe impl Extension for Discard {}

impl Device {
    pub(crate) fn extension<T: Extension>(
        &self,
        number: u8,
        argument: &mut T,
    ) -> Result<(), Errno> {
        let request = iowr(number, size_of::<T>());
        // SAFETY: the structure begins with its size, so that the kernel stays
        // within it; the caller has lent any buffer that the structure refers to.
        let ret = unsafe { libc::ioctl(self.fd(), request as _, argument as *mut T) };
        Errno::check(ret.into()).map(|_| ())
    }

    /// Reads the properties of the device.
    pub fn info(&self) -> Result<Info, Errno> {
        let mut info = Info { size: size_of::<Info>() as u32, ..Info::default() };
        self.extension(0x40, &mut info).map(|()| info)
    }

    /// Counters of an engine.
    pub fn engine_counters(&self, engine: u32) -> Result<EngineCounters, Errno> {
        let size = size_of::<EngineCounters>() as u32;
        let mut counters = EngineCounters { size, engine, ..EngineCounters::default() };
        self.extension(0x45, &mut counters).map(|()| counters)
    }

    /// Discards the device's entries for a range.
    pub fn discard(&self, addr: usize, npages: usize) -> Result<(), Errno> {
        let size = size_of::<Discard>() as u32;
        let mut raw = Discard { size, flags: 0, addr: addr as u64, npages: npages as u64 };
        self.extension(0x48, &mut raw)
    }

    /// Issues extension `number` with arbitrary `words` as its argument; the first holds size and
    /// flags. None of them may be an address.
    pub fn probe_extension(&self, number: u8, words: &mut [u64]) -> Result<(), Errno> {
        assert!(words.len() * 8 <= 2 * PAGE_SIZE);
        let size = words.first().map_or(0, |word| *word as u32) as usize;
        assert!(size <= words.len() * 8, "the kernel may write beyond the words");
        let request = iowr(number, 8);
        // SAFETY: the kernel reads and writes at most `size` bytes.
        let ret = unsafe { libc::ioctl(self.fd(), request as _, words.as_mut_ptr()) };
        Errno::check(ret.into()).map(|_| ())
    }

    /// Issues extension `number` with its argument in `map`, `offset` bytes from
    /// the start: what of it lies behind the mapping is in the guard page.
    pub fn probe_extension_in(
        &self,
        number: u8,
        map: &Mapping,
        offset: usize,
    ) -> Result<(), Errno> {
        // SAFETY: the kernel reads and writes upwards from there, and meets the guard page.
        let ret = unsafe { libc::ioctl(self.fd(), iowr(number, 8) as _, map.addr() + offset) };
        Errno::check(ret.into()).map(|_| ())
    }
}
