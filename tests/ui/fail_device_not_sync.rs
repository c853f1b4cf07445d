// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_driver
//! A device must be `Sync` to have a mirror, because callbacks run on any thread.

use core::cell::Cell;
use rust_hmm::{
    memory::{
        CopyJob,
        Memory,
        MemoryOps, //
    },
    mirror::Device,
    mm::addr::PageRange,
    pgtable::Radix4, //
};

pub struct Vram;

impl MemoryOps for Vram {
    fn copy(&self, job: CopyJob) {
        drop(job);
    }
}

pub struct Gpu {
    pub flushes: Cell<usize>,
}

impl Device for Gpu {
//~^ ERROR E0277: `Cell<usize>` cannot be shared between threads safely: `Cell<usize>` cannot be
    type Memory = Vram;
    type Format = Radix4;
    type Walker = ();
    type Flush = ();

    fn memory(&self) -> Option<&Memory<Vram>> {
        None
    }

    fn flush_start(&self, _range: PageRange) {}

    fn flush_wait(&self, (): ()) {}
}
