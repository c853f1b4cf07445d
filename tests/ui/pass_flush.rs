// SPDX-License-Identifier: GPL-2.0
//~ PASS
//! A flush that is started and awaited once, on one flusher, which proves it.

use rust_hmm::{
    mm::{
        addr::PageRange,
        migrate::Migrated, //
    },
    pgtable::{
        FlushBatch,
        Flushed,
        Flusher,
        Radix4, //
    },
};

pub struct Tlb;

impl Flusher for Tlb {
    type Pending = u32;

    fn start(&self, _range: PageRange) -> u32 {
        0
    }

    fn wait(&self, _pending: u32) {}
}

pub fn flush(batch: FlushBatch<Radix4>) -> Flushed {
    batch.start(&Tlb).wait(&Tlb)
}

pub fn finalize(migrated: Migrated<'_>, batch: FlushBatch<Radix4>) {
    migrated.finalize(&flush(batch));
}
