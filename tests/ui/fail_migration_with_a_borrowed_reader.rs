// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_migration
//! A migration must own the readers of its pages, because with borrowed ones it could not free the
//! sources.

use rust_hmm::mm::migrate::{
    Isolated,
    MigrationReader,
    Moved, //
};

pub struct Table;

impl MigrationReader for Table {
    type Done = ();

    fn remove_moved(self, _moved: &Moved<'_>) {}
}

pub fn migrate(isolated: Isolated<'_, &Table>) {
    drop(isolated.migrate());
    //~^ ERROR E0599: the method `migrate` exists for struct `Isolated<'_, &Table>`, but its trait bounds were not satisfied
}
