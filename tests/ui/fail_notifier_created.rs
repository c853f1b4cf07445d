// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_values
//! A driver cannot create a notifier, which would wait for its own callback if dropped in it.

use rust_hmm::mm::notifier::{
    IntervalNotifier,
    NotifierOps, //
};

pub fn create<S: NotifierOps>() {
    let _new = IntervalNotifier::<S>::new;
    //~^ ERROR E0624: associated function `new` is private
}
