// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_migration
//! The source of a page cannot be read after the page was migrated.

use rust_hmm::mm::migrate::Isolated;

pub fn late(isolated: Isolated<'_>, to: &mut [u8]) {
    let source = isolated.source(0);
    let migrated = isolated.migrate();
    //~^ ERROR E0505: cannot move out of `isolated` because it is borrowed: move out of `isolated`
    if let Some(pages) = source {
        let _read = pages.read(0, to);
    }
    drop(migrated);
}
