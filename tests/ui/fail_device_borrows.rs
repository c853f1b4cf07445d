// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_driver
//! A device cannot borrow: the kernel calls it until the mirror is dropped, which can be prevented.

use rust_hmm::{
    memory::{Memory, MemoryOps},
    mirror::Device,
    mm::addr::PageRange,
    pgtable::Radix4,
};

/// With what may be borrowed.
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
