// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0505
//! A collection cannot outlive the notifier that it is validated by.

use kernel::{prelude::*, sync::Arc};
use rust_hmm::mm::{
    notifier::{IntervalNotifier, Subscriber},
    range_fault::AddressSpace,
};

pub fn late<S: Subscriber>(notifier: Arc<IntervalNotifier<S>>) -> Result {
    let space = AddressSpace::new(&notifier)?;
    drop(notifier);
    let _lock = space.mmap_lock()?;
    Ok(())
}
