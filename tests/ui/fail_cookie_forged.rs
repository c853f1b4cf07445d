// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_values
//! A cookie cannot be forged: it is the address of an object, and therefore unique.

use rust_hmm::mm::notifier::Cookie;

pub fn forge() -> Cookie {
    Cookie(0x1234)
    //~^ ERROR E0423: cannot initialize a tuple struct which contains private fields
}
