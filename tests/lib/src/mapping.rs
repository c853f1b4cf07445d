// SPDX-License-Identifier: GPL-2.0
//! Memory mappings that the device, the kernel and other processes change.
//!
//! All accesses to the contents are volatile, and no Rust reference into a mapping exists, because
//! other agents can change the contents at any time.

use crate::abi::{
    HUGE_SIZE,
    PAGE_SIZE, //
};
use crate::errno::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::{
    Mutex,
    PoisonError, //
};

mod changes;
mod contents;
mod view;

pub use view::View;

/// Address space that one entry of the top-level CPU page table covers, with four levels.
const TABLE_SPAN: usize = 1 << 39;

/// Advice: KSM may merge the pages.
pub const MADV_MERGEABLE: i32 = libc::MADV_MERGEABLE;
/// Drops the contents immediately.
pub const MADV_DONTNEED: i32 = libc::MADV_DONTNEED;
/// Allows the kernel to drop the contents until they are written.
pub const MADV_FREE: i32 = libc::MADV_FREE;

/// Access to a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prot {
    /// None at all.
    None,
    /// Reading.
    Read,
    /// Reading and writing.
    ReadWrite,
}

impl Prot {
    fn bits(self) -> i32 {
        match self {
            Prot::None => libc::PROT_NONE,
            Prot::Read => libc::PROT_READ,
            Prot::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

/// A mapping with a guard page on each side; unmapped when dropped.
///
/// The guard pages keep the kernel from merging its VMA with neighbours, and stop accesses beyond
/// an end.
#[derive(Debug)]
pub struct Mapping {
    addr: usize,
    len: usize,
    reserved: usize,
    reserved_len: usize,
    /// Ranges that were unmapped or moved. Other mappings may have taken these addresses.
    holes: Mutex<Vec<(usize, usize)>>,
}

impl Mapping {
    fn create(len: usize, align: usize, flags: i32, prot: Prot, fd: i32) -> Result<Self, Errno> {
        Self::create_at(0, len, (align, 0), flags, prot, fd)
    }

    /// Like [`Mapping::create`]. The mapping begins `offset` bytes after a multiple of `align`, and
    /// near `hint` if possible.
    fn create_at(
        hint: usize,
        len: usize,
        (align, offset): (usize, usize),
        flags: i32,
        prot: Prot,
        fd: i32,
    ) -> Result<Self, Errno> {
        assert!(len > 0 && len % PAGE_SIZE == 0, "the length is not whole pages");
        // Include the alignment and a guard on both sides. The guards of hugetlb have the size of a
        // huge page.
        let guard = if flags & libc::MAP_HUGETLB != 0 { HUGE_SIZE } else { PAGE_SIZE };
        let reserved_len = len + offset + align + 2 * guard;
        let reserve = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base =
            unsafe { libc::mmap(hint as *mut _, reserved_len, libc::PROT_NONE, reserve, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let reserved = base as usize;
        let addr = (reserved + guard).next_multiple_of(align) + offset;
        let holes = Mutex::new(Vec::new());
        let map = Mapping { addr, len, reserved, reserved_len, holes };
        // SAFETY: replaces a part of the reservation that was just made.
        let ptr =
            unsafe { libc::mmap(addr as *mut _, len, prot.bits(), flags | libc::MAP_FIXED, fd, 0) };
        if ptr == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        Ok(map)
    }

    /// Private anonymous memory of `npages`, without huge pages.
    pub fn anon(npages: usize) -> Result<Self, Errno> {
        Self::anon_prot(npages, Prot::ReadWrite)
    }

    /// As [`Mapping::anon`], for at most [`HUGE_PAGES`](crate::HUGE_PAGES) pages that do not cross
    /// a multiple of [`HUGE_SIZE`], so that a migration is a single step.
    pub fn anon_in_block(npages: usize) -> Result<Self, Errno> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let align = (npages * PAGE_SIZE).next_power_of_two();
        let map = Self::create(npages * PAGE_SIZE, align, flags, Prot::ReadWrite, -1)?;
        map.forbid_huge()?;
        Ok(map)
    }

    /// As [`Mapping::anon`] with the access rights `prot`.
    pub fn anon_prot(npages: usize, prot: Prot) -> Result<Self, Errno> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let map = Self::create(npages * PAGE_SIZE, PAGE_SIZE, flags, prot, -1)?;
        map.forbid_huge()?;
        Ok(map)
    }

    /// Like [`Mapping::anon`], at or above `addr` if these addresses are valid and free; otherwise
    /// elsewhere.
    pub fn anon_near(addr: usize, npages: usize) -> Result<Self, Errno> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let len = npages * PAGE_SIZE;
        let map = Self::create_at(addr, len, (PAGE_SIZE, 0), flags, Prot::ReadWrite, -1)?;
        map.forbid_huge()?;
        Ok(map)
    }

    /// Private anonymous memory of `count` times [`HUGE_SIZE`], aligned, with huge pages enabled.
    pub fn anon_huge(count: usize) -> Result<Self, Errno> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let map = Self::create(count * HUGE_SIZE, HUGE_SIZE, flags, Prot::ReadWrite, -1)?;
        map.allow_huge()?;
        Ok(map)
    }

    /// As [`Mapping::anon_huge`], aligned in the same way, without huge pages.
    pub fn anon_aligned(count: usize) -> Result<Self, Errno> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let map = Self::create(count * HUGE_SIZE, HUGE_SIZE, flags, Prot::ReadWrite, -1)?;
        map.forbid_huge()?;
        Ok(map)
    }

