// SPDX-License-Identifier: GPL-2.0

//! The smaller sample: a device without memory of its own, which accesses the memory of the process
//! that opened it through a mirror.
//!
//! `/dev/hmm_mirror_only` takes two ioctls on four words. Both return the sum of the words of a
//! range as the device reads them: immediately, or after a sync file of another device is
//! signalled.

#![forbid(unsafe_code)]

use kernel::{
    prelude::*,
    sync::Arc, //
};
use rust_hmm::{
    kernel::miscdevice::{
        FileOps,
        Node,
        OpenFile, //
    },
    memory::{
        Memory,
        NoMemory, //
    },
    mirror::Device,
    mm::addr::PageRange,
    pgtable::Radix5, //
};
use sum::Sums;

#[path = "../common/sum.rs"]
mod sum;

module! {
    type: MirrorOnly,
    name: "rust_mirror_only",
    authors: ["The rust_hmm authors"],
    description: "A device on rust_hmm that only mirrors",
    license: "GPL",
}

/// Identifies this type of device by its address.
static KIND: u8 = 0;

static FILE_OPS: FileOps<MirrorFile> = FileOps::new();

/// The hardware: without memory, and without a TLB to flush.
struct Hardware;

impl Device for Hardware {
    type Memory = NoMemory;
    // Five levels support processes with addresses of more than 48 bits.
    type Format = Radix5;
    type Walker = ();
    type Flush = ();

    fn memory(&self) -> Option<&Memory<NoMemory>> {
        None
    }

    fn flush_sleeps(&self) -> bool {
        false
    }

    fn flush_start(&self, _range: PageRange) {}

    fn flush_wait(&self, (): ()) {}
}

impl sum::Hardware for Hardware {}

/// An open file.
struct MirrorFile(Sums<Hardware>);

impl OpenFile for MirrorFile {
    type Device = ();

    fn open(_device: Arc<()>) -> Result<Pin<KBox<Self>>> {
        let current = current!();
        let mm = current.mm().ok_or(EINVAL)?;
        let sums = Sums::new(rust_hmm::new_mirror!(mm, Hardware)?, &KIND)?;
        Ok(KBox::pin(Self(sums), GFP_KERNEL_ACCOUNT)?)
    }

    fn ioctl(&self, command: u32, argument: usize) -> Result<isize> {
        self.0.ioctl(command, argument)
    }
}

/// The loaded module.
struct MirrorOnly {
    _node: Pin<KBox<Node<MirrorFile>>>,
}

impl kernel::Module for MirrorOnly {
    fn init(module: &'static ThisModule) -> Result<Self> {
        let device = Arc::new((), GFP_KERNEL)?;
        let node = Node::new(c"hmm_mirror_only", &FILE_OPS, module, device);
        Ok(Self {
            _node: KBox::pin_init(node, GFP_KERNEL)?,
        })
    }
}
