// SPDX-License-Identifier: GPL-2.0

//! A device that walks a page table of the kernel's own: ARM64 LPAE, by `kernel::iommu::pgtable`, as the GPUs of Arm. It
//! only mirrors, as `samples/mirror_only`.
//!
//! `/dev/hmm_lpae` takes ioctls on four words: the two of `/dev/hmm_mirror_only`, and one that asks where a walk ends.

#![forbid(unsafe_code)]

use kernel::{faux, prelude::*, sync::Arc};
use rust_hmm::{
    io_pgtable::{Calls, LpaeTable},
    memory::{CopyJob, Memory, MemoryOps},
    mirror::{Device, TableGuard},
    mm::addr::PageRange,
    node::{FileOps, Node, OpenFile},
    pgtable::Radix4,
};
use sum::Sums;

#[path = "../mirror_only/sum.rs"]
mod sum;

module! {
    type: Lpae,
    name: "rust_lpae",
    authors: ["The rust_hmm authors"],
    description: "A device on rust_hmm with a page table of the kernel's own",
    license: "GPL",
}

/// The physical address at which a walk of the first page ends, 0: none. The other words are how often the table's
/// lock was taken, and the calls that mapped pages in a row and that took such out.
const WALK: u32 = 2;

/// Its address names this type of device.
static KIND: u8 = 0;

static FILE_OPS: FileOps<LpaeFile> = FileOps::new();

/// The hardware: without memory, and without a TLB to flush. It reads what its page table says.
struct Hardware {
    table: Pin<KBox<LpaeTable>>,
}

impl MemoryOps for Hardware {
    fn copy(&self, job: CopyJob) {
        // There is no memory to copy to.
        job.complete(Err(EINVAL));
    }
}

impl Device for Hardware {
    type Memory = Self;
    type Format = Radix4;
    type Walker = ();
    type Flush = ();

    fn memory(&self) -> Option<&Memory<Self>> {
        None
    }

    fn flush_sleeps(&self) -> bool {
        false
    }

    fn flush_start(&self, range: PageRange) {
        // Then the TLB would be told.
        self.table.unmap(range);
    }

    fn flush_wait(&self, (): ()) {}
}

// It has no memory of its own: where that would be does not matter.
impl sum::Hardware for Hardware {
    fn present(&self, table: &TableGuard<'_, Self>, range: PageRange) -> Result<usize> {
        self.table.present(table, range, |_| 0)
    }

    fn follow(&self, table: &TableGuard<'_, Self>, range: PageRange) -> Result {
        self.table.follow(table, range, |_| 0).map(|_pages| ())
    }

    fn command(&self, number: u32, addr: usize) -> Result<[u64; 4]> {
        if number != WALK {
            return Err(EINVAL);
        }
        let Calls {
            locks,
            maps,
            unmaps,
        } = self.table.calls();
        let found = self.table.physical(addr).unwrap_or(0);
        Ok([locks, maps, unmaps, found])
    }
}

/// An open file.
struct LpaeFile(Sums<Hardware>);

impl OpenFile for LpaeFile {
    type Device = faux::Registration;

    fn open(device: Arc<faux::Registration>) -> Result<Pin<KBox<Self>>> {
        let current = current!();
        let mm = current.mm().ok_or(EINVAL)?;
        let hardware = Hardware {
            table: LpaeTable::new(device)?,
        };
        let sums = Sums::new(rust_hmm::new_mirror!(mm, hardware)?, &KIND)?;
        Ok(KBox::pin(Self(sums), GFP_KERNEL_ACCOUNT)?)
    }

    fn ioctl(&self, command: u32, argument: usize) -> Result<isize> {
        self.0.ioctl(command, argument)
    }
}

/// The loaded module.
struct Lpae {
    _node: Pin<KBox<Node<LpaeFile>>>,
}

impl kernel::Module for Lpae {
    fn init(module: &'static ThisModule) -> Result<Self> {
        let device = Arc::new(faux::Registration::new(c"hmm_lpae", None)?, GFP_KERNEL)?;
        let node = Node::new(c"hmm_lpae", &FILE_OPS, module, device);
        Ok(Self {
            _node: KBox::pin_init(node, GFP_KERNEL)?,
        })
    }
}
