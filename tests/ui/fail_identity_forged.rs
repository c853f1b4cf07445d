// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_values
//! An identity cannot be forged: it is the address of an object, and therefore unique.

use rust_hmm::kernel::identity::MigrationId;

pub fn forge() -> MigrationId {
    MigrationId(0x1234)
    //~^ ERROR E0423: cannot initialize a tuple struct which contains private fields
}
