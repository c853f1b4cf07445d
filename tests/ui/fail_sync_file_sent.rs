// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_fence
//! A sync file cannot be sent before it is installed, because its descriptor is reserved in the
//! current process.

use rust_hmm::kernel::sync_file::SyncFile;

fn needs_send<T: Send>(_: T) {}

pub fn send(file: SyncFile) {
    needs_send(file);
    //~^ ERROR E0277: `NonNull<bindings::bindings_raw::file>` cannot be sent between threads
    //~^^ ERROR E0277: `*mut ()` cannot be sent between threads
}
