// SPDX-License-Identifier: GPL-2.0
//! An open `/dev/hmm_dmirror*`: one mirror of this process.

use crate::abi::{
    Cmd,
    Op,
    PageState,
    PAGE_SIZE, //
};
use crate::counters::Counters;
use crate::errno::Errno;
use crate::mapping::Mapping;
use std::fs::{
    File,
    OpenOptions, //
};
use std::os::fd::{
    AsRawFd,
    FromRawFd,
    OwnedFd,
    RawFd, //
};
use std::path::PathBuf;

/// Results of a successful command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Number of pages processed.
    pub cpages: u64,
    /// Rounds of device faults that were needed.
    pub faults: u64,
}

/// The user buffer of a command that is meant to be wrong, or to be checked.
///
/// Only places that the kernel may write to without hurting this process.
pub enum Ptr<'a> {
    /// No buffer.
    Null,
    /// A buffer that ends with the slice; the caller's length must fit.
    Slice(&'a mut [u8]),
    /// The start of a mapping.  The kernel copies upwards and stops at the
    /// guard page behind the mapping, so any length is harmless.
    Map(&'a Mapping),
    /// The guard page in front of a mapping: never accessible.
    Guard(&'a Mapping),
}

/// An open device.
///
/// The device reads and writes this process's memory at any address it is
/// given, like `/proc/self/mem`: callers pass addresses of a [`Mapping`].
#[derive(Debug)]
pub struct Device {
    file: File,
}

impl Device {
    /// The path of device `index`: 0 and 1 are private, 2 and 3 coherent.
    pub fn path(index: u32) -> PathBuf {
        PathBuf::from(format!("/dev/hmm_dmirror{index}"))
    }

    /// Opens device `index` for the address space of the calling process.
    pub fn open(index: u32) -> Result<Device, Errno> {
        let file = OpenOptions::new().read(true).write(true).open(Self::path(index))?;
        Ok(Device { file })
    }

    /// Takes over an already open device file.
    pub fn from_fd(fd: OwnedFd) -> Device {
        Device { file: File::from(fd) }
    }

    /// Duplicates the descriptor of another process for its open device.
    ///
    /// The descriptor keeps the mirror alive, but not the process.
    pub fn of_process(pid: libc::pid_t, fd: RawFd) -> Result<Device, Errno> {
        // SAFETY: plain system call on numbers.
        let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        // SAFETY: pidfd_open() returned a new descriptor, which is owned here.
        let pidfd = unsafe { OwnedFd::from_raw_fd(Errno::check(pidfd)? as RawFd) };
        // SAFETY: plain system call on numbers.
        let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0) };
        // SAFETY: pidfd_getfd() returned a new descriptor, which is owned here.
        Ok(Device::from_fd(unsafe { OwnedFd::from_raw_fd(Errno::check(copy)? as RawFd) }))
    }

    /// The number of the file descriptor.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Closes the device, and returns the result of close().
    pub fn close(self) -> Result<(), Errno> {
        let fd = OwnedFd::from(self.file);
        let raw = std::os::fd::IntoRawFd::into_raw_fd(fd);
        // SAFETY: the descriptor was owned and is given up here.
        Errno::check(unsafe { libc::close(raw) }.into()).map(|_| ())
    }

    /// Closes the open file while calls on it are in flight: the descriptor is replaced by one of
    /// `/dev/null`.
    pub fn detach(&self) -> Result<(), Errno> {
        let null = File::open("/dev/null")?;
        // SAFETY: both descriptors are owned; the number stays owned by `self`.
        let ret = unsafe { libc::dup3(null.as_raw_fd(), self.fd(), libc::O_CLOEXEC) };
        Errno::check(ret.into()).map(|_| ())
    }

    /// Issues one command; interrupted calls are repeated.
    ///
    /// # Safety
    ///
    /// `cmd.ptr` must be 0, or the kernel may write there as many bytes as the
    /// command can return.
    unsafe fn issue(&self, request: u64, cmd: &mut Cmd) -> Result<Done, Errno> {
        loop {
            cmd.cpages = 0;
            cmd.faults = 0;
            // SAFETY: `cmd` is a valid argument of every one of these
            // requests; the caller vouches for the buffer it names.
            let ret = unsafe { libc::ioctl(self.fd(), request as _, &mut *cmd as *mut Cmd) };
            match Errno::check(ret.into()) {
                Ok(_) => return Ok(Done { cpages: cmd.cpages, faults: cmd.faults }),
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error),
            }
        }
    }

    fn with_buffer(&self, op: Op, addr: usize, buf: &mut [u8]) -> Result<Done, Errno> {
        assert_eq!(buf.len() % PAGE_SIZE, 0, "the buffer is not whole pages");
        let npages = (buf.len() / PAGE_SIZE) as u64;
        let ptr = buf.as_mut_ptr() as u64;
        let mut cmd = Cmd { addr: addr as u64, ptr, npages, ..Cmd::default() };
        // SAFETY: the kernel returns at most `npages` pages, the buffer's size.
        unsafe { self.issue(op.request(), &mut cmd) }
    }

    /// The device reads `buf.len()` bytes at `addr`.
    pub fn read(&self, addr: usize, buf: &mut [u8]) -> Result<Done, Errno> {
        self.with_buffer(Op::Read, addr, buf)
    }

    /// As [`Device::read`], through the fault path that userfaultfd can answer.
    pub fn read_unlocked(&self, addr: usize, buf: &mut [u8]) -> Result<Done, Errno> {
        self.with_buffer(Op::ReadUnlocked, addr, buf)
    }

    /// The device writes `data` at `addr`.
    pub fn write(&self, addr: usize, data: &[u8]) -> Result<Done, Errno> {
        assert_eq!(data.len() % PAGE_SIZE, 0, "the data is not whole pages");
        let npages = (data.len() / PAGE_SIZE) as u64;
        let ptr = data.as_ptr() as u64;
        let mut cmd = Cmd { addr: addr as u64, ptr, npages, ..Cmd::default() };
        // SAFETY: a write only reads the buffer.
        unsafe { self.issue(Op::Write.request(), &mut cmd) }
    }

    /// Migrates to device memory; the device then reads the range into `buf`.
    pub fn migrate_to_device(&self, addr: usize, buf: &mut [u8]) -> Result<Done, Errno> {
        self.with_buffer(Op::MigrateToDev, addr, buf)
    }

    /// Migrates `npages` back to system memory.
    pub fn migrate_to_system(&self, addr: usize, npages: usize) -> Result<Done, Errno> {
        self.plain(Op::MigrateToSys, addr, npages as u64)
    }

    /// Returns for each page of the range how the CPU maps it, from the device's view.
    pub fn snapshot(&self, addr: usize, npages: usize) -> Result<Vec<PageState>, Errno> {
        // The kernel writes one byte per page.
        let mut bytes = vec![0u8; npages];
        let ptr = bytes.as_mut_ptr() as u64;
        let mut cmd = Cmd { addr: addr as u64, ptr, npages: npages as u64, ..Cmd::default() };
        // SAFETY: the buffer has one byte for each page.
        unsafe { self.issue(Op::Snapshot.request(), &mut cmd) }?;
        Ok(bytes.into_iter().map(PageState).collect())
    }

    /// Maps the range for exclusive device access and reads it.
    pub fn exclusive(&self, addr: usize, buf: &mut [u8]) -> Result<Done, Errno> {
        self.with_buffer(Op::Exclusive, addr, buf)
    }

    /// Fails with `EPERM` while the range has an exclusive entry.
    pub fn check_exclusive(&self, addr: usize, npages: usize) -> Result<Done, Errno> {
        self.plain(Op::CheckExclusive, addr, npages as u64)
    }

    /// Evicts everything from this device and frees its memory.
    pub fn release(&self) -> Result<Done, Errno> {
        // The range is checked but not used.
        self.plain(Op::Release, PAGE_SIZE, 1)
    }

    /// Sets test flags, see [`crate::abi::FLAG_FAIL_ALLOC`].
    pub fn set_flags(&self, flags: u64) -> Result<Done, Errno> {
        // The flags travel in `npages`, which must not be zero.
        self.plain(Op::Flags, PAGE_SIZE, flags)
    }

    fn plain(&self, op: Op, addr: usize, npages: u64) -> Result<Done, Errno> {
        let mut cmd = Cmd { addr: addr as u64, npages, ..Cmd::default() };
        // SAFETY: these commands return no data.
        unsafe { self.issue(op.request(), &mut cmd) }
    }

    /// Issues any command with any range: for tests of bad input.
    pub fn probe(&self, op: Op, addr: u64, npages: u64, ptr: Ptr<'_>) -> Result<Done, Errno> {
        self.probe_request(op.request(), addr, npages, ptr)
    }

    /// As [`Device::probe`] with any request number.
    pub fn probe_request(
        &self,
        request: u64,
        addr: u64,
        npages: u64,
        ptr: Ptr<'_>,
    ) -> Result<Done, Errno> {
        let ptr = match ptr {
            Ptr::Null => 0,
            Ptr::Slice(slice) => {
                let room = (slice.len() / PAGE_SIZE) as u64;
                assert!(npages <= room, "the buffer is too small");
                slice.as_mut_ptr() as u64
            }
            Ptr::Map(map) => map.addr() as u64,
            Ptr::Guard(map) => map.guard() as u64,
        };
        let mut cmd = Cmd { addr, ptr, npages, ..Cmd::default() };
        // SAFETY: by the rules of `Ptr` the kernel cannot write outside of
        // memory that the caller has lent for it.
        unsafe { self.issue(request, &mut cmd) }
    }

    /// Issues `op` with an argument pointer that cannot be read.
    pub fn probe_bad_argument(&self, op: Op, guard_of: &Mapping) -> Result<(), Errno> {
        // SAFETY: the pointer is one of a guard page; the kernel cannot
        // access it.
        let ret = unsafe { libc::ioctl(self.fd(), op.request() as _, guard_of.guard()) };
        Errno::check(ret.into()).map(|_| ())
    }

    /// The counters of `rust_dmirror`; other drivers answer `EINVAL`.
    pub fn counters(&self) -> Result<Counters, Errno> {
        self.counters_sized(size_of::<Counters>() as u32)
    }

    /// The counters, with `size` passed as the size of the buffer.
    pub fn counters_sized(&self, size: u32) -> Result<Counters, Errno> {
        assert!(size as usize <= size_of::<Counters>());
        let mut counters = Counters { size, ..Counters::default() };
        // SAFETY: the kernel writes at most `size` bytes, checked above.
        let ret =
            unsafe { libc::ioctl(self.fd(), Counters::REQUEST as _, &mut counters as *mut _) };
        Errno::check(ret.into()).map(|_| counters)
    }

    /// Maps one or more pages of the device file itself (`VM_MIXEDMAP`).
    pub fn map_file(&self, npages: usize) -> Result<Mapping, Errno> {
        Mapping::of_device(&self.file, npages * PAGE_SIZE)
    }
}
