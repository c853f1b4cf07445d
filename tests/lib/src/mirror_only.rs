// SPDX-License-Identifier: GPL-2.0
//! The device of `samples/mirror_only`, whose commands `samples/c_mirror` also implements.

use crate::abi::iowr;
use crate::errno::Errno;
use std::fs::{
    File,
    OpenOptions, //
};
use std::os::fd::AsRawFd;

/// An open `/dev/hmm_mirror_only`, or another node with the same commands.
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

    /// Sums the words of some pages as the device reads them, after a sync file if there is one.
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

    /// Root address of the device page table; only on the sample with a hardware walker.
    pub fn table_root(&self) -> Result<u64, Errno> {
        four_words(&self.0, 2, [0, 1, 0, 0])
    }
}

/// The kernel's walker of Arm LPAE tables: an open `/dev/hmm_lpae_walk`.
#[derive(Debug)]
pub struct LpaeWalk(File);

impl LpaeWalk {
    /// Opens it.
    pub fn open() -> Result<LpaeWalk, Errno> {
        let file = OpenOptions::new().read(true).write(true).open("/dev/hmm_lpae_walk")?;
        Ok(LpaeWalk(file))
    }

    /// Result of a walk for `addr` in the table with this root, whose granule is `1 << granule`
    /// bytes; 0 if there is no entry. The table must be in use.
    pub fn walk(&self, root: u64, granule: u32, addr: usize) -> Result<u64, Errno> {
        four_words(&self.0, 0, [root, addr as u64, granule.into(), 0])
    }
}

/// Issues an ioctl with four words, and returns the last one.
fn four_words(file: &File, number: u8, mut words: [u64; 4]) -> Result<u64, Errno> {
    let request = iowr(number, size_of_val(&words));
    // SAFETY: four words, of which the kernel writes no more.
    let ret = unsafe { libc::ioctl(file.as_raw_fd(), request as _, words.as_mut_ptr()) };
    Errno::check(ret.into()).map(|_| words[3])
}
