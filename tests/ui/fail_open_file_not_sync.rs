// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_node
//! The state of a file must be `Sync`, because several threads use it concurrently.

use core::cell::Cell;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rust_hmm::kernel::miscdevice::OpenFile;

pub struct File {
    pub calls: Cell<u32>,
}

impl OpenFile for File {
//~^ ERROR E0277: `Cell<u32>` cannot be shared between threads safely: `Cell<u32>` cannot be shared
    type Device = u32;

    fn open(_device: Arc<u32>) -> Result<Pin<KBox<Self>>> {
        Err(ENODEV)
    }

    fn ioctl(&self, _command: u32, _argument: usize) -> Result<isize> {
        self.calls.set(self.calls.get() + 1);
        Ok(0)
    }
}
