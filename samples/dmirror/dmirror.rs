// SPDX-License-Identifier: GPL-2.0

//! A mock GPU with the ioctls of the kernel's `lib/test_hmm.c`.
//!
//! `/dev/hmm_dmirror0` and `1` have private memory. `2` and `3` have coherent memory, and exist if
//! the module parameters name reserved physical memory for them. With `tiles=2` the two private
//! memories are tiles of one device, and so are the coherent ones.
//!
//! `hardware` models the GPU itself: engines, commands, faults, counters, memory and the copy
//! engine. It imports nothing from the other files, which are the driver.
//!
//! Driver:
//! - `device`: a device; `settings`: its parameters.
//! - `access`: memory access of engines; `format`: page table formats; `tables`: their memory.
//! - `vram`: device memory; `page_allocator`: its page allocator; `dma`: bus addresses of copies.
//! - `faults`: threads that serve the fault buffer.
//!
//! User interface:
//! - `file`: an open file; `client`: its state, shared with its commands.
//! - `uapi`: the ioctls of `test_hmm`; `transfer`: READ and WRITE.
//! - `queues`: queues and fences of a file; `queue_ioctls`: their ioctls.
//! - `blit`: copies of locked memory, with DMA fences.
//! - `locked_window`: access of engines to locked memory; `lock_ioctls`: ioctls of locked memory.
//! - `streams`: event streams, read from the file; `event_ioctls`: the ioctl that selects events.
//! - `connect`: migration between two devices; `alloc`: managed allocations.
//! - `placement`: ioctls for attributes, policies and device memory.
//! - `extension`: the other ioctls; `structure`: ioctl arguments.

#![deny(unsafe_code)]

#[macro_use]
#[path = "../common/structure.rs"]
mod structure;

mod access;
mod alloc;
#[path = "../common/arguments.rs"]
mod arguments;
mod blit;
mod client;
mod connect;
mod device;
mod dma;
mod event_ioctls;
mod extension;
mod faults;
mod file;
mod format;
mod hardware;
#[path = "../common/lock_ioctls.rs"]
mod lock_ioctls;
mod locked_window;
mod page_allocator;
mod placement;
mod queue_ioctls;
mod queues;
mod settings;
mod streams;
mod tables;
mod transfer;
#[path = "../common/uapi.rs"]
mod uapi;
mod vram;

use core::borrow::Borrow;
use device::{
    Agents,
    MockDevice,
    Tile, //
};
use file::MirrorFile;
#[cfg(CONFIG_PCI)]
use kernel::{
    driver::Registration,
    pci, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rust_hmm::{
    kernel::miscdevice::{
        FileOps,
        Node, //
    },
    mm::{
        device_pages::{
            MemoryKind,
            Owner, //
        },
        dma::DmaDevice, //
    }, //
};
use settings::Fixed;
#[cfg(CONFIG_PCI)]
use tables::BarDriver;
use tables::{
    Place,
    Tables, //
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
        tiles: u64 {
            default: 1,
            description: "2: the private devices are the two tiles of one device, each with a node of its own, and so are the coherent ones",
        },
        engines: u64 {
            default: 2,
            description: "Engines of a device, 1 to 64",
        },
        tlb_entries: u64 {
            default: 256,
            description: "Entries of an engine's TLB, up to 1048576",
        },
        copy_threads: u64 {
            default: 1,
            description: "Threads of a device's copy engine, up to 16; 0 copies at once",
        },
        copy_delay_us: u64 {
            default: 0,
            description: "Delay of each copy in microseconds, up to 1000000",
        },
        policy: u64 {
            default: 0,
            description: "Fault policy of engines: 0 none, no page migrates; 1 the default policy; 2 one page per fault",
        },
        format: u64 {
            default: 0,
            description: "Page tables of engines: 0 as x86-64, 1 Arm LPAE, 2 AMD generation 9, 3 none: they use the library's, 4 Arm LPAE with break-before-make; if built for it: 5 as x86-64 with five levels, 6 Arm LPAE with pages of 16 KiB",
        },
        tables: u64 {
            default: 0,
            description: "Memory of page tables: 0 pages of the kernel, 1 coherent DMA memory, 2 device memory: the BAR of QEMU's ivshmem-plain",
        },
        own_alloc: u64 {
            default: 0,
            description: "1: the device chooses its pages itself",
        },
        prefetch_threshold: u64 {
            default: 51,
            description: "Default policy: a part of 2 MiB of which more per cent are used is migrated as a whole, 1 to 101 (never)",
        },
        prefetch_ahead: u64 {
            default: 8,
            description: "Default policy: memory migrated ahead of a stream, in units of 2 MiB, up to 1024",
        },
        thrash_count: u64 {
            default: 3,
            description: "Default policy: times that a page bounces before it stays where it is, 1 to 1000",
        },
        thrash_lapse_ms: u64 {
            default: 500,
            description: "Default policy: time within which a bounce counts, up to 60000",
        },
        thrash_pin_ms: u64 {
            default: 500,
            description: "Default policy: time for which a page stays, up to 60000",
        },
        thrash_delay_ms: u64 {
            default: 2,
            description: "Default policy: time for which a device waits before it takes a page that bounces, up to 60000",
        },
        copy_fail: u64 {
            default: 18446744073709551615,
            description: "Copies that succeed before one fails (default: none fails)",
        },
    },
}

