// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_migration
//! A migration owns the readers of its pages: of borrowed ones the pages stay.

use rust_hmm::mm::migrate::{Isolated, Moved, Reader};

pub struct Table;

impl Reader for Table {
    type Done = ();

    fn forget(self, _moved: &Moved<'_>) {}
}

pub fn migrate(isolated: Isolated<'_, &Table>) {
    drop(isolated.migrate());
    //~^ ERROR E0599: the method `migrate` exists for struct `Isolated<'_, &Table>`, but its trait bounds were not satisfied
}
