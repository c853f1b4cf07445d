// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0597
//! What the lock protects cannot be kept beyond it.

use rust_hmm::mm::{notifier::Subscriber, range_fault::Validated};

pub fn keep<'a, S: Subscriber + 'a>(valid: Validated<'a, S>, kept: &mut Option<&'a mut S::Protected>) {
    let mut valid = valid;
    let (protected, _, _) = valid.parts();
    *kept = Some(protected);
}
