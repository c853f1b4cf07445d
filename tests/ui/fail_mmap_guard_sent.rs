// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_migration
//! The mmap lock must be released by the task that took it.

use rust_hmm::mm::vma::MmapGuard;

fn needs_send<T: Send>(_: T) {}

pub fn send(guard: MmapGuard<'_>) {
    needs_send(guard);
    //~^ ERROR E0277: `*mut ()` cannot be sent between threads safely: `*mut ()` cannot be sent
}
