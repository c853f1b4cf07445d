// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_migration
//! A driver cannot mark a destination as filled: only a copy by the library does.

use rust_hmm::mm::migrate::Isolated;

pub fn pretend(isolated: &mut Isolated<'_>) {
    isolated.set_filled(0)
    //~^ ERROR E0624: method `set_filled` is private: private method
}
