// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_collect
//! A collection cannot outlive the notifier that validates it.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use rust_hmm::{
    kernel::identity::PgmapOwner,
    mm::{
        addr::PageRange,
        notifier::{
            IntervalNotifier,
            NotifierOps, //
        },
        range_fault::{
            Access,
            AddressSpace,
            PfnBuffer, //
        }, //
    }, //
};

pub fn late<S: NotifierOps>(
    space: &AddressSpace,
    notifier: Arc<IntervalNotifier<S>>,
    range: PageRange,
    buffer: &mut PfnBuffer,
) -> Result {
    let collected = space.collect(&notifier, range, Access::Read, PgmapOwner::NONE, buffer)?;
    drop(notifier);
    //~^ ERROR E0505: cannot move out of `notifier` because it is borrowed: move out of `notifier`
    drop(collected);
    Ok(())
}
