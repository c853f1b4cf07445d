// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0616
//! The result of a collection cannot be read before it is validated.

use rust_hmm::mm::{notifier::Subscriber, range_fault::Collected};

pub fn peek<S: Subscriber>(collected: &Collected<'_, S>) -> usize {
    collected.pfns.len()
}