    /// Private anonymous memory of any size, unpopulated and not accounted, without huge pages. It
    /// shares no page table with other mappings, so that its number of page tables does not depend
    /// on its address.
    pub fn reserve(len: usize, prot: Prot) -> Result<Self, Errno> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let map = Self::create(len, TABLE_SPAN, flags, prot, -1)?;
        map.forbid_huge()?;
        Ok(map)
    }

    /// Enables huge pages.
    pub fn allow_huge(&self) -> Result<(), Errno> {
        self.advise_on_huge(libc::MADV_HUGEPAGE)
    }

    /// Disables huge pages.
    pub fn forbid_huge(&self) -> Result<(), Errno> {
        self.advise_on_huge(libc::MADV_NOHUGEPAGE)
    }

    /// A kernel without transparent huge pages rejects both kinds of advice, which is ignored.
    fn advise_on_huge(&self, advice: i32) -> Result<(), Errno> {
        match self.advise(advice) {
            Err(Errno(libc::EINVAL)) if !has_huge_pages() => Ok(()),
            done => done,
        }
    }

    /// Shared anonymous memory.
    pub fn shared(npages: usize) -> Result<Self, Errno> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        Self::create(npages * PAGE_SIZE, PAGE_SIZE, flags, Prot::ReadWrite, -1)
    }

    /// A second mapping of the same shared memory.
    pub fn again(&self) -> Result<Self, Errno> {
        let map = Self::anon_prot(self.pages(), Prot::None)?;
        let (ptr, len) = map.range(0, map.pages());
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: an old size of zero duplicates the mapping, here over one that was just made and
        // to which no references exist. The kernel rejects private memory.
        let got = unsafe { libc::mremap(self.addr as *mut _, 0, len, flags, ptr) };
        if got == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        Ok(map)
    }

    /// A shared mapping of a file.
    pub fn file_shared(file: &File, npages: usize) -> Result<Self, Errno> {
        let len = npages * PAGE_SIZE;
        let fd = file.as_raw_fd();
        Self::create(len, PAGE_SIZE, libc::MAP_SHARED, Prot::ReadWrite, fd)
    }

    /// A private mapping of a file.
    pub fn file_private(file: &File, npages: usize) -> Result<Self, Errno> {
        let len = npages * PAGE_SIZE;
        let fd = file.as_raw_fd();
        Self::create(len, PAGE_SIZE, libc::MAP_PRIVATE, Prot::ReadWrite, fd)
    }

    /// A private mapping of a file that begins `offset` pages after a multiple of
    /// [`HUGE_SIZE`].
    pub fn file_private_at(file: &File, npages: usize, offset: usize) -> Result<Self, Errno> {
        let len = npages * PAGE_SIZE;
        let fd = file.as_raw_fd();
        let place = (HUGE_SIZE, offset * PAGE_SIZE);
        Self::create_at(0, len, place, libc::MAP_PRIVATE, Prot::ReadWrite, fd)
    }

    /// `count` hugetlb pages of [`HUGE_SIZE`]; fails when none are reserved.
    pub fn hugetlb(count: usize) -> Result<Self, Errno> {
        // The kernel has hugetlb pages of several sizes. The flags have the binary logarithm.
        let size = (HUGE_SIZE.trailing_zeros() as i32) << libc::MAP_HUGE_SHIFT;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | size;
        Self::create(count * HUGE_SIZE, HUGE_SIZE, flags, Prot::ReadWrite, -1)
    }

    /// A private mapping of the device file, as in the upstream tests.
    pub(crate) fn of_device(file: &File, len: usize) -> Result<Self, Errno> {
        let fd = file.as_raw_fd();
        Self::create(len, PAGE_SIZE, libc::MAP_PRIVATE, Prot::ReadWrite, fd)
    }

    /// `npages` at the physical address `phys` through `/dev/mem`, read only:
    /// a mapping with `VM_IO` and `VM_PFNMAP`.
    pub fn physical_at(mem: &File, phys: usize, npages: usize) -> Result<Self, Errno> {
        let map = Self::anon_prot(npages, Prot::None)?;
        let (ptr, len) = map.range(0, npages);
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let fd = mem.as_raw_fd();
        // SAFETY: replaces a mapping that was just made; nothing refers to it.
        let ptr = unsafe { libc::mmap(ptr, len, libc::PROT_READ, flags, fd, phys as _) };
        if ptr == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        Ok(map)
    }

    /// The first address.
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// The address of page `page`.
    pub fn page_addr(&self, page: usize) -> usize {
        self.addr + page * PAGE_SIZE
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Length in base pages.
    pub fn pages(&self) -> usize {
        self.len / PAGE_SIZE
    }

    /// An address in the guard page in front: never accessible.
    pub fn guard(&self) -> usize {
        self.addr - PAGE_SIZE
    }

    fn range(&self, first: usize, npages: usize) -> (*mut libc::c_void, usize) {
        assert!(first + npages <= self.pages(), "the range is outside of the mapping");
        (self.page_addr(first) as *mut _, npages * PAGE_SIZE)
    }
}

