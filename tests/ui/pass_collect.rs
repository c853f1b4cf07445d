// SPDX-License-Identifier: GPL-2.0
//~ PASS
//! A collection that is validated under the lock before it is read, with one buffer for one collection at a time.

use kernel::prelude::*;
use rust_hmm::mm::{
    addr::PageRange,
    notifier::{
        Cookie,
        IntervalNotifier,
        Subscriber, //
    },
    range_fault::{
        Access,
        AddressSpace,
        Collected,
        PfnBuffer, //
    },
};

pub fn collect<S: Subscriber>(notifier: &IntervalNotifier<S>, range: PageRange) -> Result {
    let space = AddressSpace::new(notifier)?;
    let mut buffer = PfnBuffer::new()?;
    for _ in 0..2 {
        let collected = space.collect(range, Access::Read, Cookie::NONE, &mut buffer)?;
        commit(collected);
    }
    let _lock = space.mmap_lock()?;
    Ok(())
}

fn commit<S: Subscriber>(collected: Collected<'_, S>) {
    if let Ok(mut valid) = collected.lock() {
        let (_protected, _, _) = valid.parts();
    }
}
