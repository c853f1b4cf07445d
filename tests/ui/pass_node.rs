// SPDX-License-Identifier: GPL-2.0
//~ PASS
//! A device node with file operations in a static, and a file that several threads may use.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        Arc, //
    }, //
};
use rust_hmm::kernel::miscdevice::{
    FileOps,
    Node,
    OpenFile, //
};

pub struct File {
    pub calls: Atomic<u32>,
}

impl OpenFile for File {
    type Device = u32;

    fn open(_device: Arc<u32>) -> Result<Pin<KBox<Self>>> {
        Err(ENODEV)
    }

    fn ioctl(&self, _command: u32, _argument: usize) -> Result<isize> {
        self.calls.fetch_add(1, Relaxed);
        Ok(0)
    }
}

static OPS: FileOps<File> = FileOps::new();

pub fn register(module: &'static ThisModule, device: Arc<u32>) -> Result<Pin<KBox<Node<File>>>> {
    KBox::pin_init(Node::new(c"test", &OPS, module, device), GFP_KERNEL)
}
