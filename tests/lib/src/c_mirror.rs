// SPDX-License-Identifier: GPL-2.0
//! The device of `samples/c_mirror`.

use crate::abi::iowr;
use crate::errno::Errno;
use crate::mapping::Mapping;
use crate::mirror_only::MirrorOnly;
use crate::queue::{
    Event,
    SyncFile, //
};
use std::os::fd::AsRawFd;

/// `struct request`: the union is the largest of its members.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Request {
    addr: u64,
    pages: u64,
    arg: u64,
    out: u64,
    more: [u64; 6],
}

/// `struct rust_hmm_outcome`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Pages that moved.
    pub moved: u64,
    /// Pages that moved and whose device entry was switched.
    pub switched: u64,
    /// Entries that moved and had contents.
    pub entries: u64,
    /// Pages that could not move.
    pub skipped: u64,
    /// Pages for which there was no memory.
    pub no_memory: u64,
    /// Pages whose copy failed.
    pub copy_failed: u64,
}

/// `struct rust_hmm_attributes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeAttributes {
    /// Bits of the attributes to change: preferred, accessed by, read mostly, never migrate,
    /// granularity.
    pub valid: u32,
    /// 0: anywhere; 1: on the device; 2: in system memory.
    pub preferred: u8,
    /// Always mapped.
    pub accessed_by: u8,
    /// Mostly read.
    pub read_mostly: u8,
    /// Stays in system memory.
    pub never_migrate: u8,
    /// An order, or -1.
    pub granularity: i8,
}

impl RangeAttributes {
    /// Bits of [`RangeAttributes::valid`].
    pub const PREFERRED: u32 = 1;
    /// See [`RangeAttributes::PREFERRED`].
    pub const NEVER_MIGRATE: u32 = 8;

    fn words(self) -> [u64; 2] {
        let bytes = [self.preferred, self.accessed_by, self.read_mostly, self.never_migrate];
        let upper = u64::from(u32::from_ne_bytes(bytes));
        [u64::from(self.valid) | (upper << 32), u64::from(self.granularity as u8)]
    }

    fn of(words: [u64; 2]) -> RangeAttributes {
        let [preferred, accessed_by, read_mostly, never_migrate] =
            ((words[0] >> 32) as u32).to_ne_bytes();
        RangeAttributes {
            valid: words[0] as u32,
            preferred,
            accessed_by,
            read_mostly,
            never_migrate,
            granularity: words[1] as u8 as i8,
        }
    }
}

/// `enum rust_hmm_counter`.
#[derive(Clone, Copy, Debug)]
pub enum Counter {
    /// Entries that device faults installed.
    MappedPages = 0,
    /// Invalidation callbacks.
    Invalidations = 1,
    /// Entries that were removed or write-protected.
    InvalidatedPages = 2,
    /// Pages that moved to the device.
    ToDevice = 3,
    /// Pages that moved back at the driver's request.
    ToSystem = 4,
    /// Pages under an entry that was switched.
    Switched = 7,
    /// CPU faults.
    CpuFaults = 8,
    /// Pages that these brought back.
    CpuFaultPages = 9,
    /// Pages that were evicted.
    Evicted = 10,
}

/// Location of a page according to the CPU page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageAt {
    /// `enum rust_hmm_location`.
    pub location: u8,
    /// Whether the CPU may write it.
    pub writable: bool,
    /// Order of the mapping.
    pub order: u8,
}

impl PageAt {
    /// Whether it is in the device's memory.
    pub fn is_local(&self) -> bool {
        self.location == 3
    }
}

/// An open `/dev/hmm_c_mirror`.
#[derive(Debug)]
pub struct CMirror(MirrorOnly);

impl CMirror {
    /// Name of the device node below `/dev`.
    pub const NODE: &'static str = "hmm_c_mirror";

    /// Opens it for the address space of the calling process.
    pub fn open() -> Result<CMirror, Errno> {
        MirrorOnly::open_node(CMirror::NODE).map(CMirror)
    }

    /// The commands that this sample shares with `samples/mirror_only`.
    pub fn simple(&self) -> &MirrorOnly {
        &self.0
    }

    /// Issues command `nr`, and returns the result of the ioctl.
    fn call(&self, nr: u8, request: &mut Request) -> Result<i64, Errno> {
        let number = iowr(nr, size_of::<Request>());
        // SAFETY: a structure of which the kernel writes no more.
        let ret = unsafe { libc::ioctl(self.0.file().as_raw_fd(), number as _, request) };
        Errno::check(ret.into())
    }

