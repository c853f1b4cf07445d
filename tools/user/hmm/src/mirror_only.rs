// SPDX-License-Identifier: GPL-2.0
//! The device of `samples/mirror_only`, and what `samples/c_mirror` has of it.

use crate::abi::iowr;
use crate::errno::Errno;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;

/// An open `/dev/hmm_mirror_only`, or another node that takes the same commands.
#[derive(Debug)]
pub struct MirrorOnly(File);

/// How often a page table was locked, and asked to map pages in a row and to take such out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCalls {
    /// Times that the lock was taken.
    pub locks: u64,
    /// Calls to map.
    pub maps: u64,
    /// Calls to take out.
    pub unmaps: u64,
}

impl MirrorOnly {
    /// Opens it for the address space of the calling process.
    pub fn open() -> Result<MirrorOnly, Errno> {
        MirrorOnly::open_node("hmm_mirror_only")
    }

    /// Opens `/dev/NAME`.
    pub fn open_node(name: &str) -> Result<MirrorOnly, Errno> {
        let file = OpenOptions::new().read(true).write(true).open(format!("/dev/{name}"))?;
        Ok(MirrorOnly(file))
    }

    pub(crate) fn file(&self) -> &File {
        &self.0
    }

    /// The sum of the words of some pages, as the device reads them; after a sync file, if there is one.
    pub fn sum<F: AsRawFd>(
        &self,
        addr: usize,
        npages: usize,
        after: Option<&F>,
    ) -> Result<u64, Errno> {
        let fd = after.map_or(0, |file| file.as_raw_fd() as u64);
        let mut words = [addr as u64, npages as u64, fd, 0];
        let request = iowr(u8::from(after.is_some()), size_of_val(&words));
        // SAFETY: four words, of which the kernel writes no more.
        let ret = unsafe { libc::ioctl(self.0.as_raw_fd(), request as _, words.as_mut_ptr()) };
        Errno::check(ret.into()).map(|_| words[3])
    }

    /// Where the hardware's walk of the page at `addr` ends, for the sample that has such; 0: nowhere.
    pub fn walk(&self, addr: usize) -> Result<u64, Errno> {
        self.walk_words(addr).map(|words| words[3])
    }

    /// What the hardware's table was asked until now, for the same sample.
    pub fn table_calls(&self) -> Result<TableCalls, Errno> {
        let [locks, maps, unmaps, _] = self.walk_words(0)?;
        Ok(TableCalls { locks, maps, unmaps })
    }

    fn walk_words(&self, addr: usize) -> Result<[u64; 4], Errno> {
        let mut words = [addr as u64, 1, 0, 0];
        let request = iowr(2, size_of_val(&words));
        // SAFETY: four words, of which the kernel writes no more.
        let ret = unsafe { libc::ioctl(self.0.as_raw_fd(), request as _, words.as_mut_ptr()) };
        Errno::check(ret.into()).map(|_| words)
    }
}
