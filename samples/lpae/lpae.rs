// SPDX-License-Identifier: GPL-2.0

//! A device whose page table has the format of 64-bit Arm, which can be walked by hardware. Like
//! `samples/mirror_only`, it has no memory.
//!
//! `/dev/hmm_lpae` takes ioctls on four words: the two of `/dev/hmm_mirror_only`, and one that
//! returns the bus address of the root table. Its granule is 4 KiB. With pages of 16 KiB,
//! `/dev/hmm_lpae_16k` is the same with a granule of 16 KiB.

#![forbid(unsafe_code)]

use core::marker::PhantomData;
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
    mirror::{
        Device,
        Mirror, //
    },
    mm::{
        addr::PageRange,
        flush::wait_for_rcu_walks,
        table_memory::TableMemory, //
    },
    pgtable::{
        formats,
        Format, //
    }, //
};
use sum::Sums;

#[path = "../common/sum.rs"]
mod sum;

module! {
    type: Lpae,
    name: "rust_lpae",
    authors: ["The rust_hmm authors"],
    description: "A device on rust_hmm that walks a page table in Arm's format",
    license: "GPL",
}

/// Ioctl: returns the address of the root table.
const ROOT: u32 = 2;

/// Identifies this type of device by its address.
static KIND: u8 = 0;

static FILE_OPS: FileOps<LpaeFile<formats::Lpae>> = FileOps::new();

#[cfg(CONFIG_ARM64_16K_PAGES)]
static FILE_OPS_16K: FileOps<LpaeFile<formats::Lpae16k>> = FileOps::new();

/// The hardware: without memory. Its table is walked in RCU read-side critical sections.
struct Hardware<F>(PhantomData<fn() -> F>);

impl<F: Format> Device for Hardware<F> {
    type Memory = NoMemory;
    type Format = F;
    type Walker = ();
    type Flush = ();

    fn memory(&self) -> Option<&Memory<NoMemory>> {
        None
    }

    fn table_memory(&self) -> TableMemory {
        // The walker uses physical addresses. A driver whose device is bound to it returns the
        // device by `dma()`, has a format of DMA addresses, and omits this function: the table is
        // then in coherent memory.
        TableMemory::plain()
    }

    fn flush_start(&self, _range: PageRange) {}

    fn flush_wait(&self, (): ()) {
        // A driver for real hardware waits for the TLB invalidation here.
        wait_for_rcu_walks();
    }
}

impl<F: Format> sum::Hardware for Hardware<F> {
    fn command(mirror: &Mirror<Self>, number: u32) -> Result<[u64; 4]> {
        match number {
            ROOT => Ok([0, 0, 0, mirror.table_root().ok_or(ENODEV)?]),
            _ => Err(EINVAL),
        }
    }
}

/// An open file.
struct LpaeFile<F: Format>(Sums<Hardware<F>>);

impl<F: Format> OpenFile for LpaeFile<F> {
    type Device = ();

    fn open(_device: Arc<()>) -> Result<Pin<KBox<Self>>> {
        let current = current!();
        let mm = current.mm().ok_or(EINVAL)?;
        let mirror = rust_hmm::new_mirror!(mm, Hardware(PhantomData))?;
        let sums = Sums::new(mirror, &KIND)?;
        Ok(KBox::pin(Self(sums), GFP_KERNEL_ACCOUNT)?)
    }

    fn ioctl(&self, command: u32, argument: usize) -> Result<isize> {
        self.0.ioctl(command, argument)
    }
}

/// The loaded module.
struct Lpae {
    _node: Pin<KBox<Node<LpaeFile<formats::Lpae>>>>,
    #[cfg(CONFIG_ARM64_16K_PAGES)]
    _node_16k: Pin<KBox<Node<LpaeFile<formats::Lpae16k>>>>,
}

impl kernel::Module for Lpae {
    fn init(module: &'static ThisModule) -> Result<Self> {
        let device = Arc::new((), GFP_KERNEL)?;
        #[cfg(CONFIG_ARM64_16K_PAGES)]
        let node_16k = Node::new(c"hmm_lpae_16k", &FILE_OPS_16K, module, device.clone());
        let node = Node::new(c"hmm_lpae", &FILE_OPS, module, device);
        Ok(Self {
            _node: KBox::pin_init(node, GFP_KERNEL)?,
            #[cfg(CONFIG_ARM64_16K_PAGES)]
            _node_16k: KBox::pin_init(node_16k, GFP_KERNEL)?,
        })
    }
}
