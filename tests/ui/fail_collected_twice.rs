// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_collect
//! A collection can be validated only once.

use rust_hmm::mm::{notifier::Subscriber, range_fault::Collected};

pub fn twice<S: Subscriber>(collected: Collected<'_, S>) {
    let _ = collected.lock();
    let _ = collected.lock();
    //~^ ERROR E0382: use of moved value: `collected`: value used here after move
}
