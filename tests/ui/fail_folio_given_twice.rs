// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_migration
//! A destination folio can be used for one page only.

use rust_hmm::mm::{
    folio::LockedFolio,
    migrate::Isolated, //
};

pub fn share(isolated: &mut Isolated<'_>, folio: LockedFolio) {
    isolated.fill(move |_| Some(folio));
    //~^ ERROR E0507: cannot move out of `folio`, a captured variable in an `FnMut` closure: move
}
