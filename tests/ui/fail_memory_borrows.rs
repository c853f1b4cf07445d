// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_driver
//! Memory operations cannot borrow data, because device pages may outlive the process that filled
//! them.

use rust_hmm::memory::{
    CopyJob,
    MemoryOps, //
};

/// Memory operations with a generic field, which could be a reference.
pub struct Vram<R>(pub R);

impl<R: Send + Sync> MemoryOps for Vram<R> {
//~^ ERROR E0310: the parameter type `R` may not live long enough: the parameter type `R` must be
//~^^ ERROR E0310: the parameter type `R` may not live long enough: the parameter type `R` must be
    fn copy(&self, job: CopyJob) {
        drop(job);
    }
}
