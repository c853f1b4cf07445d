// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_flush
//! Source pages are not freed without the flush proofs of all readers.

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

pub fn finalize(migrated: Migrated<'_, (Table, Table)>) {
    migrated.finalize(|(here, there), moved| {
        let proof = here.remove_moved(moved);
        drop(there);
        proof
        //~^ ERROR E0308: mismatched types: expected `(Proof, Proof)`, found `Proof`
    });
}
