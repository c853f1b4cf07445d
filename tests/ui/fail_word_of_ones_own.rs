// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_format
//! A driver cannot define how entries are stored, because the device reads them concurrently.

use rust_hmm::pgtable::Word;

#[derive(Clone, Copy)]
pub struct Forgetful;

impl Word for Forgetful {
//~^ ERROR E0277: the trait bound `Forgetful: pgtable::format::sealed::Sealed` is not satisfied:
    const EMPTY: Self = Self;
}
