// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_section
//! An access section cannot be sent to another thread, because it holds a spinlock.

use rust_hmm::mirror::{
    AccessSection,
    Device, //
};

fn needs_send<T: Send>(_: T) {}

pub fn send<D: Device>(section: AccessSection<'_, D>) {
    needs_send(section);
    //~^ ERROR E0277: `*mut ()` cannot be sent between threads safely: `*mut ()` cannot be sent
}
