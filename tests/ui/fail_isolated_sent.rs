// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_migration
//! A migration cannot be sent to another task, because it holds the mmap lock.

use rust_hmm::mm::migrate::Isolated;

fn needs_send<T: Send>(_: T) {}

pub fn send(isolated: Isolated<'_>) {
    needs_send(isolated);
    //~^ ERROR E0277: `*mut bindings::bindings_raw::vm_area_struct` cannot be sent between threads
    //~^^ ERROR E0277: `*mut usize` cannot be sent between threads
    //~^^^ ERROR E0277: `*mut c_void` cannot be sent between threads
    //~^^^^ ERROR E0277: `*mut bindings::bindings_raw::page` cannot be sent between threads
    //~^^^^^ ERROR E0277: `UnsafeCell<MaybeUninit<bindings::bindings_raw::vm_area_struct>>` cannot be shared
}