/// Whether the kernel has transparent huge pages.
pub fn has_huge_pages() -> bool {
    std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists()
}

/// The parts of `start .. end` outside of `holes`.
fn without(start: usize, end: usize, holes: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let mut left = vec![(start, end)];
    for &(from, to) in holes {
        left = left
            .into_iter()
            .flat_map(|(a, b)| [(a, b.min(from)), (a.max(to), b)])
            .filter(|(a, b)| a < b)
            .collect();
    }
    left
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let holes = self.holes.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (start, end) in without(self.reserved, self.reserved + self.reserved_len, holes) {
            // SAFETY: this part of the reservation was not unmapped or moved.
            unsafe { libc::munmap(start as *mut _, end - start) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn move_keeps_contents() {
        let from = Mapping::anon(4).unwrap();
        let to = Mapping::anon(4).unwrap();
        from.fill(1);
        from.move_pages(0, 4, &to, 0).unwrap();
        assert_eq!(to.check(1), Ok(()));
    }

    #[test]
    fn holes_are_not_populated() {
        assert_eq!(without(0, 10, &[]), [(0, 10)]);
        assert_eq!(without(0, 10, &[(2, 4), (8, 10)]), [(0, 2), (4, 8)]);
        assert_eq!(without(0, 10, &[(2, 4), (3, 6)]), [(0, 2), (6, 10)]);
        assert_eq!(without(0, 10, &[(0, 10)]), []);
    }
}