pub(crate) static FILE_OPS: FileOps<MirrorFile> = FileOps::new();

/// The devices.
type Nodes = KVec<Pin<KBox<Node<MirrorFile>>>>;

/// The loaded module.
enum Dmirror {
    Nodes {
        _nodes: Nodes,
    },
    /// The devices exist while a function is bound.
    #[cfg(CONFIG_PCI)]
    Driver {
        _driver: Pin<KBox<Registration<pci::Adapter<BarDriver>>>>,
    },
}

/// Returns the value of a module parameter: Linux 7.2 returns a reference, 7.3 a copy.
fn number(value: impl Borrow<u64>) -> u64 {
    *value.borrow()
}

/// The fixed parameters of devices.
fn fixed() -> Result<Fixed> {
    Fixed::new(
        number(module_parameters::engines.value()),
        number(module_parameters::tlb_entries.value()),
        number(module_parameters::copy_threads.value()),
        number(module_parameters::copy_delay_us.value()),
        number(module_parameters::copy_fail.value()),
    )?
    .with_format(
        number(module_parameters::format.value()),
        number(module_parameters::tables.value()),
    )?
    .with_policy(
        number(module_parameters::policy.value()),
        number(module_parameters::own_alloc.value()),
        [
            number(module_parameters::prefetch_threshold.value()),
            number(module_parameters::prefetch_ahead.value()),
            number(module_parameters::thrash_count.value()),
            number(module_parameters::thrash_lapse_ms.value()),
            number(module_parameters::thrash_pin_ms.value()),
            number(module_parameters::thrash_delay_ms.value()),
        ],
    )
}

/// Creates the devices. Their page tables are where `tables` says.
fn nodes(module: &'static ThisModule, tables: impl Fn(&Arc<DmaDevice>) -> Tables) -> Result<Nodes> {
    let fixed = fixed()?;
    let vram = number(module_parameters::vram_mib.value());
    let spm = [
        number(module_parameters::spm_addr_dev0.value()),
        number(module_parameters::spm_addr_dev1.value()),
    ];
    let private = (c"hmm_dmirror0", c"hmm_dmirror1");
    // As in test_hmm, the first coherent device has the second address.
    let coherent = [(c"hmm_dmirror2", spm[1]), (c"hmm_dmirror3", spm[0])];

    let mut agents = KVec::new();
    for name in [private.0, private.1, coherent[0].0, coherent[1].0] {
        agents.push(DmaDevice::software(name)?, GFP_KERNEL)?;
    }
    let all = Arc::new(agents, GFP_KERNEL)?;
    let mut nodes = KVec::new();
    let mut add = |name: &'static CStr, tile: Tile, others: &[&Tile]| -> Result {
        let mut tiles = KVec::new();
        for other in others {
            tiles.push(other.memory.clone(), GFP_KERNEL)?;
        }
        let agents = Agents {
            all: all.clone(),
            index: nodes.len(),
        };
        let tables = tables(&agents.own()?);
        let device = MockDevice::new(tile, tiles, &fixed, agents, tables)?;
        let node = KBox::pin_init(Node::new(name, &FILE_OPS, module, device), GFP_KERNEL)?;
        nodes.push(node, GFP_KERNEL)?;
        Ok(())
    };
    let tiles = number(module_parameters::tiles.value());
    if !(1..=2).contains(&tiles) {
        pr_err!("a parameter is out of range\n");
        return Err(EINVAL);
    }
    // Add two devices, or two tiles of one device.
    let mut add_pair = |names: [&'static CStr; 2], kinds: [MemoryKind; 2], mib: u64| -> Result {
        let owner = match tiles {
            1 => None,
            _ => Some(Owner::new()?),
        };
        let one = Tile::new(owner.as_ref(), kinds[0], mib, &fixed)?;
        let two = Tile::new(owner.as_ref(), kinds[1], mib, &fixed)?;
        if owner.is_none() {
            add(names[0], one, &[])?;
            return add(names[1], two, &[]);
        }
        add(names[0], one.clone(), &[&two])?;
        add(names[1], two, &[&one])
    };
    add_pair([private.0, private.1], [MemoryKind::Private; 2], vram)?;
    if spm[0] != 0 && spm[1] != 0 {
        let kinds = coherent.map(|(_, start)| MemoryKind::Coherent { start });
        add_pair(coherent.map(|(name, _)| name), kinds, 256)?;
    }
    Ok(nodes)
}

impl kernel::Module for Dmirror {
    fn init(module: &'static ThisModule) -> Result<Self> {
        let place = fixed()?.tables;
        #[cfg(CONFIG_PCI)]
        if place == Place::Vram {
            let driver = Registration::new(<Self as kernel::ModuleMetadata>::NAME, module);
            return Ok(Self::Driver {
                _driver: KBox::pin_init(driver, GFP_KERNEL)?,
            });
        }
        let nodes = nodes(module, |agent| match place {
            Place::Coherent => Tables::Coherent(agent.clone()),
            Place::Plain | Place::Vram => Tables::Plain,
        })?;
        Ok(Self::Nodes { _nodes: nodes })
    }
}
