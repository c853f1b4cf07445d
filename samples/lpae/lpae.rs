// SPDX-License-Identifier: GPL-2.0

//! A device that walks a page table of the kernel's own: ARM64 LPAE, by `kernel::iommu::pgtable`, as the GPUs of Arm. It
//! only mirrors, as `samples/mirror_only`.
//!
//! `/dev/hmm_lpae` takes ioctls on four words: the two of `/dev/hmm_mirror_only`, and one that asks where a walk ends.

#![forbid(unsafe_code)]

use kernel::{
    faux,
    ioctl,
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc,
    time::Delta,
    uaccess::UserSlice, //
};
use rust_hmm::{
    io_pgtable::{Calls, LpaeTable},
    memory::{CopyJob, Memory, MemoryOps},
    mirror::{Device, Mirror, Place},
    mm::{addr::PageRange, notifier::Cookie, range_fault::Access, sync_file::SyncFile},
    node::{FileOps, Node, OpenFile},
    pgtable::Radix4,
    queue::{HasMirror, Queue, Stop},
};

module! {
    type: Lpae,
    name: "rust_lpae",
    authors: ["The rust_hmm authors"],
    description: "A device on rust_hmm with a page table of the kernel's own",
    license: "GPL",
}

/// Sum of the words of a range.
const SUM: u32 = 0;
/// The same, after a sync file.
const SUM_AFTER: u32 = 1;
/// The physical address at which a walk of the first page ends, 0: none. The other words are how often the table's
/// lock was taken, and the calls that mapped pages in a row and that took such out.
const WALK: u32 = 2;

/// Device faults in a row without progress.
const TRIES: usize = 100;

/// How long a sum may take.
const PATIENCE: Delta = Delta::from_secs(60);

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

/// What a file and its operations share.
struct Client {
    mirror: Mirror<Hardware>,
}

impl HasMirror for Client {
    type Device = Hardware;

    fn mirror(&self) -> &Mirror<Hardware> {
        &self.mirror
    }
}

impl Client {
    /// Adds up what can be read of `range` without a fault. Returns the pages and the sum.
    fn add(&self, range: PageRange, page: &mut [u8]) -> Result<(usize, u64)> {
        let (mut pages, mut sum) = (0, 0u64);
        let hardware = &self.mirror.device().table;
        let table = self.mirror.lock_table()?;
        // It has no memory of its own.
        let walked = hardware.present(&table, range, |_| 0)?;
        while pages < walked {
            let Some(Place::Cpu(contents)) = table.readable(range.address(pages)) else {
                break;
            };
            contents.read(0, page)?;
            for chunk in page.chunks_exact(size_of::<u64>()) {
                let mut word = [0; size_of::<u64>()];
                word.copy_from_slice(chunk);
                sum = sum.wrapping_add(u64::from_ne_bytes(word));
            }
            pages += 1;
        }
        Ok((pages, sum))
    }

    /// The sum of the words of `range`, as the device reads them.
    fn sum(&self, range: PageRange, stop: &Stop) -> Result<u64> {
        let mut page = KVec::from_elem(0, PAGE_SIZE, GFP_KERNEL)?;
        let (mut total, mut tries) = (0u64, 0);
        let mut rest = Some(range);
        while let Some(left) = rest {
            stop.check()?;
            let (pages, sum) = self.add(left, &mut page)?;
            total = total.wrapping_add(sum);
            tries = if pages == 0 { tries + 1 } else { 0 };
            if tries > TRIES {
                return Err(EBUSY);
            }
            rest = left.from_address(left.start() + pages * PAGE_SIZE);
            if let Some(left) = rest.and_then(|left| left.pmd_pieces().next()) {
                self.mirror.fault(left, Access::Read)?;
                let table = self.mirror.lock_table()?;
                // It has no memory of its own.
                let hardware = &self.mirror.device().table;
                hardware.follow(&table, left, |_| 0)?;
            }
        }
        Ok(total)
    }
}

/// An open file. Its argument is four words: address, pages, sync file, and out: the sum.
struct LpaeFile {
    // Before `client`, which its operations use.
    queue: Queue,
    client: Arc<Client>,
}

impl OpenFile for LpaeFile {
    type Device = faux::Registration;

    fn open(device: Arc<faux::Registration>) -> Result<Pin<KBox<Self>>> {
        let current = current!();
        let mm = current.mm().ok_or(EINVAL)?;
        let hardware = Hardware {
            table: LpaeTable::new(device)?,
        };
        let mirror = rust_hmm::new_mirror!(mm, hardware)?;
        let client = Arc::new(Client { mirror }, GFP_KERNEL_ACCOUNT)?;
        let queue = Queue::new(Cookie::of(&KIND), 16)?;
        Ok(KBox::pin(Self { queue, client }, GFP_KERNEL_ACCOUNT)?)
    }

    fn ioctl(&self, command: u32, argument: usize) -> Result<isize> {
        let words = 4 * size_of::<u64>();
        let (mut input, mut output) =
            UserSlice::new(UserPtr::from_addr(argument), words).reader_writer();
        let mut next = || -> Result<usize> { Ok(usize::try_from(input.read::<u64>()?)?) };
        let range = PageRange::from_pages(next()?, next()?)?;
        let after = next()?;
        let mut fences = KVec::new();
        match ioctl::_IOC_NR(command) {
            SUM if after == 0 => {}
            WALK => {
                let table = &self.client.mirror.device().table;
                let Calls {
                    locks,
                    maps,
                    unmaps,
                } = table.calls();
                let found = table.physical(range.start()).unwrap_or(0);
                for word in [locks, maps, unmaps, found] {
                    output.write(&word)?;
                }
                return Ok(0);
            }
            SUM_AFTER => fences.push(SyncFile::fence(i32::try_from(after)?)?, GFP_KERNEL)?,
            _ => return Err(EINVAL),
        }
        let sum = Arc::new(kernel::sync::atomic::Atomic::new(0u64), GFP_KERNEL)?;
        let (client, result) = (self.client.clone(), sum.clone());
        let done = self.queue.submit(fences, move |stop| {
            let sum = client.sum(range, stop)?;
            result.store(sum, kernel::sync::atomic::ordering::Relaxed);
            Ok(())
        })?;
        done.synchronize(Some(PATIENCE))?;
        for word in [range.start() as u64, range.pages() as u64, after as u64] {
            output.write(&word)?;
        }
        output.write(&sum.load(kernel::sync::atomic::ordering::Relaxed))?;
        Ok(0)
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
