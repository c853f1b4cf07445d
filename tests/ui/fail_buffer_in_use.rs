// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_collect
//! The buffer of a collection cannot be reused before the collection is dropped.

use kernel::prelude::*;
use rust_hmm::{
    kernel::identity::PgmapOwner,
    mm::{
        addr::PageRange,
        notifier::{
            IntervalNotifier,
            NotifierOps,
            NotifierTable, //
        },
        range_fault::{
            Access,
            AddressSpace,
            PfnBuffer, //
        }, //
    }, //
};

pub fn reuse<S: NotifierOps, M: NotifierTable<S>>(
    space: &AddressSpace,
    notifier: &IntervalNotifier<S>,
    member: &M,
    range: PageRange,
) -> Result {
    let mut buffer = PfnBuffer::new()?;
    let first = space.collect(notifier, range, Access::Read, PgmapOwner::NONE, &mut buffer)?;
    let second = space.collect(notifier, range, Access::Read, PgmapOwner::NONE, &mut buffer)?;
    //~^ ERROR E0499: cannot borrow `buffer` as mutable more than once at a time: second mutable
    let _ = first.lock(member);
    let _ = second.lock(member);
    Ok(())
}
