// SPDX-License-Identifier: GPL-2.0
//! Descriptors of the end of operations, which are polled: eventfds and sync files.

use super::fence::State;
use crate::errno::Errno;
use std::os::fd::{
    AsRawFd,
    FromRawFd,
    OwnedFd,
    RawFd, //
};
use std::time::Duration;

/// Polls `fd`; `true` if it is ready for `events`.
pub(super) fn poll(fd: RawFd, events: libc::c_short, timeout: Duration) -> Result<bool, Errno> {
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    let ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one structure, which lives as long as the call.
    let ret = unsafe { libc::poll(&mut poll, 1, ms) };
    Errno::check(ret.into()).map(|_| poll.revents & events != 0)
}

/// An eventfd.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl AsRawFd for Event {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Event {
    /// Creates an eventfd in the unsignalled state. Reads do not wait.
    pub fn new() -> Result<Event, Errno> {
        // SAFETY: plain system call on numbers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        Errno::check(fd.into())?;
        // SAFETY: eventfd() returned a new descriptor, which is owned here.
        Ok(Event(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Polls it; `true` if it was signalled.
    pub fn poll(&self, timeout: Duration) -> Result<bool, Errno> {
        poll(self.as_raw_fd(), libc::POLLIN, timeout)
    }

    /// Number of signals since the last call.
    pub fn take(&self) -> Result<u64, Errno> {
        let mut count = 0u64;
        // SAFETY: The buffer has the eight bytes that the kernel writes.
        let ret = unsafe { libc::read(self.as_raw_fd(), (&raw mut count).cast(), 8) };
        match Errno::check(ret as i64) {
            Ok(_) => Ok(count),
            Err(Errno(libc::EAGAIN)) => Ok(0),
            Err(error) => Err(error),
        }
    }
}

/// A DMA fence as a sync file.
#[derive(Debug)]
pub struct SyncFile(pub(crate) OwnedFd);

impl AsRawFd for SyncFile {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// `struct sync_file_info` of the kernel, without its list of fences.
#[repr(C)]
#[derive(Default)]
struct Info {
    name: [u8; 32],
    status: i32,
    flags: u32,
    num_fences: u32,
    pad: u32,
    sync_fence_info: u64,
}

/// `struct sync_merge_data` of the kernel.
#[repr(C)]
#[derive(Default)]
struct Merge {
    name: [u8; 32],
    fd2: i32,
    fence: i32,
    flags: u32,
    pad: u32,
}

impl SyncFile {
    /// Merges two sync files: the result is signalled when both are. Its fence is a fence array of
    /// the kernel.
    pub fn merge(&self, other: &SyncFile) -> Result<SyncFile, Errno> {
        // _IOWR('>', 3, struct sync_merge_data)
        let request = 0xc000_0000u64 | ((size_of::<Merge>() as u64) << 16) | 0x3e03;
        let mut merge = Merge { fd2: other.as_raw_fd(), ..Merge::default() };
        // SAFETY: the kernel reads and fills the structure.
        let ret = unsafe { libc::ioctl(self.as_raw_fd(), request as _, &mut merge as *mut Merge) };
        Errno::check(ret.into())?;
        // SAFETY: the ioctl returned a new descriptor, which is owned here.
        Ok(SyncFile(unsafe { OwnedFd::from_raw_fd(merge.fence) }))
    }

    /// Polls it; `true` if it is signalled.
    pub fn poll(&self, timeout: Duration) -> Result<bool, Errno> {
        poll(self.as_raw_fd(), libc::POLLIN, timeout)
    }

    /// State of the fence, as SYNC_IOC_FILE_INFO reports it.
    pub fn state(&self) -> Result<State, Errno> {
        // _IOWR('>', 4, struct sync_file_info)
        let request = 0xc000_0000u64 | ((size_of::<Info>() as u64) << 16) | 0x3e04;
        let mut info = Info::default();
        // SAFETY: the kernel fills the structure, and is lent no list.
        let ret = unsafe { libc::ioctl(self.as_raw_fd(), request as _, &mut info as *mut Info) };
        Errno::check(ret.into())?;
        Ok(match info.status {
            0 => State::NotDone,
            1 => State::Done,
            error => State::Failed(Errno(-error)),
        })
    }
}
