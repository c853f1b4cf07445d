// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0507
//! A destination folio can be given to one page only.

use rust_hmm::mm::{migrate::Isolated, page::LockedFolio};

pub fn share(isolated: &mut Isolated<'_>, folio: LockedFolio) {
    isolated.fill(move |_| Some(folio));
}
