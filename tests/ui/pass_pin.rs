// SPDX-License-Identifier: GPL-2.0
//~ PASS
//! A page of a locked range that is used while the range is held.

use kernel::sync::Arc;
use rust_hmm::host_lock::Region;

pub fn clear(region: Arc<Region>, address: usize) {
    if let Some(page) = region.page(address) {
        page.clear();
    }
}
