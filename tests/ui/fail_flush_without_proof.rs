// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_flush
//! Only a finished flush gives the proof that pages may be freed.

use rust_hmm::{mm::migrate::Migrated, pgtable::Flushed};

pub fn finalize(migrated: Migrated<'_>) {
    migrated.finalize(&Flushed(()));
    //~^ ERROR E0423: cannot initialize a tuple struct which contains private fields
}
