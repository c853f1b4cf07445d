// SPDX-License-Identifier: GPL-2.0
//~ PASS
//! A flush that is started and waited for once, with the same flusher, which yields its proof.

use rust_hmm::{
    mm::{
        addr::PageRange,
        migrate::{
            Migrated,
            MigrationReader,
            Moved, //
        }, //
    },
    pgtable::{
        FlushBatch,
        Flushed,
        Flusher,
        Radix4, //
    }, //
};

pub struct Tlb;

impl Flusher for Tlb {
    type Pending = u32;

    fn start(&self, _range: PageRange) -> u32 {
        0
    }

    fn wait(&self, _pending: u32) {}
}

pub fn flush(batch: FlushBatch<Radix4>) -> Flushed<'static> {
    batch.start(&Tlb).wait(&Tlb)
}

/// A reader of the pages that has removed its entries.
pub struct Table(FlushBatch<Radix4>);

impl MigrationReader for Table {
    type Done = Flushed<'static>;

    fn remove_moved(self, _moved: &Moved<'_>) -> Flushed<'static> {
        flush(self.0)
    }
}

pub fn finalize(one: Migrated<'_, Table>, two: Migrated<'_, (Table, Table)>) {
    one.finalize(|table, moved| table.remove_moved(moved));
    two.finalize(|(here, there), moved| (here.remove_moved(moved), there.remove_moved(moved)));
}
