// SPDX-License-Identifier: GPL-2.0
//~ PASS
//! A collection is validated under the lock before it is read. Collections share one buffer, one at
//! a time.

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
            Collected,
            PfnBuffer, //
        }, //
    }, //
};

pub fn collect<S: NotifierOps, M: NotifierTable<S>>(
    space: &AddressSpace,
    notifier: &IntervalNotifier<S>,
    member: &M,
    range: PageRange,
) -> Result
where
    M::Protected: Unpin,
{
    let mut buffer = PfnBuffer::new()?;
    for _ in 0..2 {
        let collected =
            space.collect(notifier, range, Access::Read, PgmapOwner::NONE, &mut buffer)?;
        commit(collected, member);
    }
    let _lock = space.mmap_lock()?;
    Ok(())
}

fn commit<S: NotifierOps, M: NotifierTable<S>>(collected: Collected<'_, S>, member: &M)
where
    M::Protected: Unpin,
{
    if let Ok(mut valid) = collected.lock(member) {
        let (_protected, _, _) = valid.parts();
    }
}
