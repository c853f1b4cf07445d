// SPDX-License-Identifier: GPL-2.0

//! A PCI driver for GPUs that are composed of QEMU's stock devices. In each slot, function 0 is
//! `ivshmem-plain`, whose BAR is the device memory, and function 1 is `edu`, whose DMA engine
//! copies pages and performs accesses. `tools/vm/run --hw qemu-gpu` provides two of them.
//!
//! The driver binds to both functions. Function 1 represents the GPU. Function 0 is bound so that
//! no other driver uses its memory, and so that it remains until the GPU was removed.
//!
//! The ioctls are those of the kernel's `lib/test_hmm.c` and some of the mock device's, so that the
//! same tests run.
//!
//! - `engine`: the edu: its thread, its interrupt, and the accesses that flushes wait for.
//! - `gpu`: a GPU, its memory, and its [`rust_hmm::mirror::Device`].
//! - `file`: an open file and its ioctls.
//! - `walk`, `arguments`, `uapi`, `structure`, `lock_ioctls`: of `samples/common`.

#![deny(unsafe_code)]

#[macro_use]
#[path = "../common/structure.rs"]
mod structure;

#[path = "../common/arguments.rs"]
mod arguments;
mod engine;
mod file;
mod gpu;
#[path = "../common/lock_ioctls.rs"]
mod lock_ioctls;
#[path = "../common/uapi.rs"]
mod uapi;
#[expect(
    dead_code,
    reason = "other hardware has other formats, and a bus that may refuse"
)]
#[path = "../common/walk.rs"]
mod walk;

use core::borrow::Borrow;
use gpu::Gpu;
use kernel::{
    device::Core,
    pci,
    prelude::*,
    sync::{
        atomic::{
            ordering::Full,
            AtomicFlag, //
        },
        Arc,
        Mutex, //
    }, //
};
use rust_hmm::kernel::miscdevice::{
    FileOps,
    Node, //
};

pub(crate) static FILE_OPS: FileOps<file::File> = FileOps::new();

/// Device nodes, with the names that `test_hmm` uses, and whether each is in use.
static NODES: [(&CStr, AtomicFlag); 2] = [
    (c"hmm_dmirror0", AtomicFlag::new(false)),
    (c"hmm_dmirror1", AtomicFlag::new(false)),
];

/// Ownership of the name of a node.
struct Name(&'static (&'static CStr, AtomicFlag));

impl Name {
    fn take() -> Result<Self> {
        let free = NODES.iter().find(|(_, taken)| !taken.xchg(true, Full));
        Ok(Self(free.ok_or(ENOSPC)?))
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        self.0 .1.xchg(false, Full);
    }
}

/// Driver data of a bound function. Empty for function 0.
#[pin_data]
struct Bound {
    #[pin]
    node: Mutex<Option<Pin<KBox<Node<file::File>>>>>,
    gpu: Option<Arc<Gpu>>,
    _name: Option<Name>,
}

struct Driver;

#[cfg(not(hmm_series_7_3))]
type Info<'b> = &'b ();
#[cfg(hmm_series_7_3)]
type Info<'b> = Option<&'b ()>;

/// Matches the edu by class, because the kernel crate does not define QEMU's vendor ID.
const ENGINE: pci::DeviceId = pci::DeviceId::from_class(
    pci::Class::OTHERS.as_raw(),
    pci::ClassMask::ClassSubclass.as_raw(),
);
const MEMORY: pci::DeviceId = pci::DeviceId::from_id(pci::Vendor::REDHAT_QUMRANET, IVSHMEM as u32);
/// PCI device ID of ivshmem.
const IVSHMEM: u16 = 0x1110;
#[cfg(not(hmm_series_7_3))]
kernel::pci_device_table!(TABLE, MODULE_TABLE, (), [(ENGINE, ()), (MEMORY, ())]);
#[cfg(hmm_series_7_3)]
kernel::pci_device_table!(TABLE, (), [(ENGINE, ()), (MEMORY, ())]);

fn this_module() -> &'static ThisModule {
    #[cfg(not(hmm_series_7_3))]
    return &THIS_MODULE;
    #[cfg(hmm_series_7_3)]
    return kernel::module::this_module::<LocalModule>();
}

/// Returns the value of a module parameter: Linux 7.2 returns a reference, 7.3 a copy.
pub(crate) fn number(value: impl Borrow<u64>) -> u64 {
    *value.borrow()
}

impl pci::Driver for Driver {
    type IdInfo = ();
    type Data<'bound> = Bound;
    const ID_TABLE: pci::IdTable<Self::IdInfo> = &TABLE;

    fn probe<'bound>(
        pdev: &'bound pci::Device<Core<'_>>,
        _info: Info<'bound>,
    ) -> impl PinInit<Bound, Error> + 'bound {
        pin_init::pin_init_scope(move || {
            let mut node = None;
            let mut gpu = None;
            let mut name = None;
            if engine::is_edu(pdev) {
                let taken = Name::take()?;
                let new = Gpu::new(pdev)?;
                let file = Node::new(taken.0 .0, &FILE_OPS, this_module(), new.clone());
                let file = KBox::pin_init(file, GFP_KERNEL).inspect_err(|_| _ = new.remove())?;
                dev_info!(pdev, "GPU with {} MiB\n", new.mib());
                (node, gpu, name) = (Some(file), Some(new), Some(taken));
            } else if pdev.device_id() != IVSHMEM {
                return Err(ENODEV);
            }
            Ok(try_pin_init!(Bound {
                node <- kernel::new_mutex!(node, "qemu_gpu::node"),
                gpu,
                _name: name,
            }? Error))
        })
    }

    fn unbind<'bound>(pdev: &'bound pci::Device<Core<'_>>, this: Pin<&Bound>) {
        // Open files remain valid; their ioctls return `ENODEV`.
        drop(this.node.lock().take());
        if let Some(gpu) = &this.gpu {
            if number(module_parameters::forget.value()) != 0 {
                dev_info!(pdev, "GPU forgotten\n");
                return;
            }
            let (saved, lost) = gpu.remove();
            dev_info!(pdev, "GPU gone: {saved} pages saved, {lost} lost\n");
        }
    }
}

kernel::module_pci_driver! {
    type: Driver,
    name: "qemu_gpu",
    authors: ["The rust_hmm authors"],
    description: "GPUs made of QEMU's edu and ivshmem on rust_hmm",
    license: "GPL",
    params: {
        dma_bits: u64 {
            default: 32,
            description: "Bits of address that the copy engine sends, up to 32; edu without dma_mask= has 28",
        },
        copy_delay_ms: u64 {
            default: 0,
            description: "Time that each copy of a page takes longer, in milliseconds, up to 10000; accesses go on meanwhile",
        },
        forget: u64 {
            default: 0,
            description: "For tests: unbinding leaves everything to the library: memory is not unplugged, the engine not stopped",
        },
        coherent_tables: u64 {
            default: 0,
            description: "Page tables are in coherent memory that the engine reads by DMA, instead of a part of device memory",
        },
        drop_in_callbacks: u64 {
            default: 0,
            description: "For tests: the handler drops the interrupt, and a copy drops a mapping of device memory; the engine stops",
        },
        skip_flush: u64 {
            default: 0,
            description: "For tests: this many flushes do not wait for accesses under way, so that these go to addresses that are unmapped",
        },
    },
}
