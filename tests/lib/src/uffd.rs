// SPDX-License-Identifier: GPL-2.0
//! The part of userfaultfd that tests need: missing pages of one range, and write protection.

use crate::abi::PAGE_SIZE;
use crate::errno::Errno;
use crate::mapping::Mapping;
use std::fs::File;
use std::io::Read;
use std::os::fd::{
    AsRawFd,
    FromRawFd, //
};
use std::time::Duration;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Copy {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    copy: i64,
}

#[repr(C)]
struct Protect {
    start: u64,
    len: u64,
    mode: u64,
}

/// `_IOWR(0xaa, nr, size)`.
const fn request(nr: u8, size: usize) -> u64 {
    (3 << 30) | ((size as u64) << 16) | (0xaa << 8) | nr as u64
}

const UFFDIO_API: u64 = request(0x3f, size_of::<Api>());
const UFFDIO_REGISTER: u64 = request(0x00, size_of::<Register>());
const UFFDIO_COPY: u64 = request(0x03, size_of::<Copy>());
const UFFDIO_WRITEPROTECT: u64 = request(0x06, size_of::<Protect>());
const MODE_MISSING: u64 = 1;
const MODE_WP: u64 = 2;
/// The feature for write protection.
const FEATURE_WP: u64 = 1;
const PROTECT_WP: u64 = 1;
const EVENT_PAGEFAULT: u8 = 0x12;

/// A userfaultfd for missing pages of one mapping.
#[derive(Debug)]
pub struct Missing {
    file: File,
}

impl Missing {
    /// Registers all of `map`.
    pub fn new(map: &Mapping) -> Result<Missing, Errno> {
        register(map, MODE_MISSING, 0).map(|file| Missing { file })
    }

    /// Waits for a fault and resolves it with a page filled with `byte`. Returns the page's
    /// address, or `None` if there is no fault in time.
    pub fn serve(&self, byte: u8, timeout: Duration) -> Result<Option<usize>, Errno> {
        let mut poll = libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid structure.
        if unsafe { libc::poll(&mut poll, 1, timeout.as_millis() as i32) } <= 0 {
            return Ok(None);
        }
        // struct uffd_msg: event, padding, then flags and address.
        let mut message = [0u8; 32];
        (&self.file).read_exact(&mut message)?;
        if message[0] != EVENT_PAGEFAULT {
            return Err(Errno::EINVAL);
        }
        let raw: [u8; 8] = message[16..24].try_into().map_err(|_| Errno::EINVAL)?;
        let dst = u64::from_ne_bytes(raw) & !(PAGE_SIZE as u64 - 1);
        let page = vec![byte; PAGE_SIZE];
        let src = page.as_ptr() as u64;
        let mut copy = Copy { dst, src, len: PAGE_SIZE as u64, mode: 0, copy: 0 };
        // SAFETY: the structure that this request takes; the source is one
        // page long and the target is the registered memory.
        let ret = unsafe { libc::ioctl(self.file.as_raw_fd(), UFFDIO_COPY as _, &mut copy) };
        match Errno::check(ret.into()) {
            // Two threads may fault on the same page: the second fault is already resolved.
            Ok(_) | Err(Errno::EEXIST) => Ok(Some(dst as usize)),
            Err(error) => Err(error),
        }
    }
}

/// A new userfaultfd with all of `map` registered.
fn register(map: &Mapping, mode: u64, features: u64) -> Result<File, Errno> {
    // A blocking userfaultfd cannot be polled.
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: plain system call on numbers.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    // SAFETY: userfaultfd() returned a new descriptor, which is owned here.
    let file = unsafe { File::from_raw_fd(Errno::check(fd)? as i32) };
    let mut api = Api { api: 0xaa, features, ioctls: 0 };
    // SAFETY: the structure that this request takes.
    Errno::check(unsafe { libc::ioctl(file.as_raw_fd(), UFFDIO_API as _, &mut api) }.into())?;
    let start = map.addr() as u64;
    let len = map.len() as u64;
    let mut register = Register { start, len, mode, ioctls: 0 };
    // SAFETY: the structure that this request takes.
    let ret = unsafe { libc::ioctl(file.as_raw_fd(), UFFDIO_REGISTER as _, &mut register) };
    Errno::check(ret.into())?;
    Ok(file)
}

/// A userfaultfd that write-protects pages of one mapping. Its faults are not handled: a write
/// waits until the protection is removed, or fails.
#[derive(Debug)]
pub struct WriteProtect {
    file: File,
}

impl WriteProtect {
    /// Registers all of `map`, without protecting any page yet.
    pub fn new(map: &Mapping) -> Result<WriteProtect, Errno> {
        register(map, MODE_WP, FEATURE_WP).map(|file| WriteProtect { file })
    }

    /// Enables or disables the write protection of some pages of `map`.
    pub fn set(&self, map: &Mapping, first: usize, npages: usize, yes: bool) -> Result<(), Errno> {
        let start = map.page_addr(first) as u64;
        let len = (npages * PAGE_SIZE) as u64;
        loop {
            let mode = if yes { PROTECT_WP } else { 0 };
            let mut protect = Protect { start, len, mode };
            // SAFETY: the structure that this request takes.
            let ret = unsafe {
                libc::ioctl(self.file.as_raw_fd(), UFFDIO_WRITEPROTECT as _, &mut protect)
            };
            match Errno::check(ret.into()) {
                // The kernel asks for a retry, because the mappings are changing.
                Err(Errno::EAGAIN) => continue,
                other => return other.map(|_| ()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_numbers_match_the_c_macros() {
        assert_eq!(UFFDIO_API, 0xc018_aa3f);
        assert_eq!(UFFDIO_REGISTER, 0xc020_aa00);
        assert_eq!(UFFDIO_COPY, 0xc028_aa03);
        assert_eq!(UFFDIO_WRITEPROTECT, 0xc018_aa06);
    }
}
