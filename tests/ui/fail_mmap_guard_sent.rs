// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0277
//! The mmap lock is released by the task that took it.

use rust_hmm::mm::space::MmapGuard;

fn needs_send<T: Send>(_: T) {}

pub fn send(guard: MmapGuard<'_>) {
    needs_send(guard);
}
