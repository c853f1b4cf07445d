// SPDX-License-Identifier: GPL-2.0

//! A mock GPU behind the ioctls of the kernel's `lib/test_hmm.c`.
//!
//! `/dev/hmm_dmirror0` and `1` have private memory; `2` and `3` have coherent memory, and exist
//! when the module is given reserved physical memory for them.
//!
//! - `uapi`: commands and structures as user space sees them.
//! - `vram`: the memory of a device.
//! - `device`: one device.
//! - `file`: one open file, which is one mirror.
//! - `transfer`: reading and writing through the mirror.

#![deny(unsafe_code)]

mod device;
mod file;
mod transfer;
mod uapi;
mod vram;

use core::borrow::Borrow;
use device::MockDevice;
use file::MirrorFile;
use kernel::prelude::*;
use rust_hmm::{
    mm::device_pages::Kind,
    node::{FileOps, Node},
};

module! {
    type: Dmirror,
    name: "rust_dmirror",
    authors: ["The rust_hmm authors"],
    description: "Mock GPU on rust_hmm, with the interface of test_hmm",
    license: "GPL",
    params: {
        spm_addr_dev0: u64 {
            default: 0,
            description: "Physical start of 256 MiB for a coherent device (set both)",
        },
        spm_addr_dev1: u64 {
            default: 0,
            description: "Physical start of 256 MiB for a coherent device (set both)",
        },
        vram_mib: u64 {
            default: 8192,
            description: "Most memory of a private device, in MiB, up to 32768",
        },
    },
}

static FILE_OPS: FileOps<MirrorFile> = FileOps::new();

/// The loaded module: its nodes.
struct Dmirror {
    _nodes: KVec<Pin<KBox<Node<MirrorFile>>>>,
}

/// The value of a parameter, which 7.2 lends and 7.3 copies.
fn number(value: impl Borrow<u64>) -> u64 {
    *value.borrow()
}

impl kernel::Module for Dmirror {
    fn init(module: &'static ThisModule) -> Result<Self> {
        let vram = number(module_parameters::vram_mib.value());
        let spm = [
            number(module_parameters::spm_addr_dev0.value()),
            number(module_parameters::spm_addr_dev1.value()),
        ];
        let private = (c"hmm_dmirror0", c"hmm_dmirror1");
        // As in test_hmm, the first coherent device has the second address.
        let coherent = [(c"hmm_dmirror2", spm[1]), (c"hmm_dmirror3", spm[0])];

        let mut nodes = KVec::new();
        let mut add = |name: &'static CStr, kind: Kind, mib: u64| -> Result {
            let device = MockDevice::new(kind, mib)?;
            let node = KBox::pin_init(Node::new(name, &FILE_OPS, module, device), GFP_KERNEL)?;
            nodes.push(node, GFP_KERNEL)?;
            Ok(())
        };
        add(private.0, Kind::Private, vram)?;
        add(private.1, Kind::Private, vram)?;
        if spm[0] != 0 && spm[1] != 0 {
            for (name, start) in coherent {
                add(name, Kind::Coherent { start }, 256)?;
            }
        }
        Ok(Self { _nodes: nodes })
    }
}
