// SPDX-License-Identifier: GPL-2.0
//~ PASS
//! An access to a page of a locked range while the range is referenced.

use kernel::sync::Arc;
use rust_hmm::host_lock::PinnedRange;

pub fn clear(region: Arc<PinnedRange>, address: usize) {
    if let Some(page) = region.page(address) {
        page.clear();
    }
}
