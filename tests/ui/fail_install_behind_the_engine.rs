// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0616
//! A driver cannot get at the table of a mirror to change it itself.

use rust_hmm::mirror::{Device, Mirror};

pub fn change<D: Device>(mirror: &Mirror<D>) {
    let mut state = mirror.notifier.lock();
    state.table = todo!();
}
