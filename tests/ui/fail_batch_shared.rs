// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_migration
//! Two migrations cannot use one batch.

use kernel::prelude::*;
use rust_hmm::{
    kernel::identity::MigrationId,
    mm::{
        addr::PageRange,
        migrate::{
            Batch,
            Isolated, //
        },
        vma::Vma, //
    }, //
};

pub fn share(vma: Vma<'_>, range: PageRange) -> Result {
    let mut batch = Batch::new()?;
    let id = MigrationId::of(&range);
    let first = Isolated::of_system(vma, range, false, id, &mut batch)?;
    let second = Isolated::of_system(vma, range, false, id, &mut batch)?;
    //~^ ERROR E0499: cannot borrow `batch` as mutable more than once at a time: second mutable
    drop(first);
    drop(second);
    Ok(())
}
