// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_section
//! The table lock must be released by the thread that took it.

use rust_hmm::mirror::{
    Device,
    TableGuard, //
};

fn needs_send<T: Send>(_: T) {}

pub fn send<D: Device>(guard: TableGuard<'_, D>) {
    needs_send(guard);
    //~^ ERROR E0277: `*mut ()` cannot be sent between threads safely: `*mut ()` cannot be sent
}
