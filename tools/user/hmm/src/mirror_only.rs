// SPDX-License-Identifier: GPL-2.0
//! The device of `samples/mirror_only`, and what `samples/c_mirror` has of it.

use crate::abi::iowr;
use crate::errno::Errno;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;

/// An open `/dev/hmm_mirror_only`, or another node that takes the same commands.
#[derive(Debug)]
pub struct MirrorOnly(File);

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

    /// Where the hardware finds the root of its table, for the sample whose hardware walks.
    pub fn table_root(&self) -> Result<u64, Errno> {
        four_words(&self.0, 2, [0, 1, 0, 0])
    }
}

/// The kernel's code that walks tables in the format of Arm: an open `/dev/hmm_lpae_walk`.
#[derive(Debug)]
pub struct LpaeWalk(File);

impl LpaeWalk {
    /// Opens it.
    pub fn open() -> Result<LpaeWalk, Errno> {
        let file = OpenOptions::new().read(true).write(true).open("/dev/hmm_lpae_walk")?;
        Ok(LpaeWalk(file))
    }

    /// Where a walk of the page at `addr` ends, in the table with this root; 0: nowhere. The table
    /// must be in use.
    pub fn walk(&self, root: u64, addr: usize) -> Result<u64, Errno> {
        four_words(&self.0, 0, [root, addr as u64, 0, 0])
    }
}

/// The last of four words that an ioctl writes.
fn four_words(file: &File, number: u8, mut words: [u64; 4]) -> Result<u64, Errno> {
    let request = iowr(number, size_of_val(&words));
    // SAFETY: four words, of which the kernel writes no more.
    let ret = unsafe { libc::ioctl(file.as_raw_fd(), request as _, words.as_mut_ptr()) };
    Errno::check(ret.into()).map(|_| words[3])
}
