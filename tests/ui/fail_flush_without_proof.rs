// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_flush
//! Source pages are not freed without a proof that their reader has flushed its entries.

use rust_hmm::mm::migrate::{
    Migrated,
    MigrationReader,
    Moved, //
};

pub struct Table;

pub struct Proof(());

impl MigrationReader for Table {
    type Done = Proof;

    fn remove_moved(self, _moved: &Moved<'_>) -> Proof {
        Proof(())
    }
}

pub fn finalize(migrated: Migrated<'_, Table>) {
    migrated.finalize(|_table, _moved| ());
    //~^ ERROR E0308: mismatched types: expected `Proof`, found `()`
}
