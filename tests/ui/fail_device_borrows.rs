// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_driver
//! A device cannot borrow data, because the kernel calls it until the mirror is dropped, which may
//! never happen.

use rust_hmm::{
    memory::{
        Memory,
        MemoryOps, //
    },
    mirror::Device,
    mm::addr::PageRange,
    pgtable::Radix4, //
};

/// A device with a generic field, which could be a reference.
pub struct Gpu<T>(pub T);

impl<T: MemoryOps, R: Send + Sync> Device for Gpu<(T, R)> {
//~^ ERROR E0310: the parameter type `R` may not live long enough: the parameter type `R` must be
//~^^ ERROR E0310: the parameter type `R` may not live long enough: the parameter type `R` must be
    type Memory = T;
    type Format = Radix4;
    type Walker = ();
    type Flush = ();

    fn memory(&self) -> Option<&Memory<T>> {
        None
    }

    fn flush_start(&self, _range: PageRange) {}

    fn flush_wait(&self, (): ()) {}
}
