// SPDX-License-Identifier: GPL-2.0

//! Stand-in for `kernel::error`.

/// An errno, negative.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Error(i32);

impl Error {
    /// The error of a negative errno.
    pub fn from_errno(errno: i32) -> Self {
        Self(errno)
    }

    /// The negative errno.
    pub fn to_errno(self) -> i32 {
        self.0
    }
}

/// A result.
pub type Result<T = (), E = Error> = core::result::Result<T, E>;

macro_rules! codes {
    ($($name:ident = $number:literal,)*) => {
        /// The errors.
        pub mod code {
            $(pub const $name: super::Error = super::Error(-$number);)*
        }
    };
}

codes! {
    ENOENT = 2,
    EINTR = 4,
    EIO = 5,
    ENXIO = 6,
    EAGAIN = 11,
    ENOMEM = 12,
    EFAULT = 14,
    EBUSY = 16,
    EEXIST = 17,
    ENODEV = 19,
    EINVAL = 22,
    ENOSPC = 28,
    EOPNOTSUPP = 95,
    ETIMEDOUT = 110,
}

impl From<core::num::TryFromIntError> for Error {
    fn from(_: core::num::TryFromIntError) -> Self {
        code::EINVAL
    }
}

impl From<core::convert::Infallible> for Error {
    fn from(never: core::convert::Infallible) -> Self {
        match never {}
    }
}

impl From<crate::alloc::AllocError> for Error {
    fn from(_: crate::alloc::AllocError) -> Self {
        code::ENOMEM
    }
}

/// The result of a function in C.
pub fn to_result(errno: i32) -> Result {
    match errno {
        0.. => Ok(()),
        errno => Err(Error(errno)),
    }
}

/// A pointer that may be an error.
pub fn from_err_ptr<T>(pointer: *mut T) -> Result<*mut T> {
    match pointer as isize {
        errno @ -4095..=-1 => Err(Error(errno as i32)),
        _ => Ok(pointer),
    }
}
