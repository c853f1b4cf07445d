// SPDX-License-Identifier: GPL-2.0
//~ PASS
//! Ranges, cookies, events and pages from the functions that check them.

use kernel::prelude::*;
use rust_hmm::mm::{
    addr::PageRange,
    notifier::{
        Cookie,
        Event, //
    },
    page::CpuPages,
};

pub fn range() -> Result<PageRange> {
    PageRange::new(0x1000, 0x2000)
}

pub fn cookie(of: &PageRange) -> Cookie {
    Cookie::of(of)
}

pub fn event(event: &Event<'_>) -> PageRange {
    event.range
}

pub fn read(pages: &CpuPages<'_>, to: &mut [u8]) {
    let _read = pages.read(0, to);
}