    fn of(addr: usize, pages: usize) -> Request {
        Request { addr: addr as u64, pages: pages as u64, ..Request::default() }
    }

    /// Sums the words of some pages as the device reads them, after all queued operations. Fails
    /// with the first error of one of these.
    pub fn sum(&self, addr: usize, pages: usize) -> Result<u64, Errno> {
        self.0.sum(addr, pages, None::<&SyncFile>)
    }

    /// The device writes `value` to each word of some pages.
    pub fn fill(&self, addr: usize, pages: usize, value: u64) -> Result<(), Errno> {
        let mut request = Request { out: value, ..CMirror::of(addr, pages) };
        self.call(2, &mut request).map(drop)
    }

    /// Queues the same after a sync file. Returns an eventfd that is signalled on completion.
    pub fn fill_after<F: AsRawFd>(
        &self,
        addr: usize,
        pages: usize,
        value: u64,
        after: Option<&F>,
    ) -> Result<Event, Errno> {
        let fd = after.map_or(0, |file| file.as_raw_fd() as u64);
        let event = Event::new()?;
        let arg = fd | ((event.as_raw_fd() as u64) << 32);
        let mut request = Request { arg, out: value, ..CMirror::of(addr, pages) };
        self.call(3, &mut request)?;
        Ok(event)
    }

    /// Faults pages in for the device; flag 1: for writing.
    pub fn fault(&self, addr: usize, pages: usize, flags: u64) -> Result<(), Errno> {
        let mut request = Request { arg: flags, ..CMirror::of(addr, pages) };
        self.call(4, &mut request).map(drop)
    }

    /// Migrates pages: target 0 is the device, 1 the system. Flags are in the upper half.
    pub fn migrate(&self, addr: usize, pages: usize, target: u64) -> Result<Outcome, Errno> {
        let mut request = Request { arg: target, ..CMirror::of(addr, pages) };
        self.call(5, &mut request)?;
        let [moved, switched, entries, skipped, no_memory, copy_failed] = request.more;
        Ok(Outcome { moved, switched, entries, skipped, no_memory, copy_failed })
    }

    /// Evicts all pages from the device. Returns the number of pages that could not be evicted.
    pub fn evict(&self) -> Result<i64, Errno> {
        self.call(6, &mut Request::default())
    }

    /// Returns the location of the page at `addr`.
    pub fn page(&self, addr: usize) -> Result<PageAt, Errno> {
        let mut request = CMirror::of(addr, 1);
        self.call(7, &mut request)?;
        let [location, writable, order, _] = (request.more[0] as u32).to_ne_bytes();
        Ok(PageAt { location, writable: writable == 1, order })
    }

    /// Returns the number of pages of a mapping that are in the device's memory.
    pub fn resident(&self, map: &Mapping) -> Result<usize, Errno> {
        (0..map.pages())
            .map(|page| self.page(map.page_addr(page)).map(|at| usize::from(at.is_local())))
            .sum()
    }

    /// Sets attributes; clears all if none is valid.
    pub fn set_attributes(
        &self,
        addr: usize,
        pages: usize,
        attributes: RangeAttributes,
    ) -> Result<(), Errno> {
        let mut request = CMirror::of(addr, pages);
        request.more[..2].copy_from_slice(&attributes.words());
        self.call(8, &mut request).map(drop)
    }

    /// Attributes that are the same for all of some pages.
    pub fn attributes(&self, addr: usize, pages: usize) -> Result<RangeAttributes, Errno> {
        let mut request = CMirror::of(addr, pages);
        self.call(9, &mut request)?;
        Ok(RangeAttributes::of([request.more[0], request.more[1]]))
    }

    /// Reads a counter, as the sum of the mirror's and the device memory's value, one of which is
    /// 0.
    pub fn count(&self, counter: Counter) -> Result<u64, Errno> {
        let mut request = Request { arg: counter as u64, ..Request::default() };
        self.call(10, &mut request)?;
        Ok(request.out)
    }

    /// Pages of the device's memory that are in use.
    pub fn used(&self) -> Result<u64, Errno> {
        let mut request = Request::default();
        self.call(10, &mut request)?;
        Ok(request.more[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_match_the_c_layout() {
        let attributes = RangeAttributes {
            valid: 31,
            preferred: 1,
            never_migrate: 1,
            granularity: -1,
            ..RangeAttributes::default()
        };
        let [first, second] = attributes.words();
        assert_eq!(first.to_ne_bytes(), [31, 0, 0, 0, 1, 0, 0, 1]);
        assert_eq!(second, 0xff);
        assert_eq!(RangeAttributes::of([first, second]), attributes);
    }
}
