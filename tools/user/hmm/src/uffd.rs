// SPDX-License-Identifier: GPL-2.0
//! As much of userfaultfd as one test needs: missing pages of one range.

use crate::abi::PAGE_SIZE;
use crate::errno::Errno;
use crate::mapping::Mapping;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
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

/// `_IOWR(0xaa, nr, size)`.
const fn request(nr: u8, size: usize) -> u64 {
    (3 << 30) | ((size as u64) << 16) | (0xaa << 8) | nr as u64
}

const UFFDIO_API: u64 = request(0x3f, size_of::<Api>());
const UFFDIO_REGISTER: u64 = request(0x00, size_of::<Register>());
const UFFDIO_COPY: u64 = request(0x03, size_of::<Copy>());
const MODE_MISSING: u64 = 1;
const EVENT_PAGEFAULT: u8 = 0x12;

/// A userfaultfd that waits for missing pages of one mapping.
#[derive(Debug)]
pub struct Missing {
    file: File,
}

impl Missing {
    /// Registers all of `map`.
    pub fn new(map: &Mapping) -> Result<Missing, Errno> {
        // A blocking userfaultfd cannot be polled.
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: plain system call on numbers.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        // SAFETY: a new descriptor that nobody else knows.
        let file = unsafe { File::from_raw_fd(Errno::check(fd)? as i32) };
        let mut api = Api { api: 0xaa, features: 0, ioctls: 0 };
        // SAFETY: the structure that this request takes.
        Errno::check(unsafe { libc::ioctl(file.as_raw_fd(), UFFDIO_API as _, &mut api) }.into())?;
        let (start, len) = (map.addr() as u64, map.len() as u64);
        let mut register = Register { start, len, mode: MODE_MISSING, ioctls: 0 };
        // SAFETY: the structure that this request takes.
        let ret = unsafe { libc::ioctl(file.as_raw_fd(), UFFDIO_REGISTER as _, &mut register) };
        Errno::check(ret.into())?;
        Ok(Missing { file })
    }

    /// Waits for a fault and answers it with a page full of `byte`; `None`
    /// when nothing faults in time, else the page's address.
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
            // Two threads may fault on one page: the second is served already.
            Ok(_) | Err(Errno::EEXIST) => Ok(Some(dst as usize)),
            Err(error) => Err(error),
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
    }
}
