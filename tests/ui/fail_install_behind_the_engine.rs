// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0624
//! A driver cannot change the device page table itself.

use rust_hmm::{
    mm::addr::PageRange,
    pgtable::{Entry, Table},
};

pub fn change(table: &mut Table, range: PageRange) {
    table.for_each(range, |_, entry| *entry = Entry::NONE);
}
