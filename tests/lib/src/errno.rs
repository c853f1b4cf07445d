// SPDX-License-Identifier: GPL-2.0
//! Error numbers with their names.

use std::fmt;

/// An error number as the kernel returned it (positive).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

/// The numbers that memory management returns.
const NAMES: &[(i32, &str)] = &[
    (libc::EPERM, "EPERM"),
    (libc::ENOENT, "ENOENT"),
    (libc::ESRCH, "ESRCH"),
    (libc::EINTR, "EINTR"),
    (libc::EIO, "EIO"),
    (libc::ENXIO, "ENXIO"),
    (libc::E2BIG, "E2BIG"),
    (libc::EBADF, "EBADF"),
    (libc::EAGAIN, "EAGAIN"),
    (libc::ENOMEM, "ENOMEM"),
    (libc::EACCES, "EACCES"),
    (libc::EFAULT, "EFAULT"),
    (libc::EBUSY, "EBUSY"),
    (libc::EEXIST, "EEXIST"),
    (libc::ENODEV, "ENODEV"),
    (libc::EINVAL, "EINVAL"),
    (libc::EMFILE, "EMFILE"),
    (libc::ENOTTY, "ENOTTY"),
    (libc::ENOSPC, "ENOSPC"),
    (libc::ERANGE, "ERANGE"),
    (libc::ENOSYS, "ENOSYS"),
    (libc::EOVERFLOW, "EOVERFLOW"),
    (libc::EOPNOTSUPP, "EOPNOTSUPP"),
    (libc::ETIMEDOUT, "ETIMEDOUT"),
    (libc::ECANCELED, "ECANCELED"),
    (libc::EILSEQ, "EILSEQ"),
];

impl Errno {
    /// Permission denied by the mapping.
    pub const EPERM: Errno = Errno(libc::EPERM);
    /// No translation.
    pub const ENOENT: Errno = Errno(libc::ENOENT);
    /// Interrupted by a signal.
    pub const EINTR: Errno = Errno(libc::EINTR);
    /// Out of memory.
    pub const ENOMEM: Errno = Errno(libc::ENOMEM);
    /// Permission denied.
    pub const EACCES: Errno = Errno(libc::EACCES);
    /// Bad address.
    pub const EFAULT: Errno = Errno(libc::EFAULT);
    /// No such device, also one that was unplugged.
    pub const ENODEV: Errno = Errno(libc::ENODEV);
    /// Busy.
    pub const EBUSY: Errno = Errno(libc::EBUSY);
    /// Would block. Also returned for the removal of a module that is in use.
    pub const EAGAIN: Errno = Errno(libc::EAGAIN);
    /// Bad argument.
    pub const EINVAL: Errno = Errno(libc::EINVAL);
    /// Address out of the range of the device.
    pub const ERANGE: Errno = Errno(libc::ERANGE);
    /// The process has no free descriptor.
    pub const EMFILE: Errno = Errno(libc::EMFILE);
    /// Already there.
    pub const EEXIST: Errno = Errno(libc::EEXIST);
    /// Argument too long.
    pub const E2BIG: Errno = Errno(libc::E2BIG);
    /// Input or output error.
    pub const EIO: Errno = Errno(libc::EIO);
    /// Timed out.
    pub const ETIMEDOUT: Errno = Errno(libc::ETIMEDOUT);
    /// Cancelled.
    pub const ECANCELED: Errno = Errno(libc::ECANCELED);
    /// Not the expected contents.
    pub const EILSEQ: Errno = Errno(libc::EILSEQ);
    /// No such ioctl of this file.
    pub const ENOTTY: Errno = Errno(libc::ENOTTY);
    /// No such system call.
    pub const ENOSYS: Errno = Errno(libc::ENOSYS);
    /// Not supported for this memory.
    pub const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);

    /// The error of the last failed call of this thread.
    pub fn last() -> Errno {
        Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// Turns the result of a system call (-1 on error) into a `Result`.
    pub fn check(ret: i64) -> Result<i64, Errno> {
        if ret == -1 {
            Err(Errno::last())
        } else {
            Ok(ret)
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(number, _)| *number == self.0) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Errno {}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<Errno> for std::io::Error {
    fn from(error: Errno) -> Self {
        std::io::Error::from_raw_os_error(error.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_and_unknown_errors_are_printed() {
        assert_eq!(Errno::EFAULT.to_string(), "EFAULT");
        assert_eq!(Errno(libc::EOPNOTSUPP).to_string(), "EOPNOTSUPP");
        assert_eq!(Errno(4001).to_string(), "errno 4001");
    }

    #[test]
    fn check_reads_errno() {
        // SAFETY: close() of a number that is no file has no effect.
        let ret = unsafe { libc::close(-1) };
        assert_eq!(Errno::check(ret.into()), Err(Errno(libc::EBADF)));
        assert_eq!(Errno::check(7), Ok(7));
    }
}
