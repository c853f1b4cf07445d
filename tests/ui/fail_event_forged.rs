// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0451
//! Events come from the kernel.

use core::marker::PhantomData;
use rust_hmm::mm::{
    addr::PageRange,
    notifier::{Cookie, Event, Reason},
};

pub fn forge(range: PageRange) -> Event<'static> {
    Event {
        reason: Reason::Unmap,
        range,
        blockable: true,
        owner: Cookie::NONE,
        _borrow: PhantomData,
    }
}
