// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_migration
//! A destination cannot be written after it was abandoned.

use rust_hmm::mm::migrate::Isolated;

pub fn late(isolated: &mut Isolated<'_>) {
    let destination = isolated.destination(0);
    isolated.skip(0);
    //~^ ERROR E0502: cannot borrow `*isolated` as mutable because it is also borrowed as
    if let Some(pages) = destination {
        pages.clear();
    }
}
