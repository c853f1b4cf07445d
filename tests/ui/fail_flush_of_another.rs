// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_flush
//! A flush cannot be waited for with a flusher of another type.

use rust_hmm::{
    mm::addr::PageRange,
    pgtable::{
        FlushBatch,
        Flushed,
        Flusher,
        Radix4, //
    }, //
};

pub struct First;
pub struct Second;

impl Flusher for First {
    type Pending = u32;

    fn start(&self, _range: PageRange) -> u32 {
        0
    }

    fn wait(&self, _pending: u32) {}
}

impl Flusher for Second {
    type Pending = u64;

    fn start(&self, _range: PageRange) -> u64 {
        0
    }

    fn wait(&self, _pending: u64) {}
}

pub fn mix(batch: FlushBatch<Radix4>) -> Flushed<'static> {
    batch.start(&First).wait(&Second)
    //~^ ERROR E0271: type mismatch resolving `<Second as Flusher>::Pending == u32`: type mismatch
}
