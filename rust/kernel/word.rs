// SPDX-License-Identifier: GPL-2.0

//! Inlined atomic accesses to words.
//!
//! [`Atomic`] calls a C function for each access, which cannot be inlined into Rust code. That is a
//! considerable part of the cost of a pass over a page table. On x86-64 `smp_load_acquire()` and
//! `smp_store_release()` are plain accesses with a compiler barrier, which this module inlines. On
//! other architectures it calls the C functions.

#[cfg(CONFIG_X86_64)]
use core::sync::atomic::{
    compiler_fence,
    Ordering, //
};
#[cfg(not(CONFIG_X86_64))]
use kernel::sync::atomic::ordering;
use kernel::sync::atomic::Atomic;

macro_rules! load {
    ($load:ident $(<$generic:ident>)?: $type:ty) => {
        /// Reads the word with acquire ordering. Context: any.
        #[inline(always)]
        pub(crate) fn $load$(<$generic>)?(cell: &Atomic<$type>) -> $type {
            #[cfg(CONFIG_X86_64)]
            {
                // SAFETY: Valid and aligned; like `READ_ONCE()` it may race with stores of whole
                // words.
                let value = unsafe { cell.as_ptr().read_volatile() };
                compiler_fence(Ordering::Acquire);
                value
            }
            #[cfg(not(CONFIG_X86_64))]
            cell.load(ordering::Acquire)
        }
    };
}

macro_rules! peek {
    ($peek:ident: $type:ty) => {
        /// Reads the word with relaxed ordering. Context: any.
        #[inline(always)]
        pub(crate) fn $peek(cell: &Atomic<$type>) -> $type {
            #[cfg(CONFIG_X86_64)]
            // SAFETY: Valid and aligned; like `READ_ONCE()` it may race with stores of whole words.
            unsafe {
                cell.as_ptr().read_volatile()
            }
            #[cfg(not(CONFIG_X86_64))]
            cell.load(ordering::Relaxed)
        }
    };
}

macro_rules! store {
    ($store:ident: $type:ty) => {
        /// Writes the word with release ordering. Context: any.
        #[inline(always)]
        pub(crate) fn $store(cell: &Atomic<$type>, value: $type) {
            #[cfg(CONFIG_X86_64)]
            {
                compiler_fence(Ordering::Release);
                // SAFETY: Valid and aligned; like `WRITE_ONCE()` it may race with other accesses to
                // the whole word.
                unsafe { cell.as_ptr().write_volatile(value) };
            }
            #[cfg(not(CONFIG_X86_64))]
            cell.store(value, ordering::Release);
        }
    };
}

load!(load_u64: u64);
load!(load_ptr<T>: *mut T);
peek!(peek_u32: u32);
peek!(peek_u64: u64);
peek!(peek_usize: usize);
store!(store_u32: u32);
store!(store_u64: u64);
store!(store_usize: usize);
