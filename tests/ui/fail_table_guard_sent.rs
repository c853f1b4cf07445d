// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0277
//! The table lock is released by the thread that took it.

use rust_hmm::mirror::{Device, TableGuard};

fn needs_send<T: Send>(_: T) {}

pub fn send<D: Device>(guard: TableGuard<'_, D>) {
    needs_send(guard);
}
