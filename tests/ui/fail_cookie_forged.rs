// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_values
//! A name is an address that nothing else has.

use rust_hmm::mm::notifier::Cookie;

pub fn forge() -> Cookie {
    Cookie(0x1234)
    //~^ ERROR E0423: cannot initialize a tuple struct which contains private fields
}
