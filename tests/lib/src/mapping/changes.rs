// SPDX-License-Identifier: GPL-2.0
//! Changes of a mapping: advice, protection, locking, unmapping and moving.

use super::{
    without,
    Mapping,
    Prot, //
};
use crate::abi::PAGE_SIZE;
use crate::errno::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::PoisonError;

impl Mapping {
    /// `madvise` on everything.
    pub fn advise(&self, advice: i32) -> Result<(), Errno> {
        self.advise_pages(advice, 0, self.pages())
    }

    /// `madvise` on some pages.
    pub fn advise_pages(&self, advice: i32, first: usize, npages: usize) -> Result<(), Errno> {
        let (ptr, len) = self.range(first, npages);
        // SAFETY: inside of the mapping, to which there are no references.
        Errno::check(unsafe { libc::madvise(ptr, len, advice) }.into()).map(|_| ())
    }

    /// `mprotect` on some pages.
    pub fn protect_pages(&self, prot: Prot, first: usize, npages: usize) -> Result<(), Errno> {
        let (ptr, len) = self.range(first, npages);
        // SAFETY: inside of the mapping, to which there are no references.
        Errno::check(unsafe { libc::mprotect(ptr, len, prot.bits()) }.into()).map(|_| ())
    }

    /// `mlock` or `munlock` on some pages.
    pub fn lock_pages(&self, lock: bool, first: usize, npages: usize) -> Result<(), Errno> {
        let (ptr, len) = self.range(first, npages);
        // SAFETY: inside of the mapping; contents do not change.
        let ret = unsafe {
            if lock {
                libc::mlock(ptr, len)
            } else {
                libc::munlock(ptr, len)
            }
        };
        Errno::check(ret.into()).map(|_| ())
    }

    /// `mprotect` on everything.
    pub fn protect(&self, prot: Prot) -> Result<(), Errno> {
        self.protect_pages(prot, 0, self.pages())
    }

    /// Unmaps some pages.
    pub fn unmap_pages(&self, first: usize, npages: usize) -> Result<(), Errno> {
        let (ptr, len) = self.range(first, npages);
        // SAFETY: inside of the mapping, to which there are no references;
        // later accesses fault, which is the point.
        Errno::check(unsafe { libc::munmap(ptr, len) }.into())?;
        self.note_hole(ptr as usize, len);
        Ok(())
    }

    /// Maps unmapped pages again: private anonymous memory, or these pages of a file (`true`:
    /// shared).
    pub fn map_again(
        &self,
        first: usize,
        npages: usize,
        file: Option<(&File, bool)>,
    ) -> Result<(), Errno> {
        let (ptr, len) = self.range(first, npages);
        let start = ptr as usize;
        let end = ptr as usize + len;
        let mut holes = self.holes.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(without(start, end, &holes).is_empty(), "something is mapped there");
        let (flags, fd) = match file {
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
            Some((file, true)) => (libc::MAP_SHARED, file.as_raw_fd()),
            Some((file, false)) => (libc::MAP_PRIVATE, file.as_raw_fd()),
        };
        // Fail if another thread has mapped memory there in the meantime.
        let flags = flags | libc::MAP_FIXED_NOREPLACE;
        let offset = if file.is_some() { first * PAGE_SIZE } else { 0 };
        // SAFETY: nothing is mapped there, see the flag.
        let got = unsafe {
            libc::mmap(ptr, len, Prot::ReadWrite.bits(), flags, fd, offset as libc::off_t)
        };
        if got == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        *holes = holes.iter().flat_map(|&(a, b)| without(a, b, &[(start, end)])).collect();
        Ok(())
    }

    fn note_hole(&self, start: usize, len: usize) {
        let mut holes = self.holes.lock().unwrap_or_else(PoisonError::into_inner);
        holes.push((start, start + len));
    }

    /// Moves some pages over the same number of pages of `target`, which are replaced. The old
    /// addresses are unmapped.
    pub fn move_pages(
        &self,
        first: usize,
        npages: usize,
        target: &Mapping,
        target_first: usize,
    ) -> Result<(), Errno> {
        let (from, len) = self.range(first, npages);
        let (to, _) = target.range(target_first, npages);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both ranges belong to mappings without references to them.
        let ptr = unsafe { libc::mremap(from, len, len, flags, to) };
        if ptr == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        self.note_hole(from as usize, len);
        Ok(())
    }

    /// Tries to collapse each [`HUGE_SIZE`] into a huge page.
    pub fn collapse(&self) -> Result<(), Errno> {
        // Not in all versions of the libc crate.
        const MADV_COLLAPSE: i32 = 25;
        self.advise(MADV_COLLAPSE)
    }
}
