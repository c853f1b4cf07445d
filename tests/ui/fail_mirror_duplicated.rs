// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_driver
//! A mirror cannot be cloned; drivers share it by `Arc`.

use rust_hmm::mirror::{
    Device,
    Mirror, //
};

pub fn duplicate<D: Device>(mirror: Mirror<D>) -> (Mirror<D>, Mirror<D>) {
    (mirror.clone(), mirror)
    //~^ ERROR E0599: no method named `clone` found for struct `Mirror` in the current scope:
}
