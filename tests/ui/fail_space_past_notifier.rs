// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_collect
//! A collection cannot outlive the notifier that it is validated by.

use kernel::{prelude::*, sync::Arc};
use rust_hmm::mm::{
    notifier::{IntervalNotifier, Subscriber},
    range_fault::AddressSpace,
};

pub fn late<S: Subscriber>(notifier: Arc<IntervalNotifier<S>>) -> Result {
    let space = AddressSpace::new(&notifier)?;
    drop(notifier);
    //~^ ERROR E0505: cannot move out of `notifier` because it is borrowed: move out of `notifier`
    let _lock = space.mmap_lock()?;
    Ok(())
}
