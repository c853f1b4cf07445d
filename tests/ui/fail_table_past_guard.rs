// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_collect
//! Data protected by the lock cannot outlive the guard.

use rust_hmm::mm::range_fault::Validated;

pub fn keep<'a, T: Unpin>(valid: Validated<'a, T>, kept: &mut Option<&'a mut T>) {
    let mut valid = valid;
    let (protected, _, _) = valid.parts();
    //~^ ERROR E0597: `valid` does not live long enough: borrowed value does not live long enough
    *kept = Some(protected);
}
