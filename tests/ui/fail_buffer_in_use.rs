// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_collect
//! The buffer of a collection cannot be reused before the collection is gone.

use kernel::prelude::*;
use rust_hmm::mm::{
    addr::PageRange,
    notifier::{Cookie, Subscriber},
    range_fault::{Access, AddressSpace, PfnBuffer},
};

pub fn reuse<S: Subscriber>(space: &AddressSpace<'_, S>, range: PageRange) -> Result {
    let mut buffer = PfnBuffer::new()?;
    let first = space.collect(range, Access::Read, Cookie::NONE, &mut buffer)?;
    let second = space.collect(range, Access::Read, Cookie::NONE, &mut buffer)?;
    //~^ ERROR E0499: cannot borrow `buffer` as mutable more than once at a time: second mutable
    let _ = first.lock();
    let _ = second.lock();
    Ok(())
}
