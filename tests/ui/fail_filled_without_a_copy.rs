// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_migration
//! A driver cannot note that a destination was filled: only a copy of the library is proof of that.

use rust_hmm::mm::migrate::Isolated;

pub fn pretend(isolated: &mut Isolated<'_>) {
    isolated.set_filled(0)
    //~^ ERROR E0624: method `set_filled` is private: private method
}
