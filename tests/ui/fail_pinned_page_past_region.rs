// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_pin
//! A page of a locked range cannot outlive the reference to the range.

use kernel::sync::Arc;
use rust_hmm::{
    host_lock::PinnedRange,
    mm::folio::CpuPagesMut, //
};

pub fn keep<'a>(region: Arc<PinnedRange>, address: usize) -> Option<CpuPagesMut<'a>> {
    region.page(address)
    //~^ ERROR E0515: cannot return value referencing function parameter `region`: returns a value
}
