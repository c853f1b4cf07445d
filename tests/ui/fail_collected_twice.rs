// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_collect
//! A collection can be validated only once.

use rust_hmm::mm::{
    notifier::{
        NotifierOps,
        NotifierTable, //
    },
    range_fault::Collected, //
};

pub fn twice<S: NotifierOps, M: NotifierTable<S>>(collected: Collected<'_, S>, member: &M) {
    let _ = collected.lock(member);
    let _ = collected.lock(member);
    //~^ ERROR E0382: use of moved value: `collected`: value used here after move
}
