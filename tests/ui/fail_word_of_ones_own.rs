// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_format
//! How entries are stored is not for the driver to say: they are read while they change.

use rust_hmm::pgtable::Word;

#[derive(Clone, Copy)]
pub struct Forgetful;

impl Word for Forgetful {
//~^ ERROR E0277: the trait bound `Forgetful: pgtable::format::sealed::Sealed` is not satisfied:
    type Cell = ();

    const EMPTY: Self = Self;

    fn cell(_value: Self) -> () {}

    fn load(_cell: &()) -> Self {
        Self
    }

    fn store(_cell: &(), _value: Self) {}
}
