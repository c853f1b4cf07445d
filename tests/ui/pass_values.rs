// SPDX-License-Identifier: GPL-2.0
//~ PASS
//! Ranges, identities, events and pages from the functions that check them.

use kernel::prelude::*;
use rust_hmm::{
    kernel::identity::{
        FenceType,
        MigrationId, //
    },
    mm::{
        addr::PageRange,
        folio::CpuPages,
        notifier::NotifierRange, //
    }, //
};

pub fn range() -> Result<PageRange> {
    PageRange::new(0x1000, 0x2000)
}

pub fn migration(object: &PageRange) -> MigrationId {
    MigrationId::of(object)
}

pub fn fence_type(object: &PageRange) -> FenceType {
    FenceType::of(object)
}

pub fn event(event: &NotifierRange<'_>) -> PageRange {
    event.range
}

pub fn read(pages: &CpuPages<'_>, to: &mut [u8]) {
    let _read = pages.read(0, to);
}
