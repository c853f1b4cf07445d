// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_values
//! A driver cannot create notifier events.

use core::marker::PhantomData;
use rust_hmm::{
    kernel::identity::EventOwner,
    mm::{
        addr::PageRange,
        notifier::{
            NotifierEvent,
            NotifierRange, //
        }, //
    }, //
};

pub fn forge(range: PageRange) -> NotifierRange<'static> {
    NotifierRange {
        reason: NotifierEvent::Unmap,
        range,
        blockable: true,
        owner: EventOwner::NONE,
        //~^ ERROR E0451: field `owner` of struct `NotifierRange` is private:
        call: (0, 0),
        //~^ ERROR E0451: field `call` of struct `NotifierRange` is private:
        _borrow: PhantomData,
        //~^ ERROR E0451: field `_borrow` of struct `NotifierRange` is private:
    }
}
