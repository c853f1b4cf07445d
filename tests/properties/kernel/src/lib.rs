// SPDX-License-Identifier: GPL-2.0

//! The stand-in for the kernel crate of `tests/interleavings`, without exploration, and the items
//! that further sources of `rust/` need.

pub use macros;
pub use stand_in::*;

/// Stand-in for `kernel::prelude`.
pub mod prelude {
    pub use crate::VecExt;
    pub use stand_in::prelude::*;
}

/// Methods of `kernel::alloc::KVec` that the other stand-in does not have.
pub trait VecExt<T>: Sized {
    /// A vector with `count` copies of `value`.
    fn from_elem(value: T, count: usize, flags: alloc::Flags) -> Result<Self, alloc::AllocError>
    where
        T: Clone;
}

impl<T> VecExt<T> for alloc::KVec<T> {
    fn from_elem(value: T, count: usize, flags: alloc::Flags) -> Result<Self, alloc::AllocError>
    where
        T: Clone,
    {
        let mut new = Self::new();
        new.resize(count, value, flags)?;
        Ok(new)
    }
}

/// Stand-in for `kernel::page`.
pub mod page {
    pub use stand_in::page::*;

    /// A page. Tests that use it need the kernel.
    pub struct Page(());

    impl Page {
        /// Its `struct page`.
        pub fn as_ptr<T>(&self) -> *mut T {
            core::ptr::null_mut()
        }
    }
}
