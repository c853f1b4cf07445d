// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_format
//! How entries are written is not for the driver to say: the device reads them while they change.

use rust_hmm::pgtable::Word;

#[derive(Clone, Copy)]
pub struct Forgetful;

impl Word for Forgetful {
//~^ ERROR E0277: the trait bound `Forgetful: pgtable::format::sealed::Sealed` is not satisfied:
    const EMPTY: Self = Self;
}
