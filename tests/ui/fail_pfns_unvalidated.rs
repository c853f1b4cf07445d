// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_collect
//! The result of a collection cannot be read before it is validated.

use rust_hmm::mm::{
    notifier::NotifierOps,
    range_fault::Collected, //
};

pub fn peek<S: NotifierOps>(collected: &Collected<'_, S>) -> usize {
    collected.pfns.len()
    //~^ ERROR E0616: field `pfns` of struct `Collected` is private: private field
}
