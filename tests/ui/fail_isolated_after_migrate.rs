// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_migration
//! Destinations cannot be changed after the pages were migrated.

use rust_hmm::mm::migrate::Isolated;

pub fn late(isolated: Isolated<'_>) {
    let mut isolated = isolated;
    let migrated = isolated.migrate();
    isolated.skip(0);
    //~^ ERROR E0382: borrow of moved value: `isolated`: value borrowed here after move
    drop(migrated);
}
