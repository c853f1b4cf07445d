// SPDX-License-Identifier: GPL-2.0

//! The smallest useful driver: a device with 16 MiB of memory, which adds to words of the process
//! that opens `/dev/rust_template`. Copy it, and replace the parts marked HARDWARE.
//!
//! The guide is `Documentation/first-device.rst`.

// Safe code suffices for a driver.
#![forbid(unsafe_code)]

use kernel::{
    ioctl,
    page::{
        PAGE_MASK,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::Arc,
    uaccess::UserSlice, //
};
use rust_hmm::{
    kernel::miscdevice::{
        FileOps,
        Node,
        OpenFile, //
    },
    memory::{
        CopyDesc,
        CopyJob,
        Memory,
        MemoryOps, //
    },
    mirror::{
        Device,
        Mirror,
        PageMemory,
        PageMemoryMut, //
    },
    mm::{
        addr::PageRange,
        device_pages::{
            DeviceRange,
            MemoryKind, //
        },
        folio::SharedBytes,
        range_fault::Access, //
    },
    pgtable::Radix4, //
};

// Step 1: the memory.

/// Number of pages of device memory.
const MEMORY_PAGES: usize = 4096;

/// HARDWARE: the memory on the card, simulated by kernel memory.
struct Vram(SharedBytes);

/// Returns the offset of device pages in the card's memory, in bytes.
fn offset(pages: &DeviceRange) -> usize {
    pages.first * PAGE_SIZE
}

impl Vram {
    /// HARDWARE: one transfer of a copy engine.
    fn transfer(&self, copy: &CopyDesc<'_>) -> Result {
        match (&copy.source, &copy.destination) {
            // To the device. A hole has no source: the device page must read as zeros.
            (None, PageMemoryMut::Device(to)) => self.0.clear(offset(to), to.count * PAGE_SIZE),
            (Some(PageMemory::Cpu(from)), PageMemoryMut::Device(to)) => {
                self.0.load(offset(to), from)
            }
            // To system memory.
            (Some(PageMemory::Device(from)), PageMemoryMut::Cpu(to)) => {
                self.0.store(offset(from), to)
            }
            // Does not occur: the device has one memory, which the CPU cannot address.
            _ => Err(EINVAL),
        }
    }
}

impl MemoryOps for Vram {
    // Called for each page or huge page of a migration. The migration waits until the job is
    // completed. A driver may queue the job and complete it later, in another thread.
    fn copy(&self, job: CopyJob) {
        let result = self.transfer(&job.copy());
        // After an error the page is not migrated.
        job.complete(result);
    }
}

// Step 2: the device.

/// The card, shared by all open files.
#[pin_data]
struct Card {
    // Dropped with the last `Arc<Card>`, which migrates all remaining pages back to their
    // processes.
    #[pin]
    memory: Memory<Vram>,
}

impl Card {
    fn new() -> Result<Arc<Self>> {
        let vram = Vram(SharedBytes::new(MEMORY_PAGES * PAGE_SIZE)?);
        Arc::pin_init(
            try_pin_init!(Self {
                memory <- Memory::new(vram, MemoryKind::Private, MEMORY_PAGES),
            }? Error),
            GFP_KERNEL,
        )
    }
}

/// The card's side of one mirror.
struct View(Arc<Card>);

impl Device for View {
    type Memory = Vram;
    // HARDWARE: the format of its page table.
    type Format = Radix4;
    // No hardware walks the page table concurrently.
    type Walker = ();
    // Passed from `flush_start()` to `flush_wait()`.
    type Flush = ();

    fn memory(&self) -> Option<&Memory<Vram>> {
        Some(&self.0.memory)
    }

    // HARDWARE: start to invalidate the TLB for `_range`. This device has none: every access looks
    // up the page table.
    fn flush_start(&self, _range: PageRange) {}

    // HARDWARE: wait until the invalidation is complete.
    fn flush_wait(&self, (): ()) {}

    // The flush does not sleep, so the OOM reaper can unmap mirrored ranges.
    fn flush_sleeps(&self) -> bool {
        false
    }
}

// Step 3: the work.

/// Maximum number of device faults of one access. A concurrent invalidation may remove the entry
/// before it is used, each time.
const ACCESS_MAX_FAULTS: usize = 100;

/// HARDWARE: atomically adds `value` to the word at `addr` of the process. Returns the previous
/// value.
///
/// # Errors
///
/// - `EINVAL`: `addr` is not a multiple of 8.
/// - `EBUSY`: the entry was invalidated before each of the attempts.
/// - Errors of [`Mirror::fault`]
fn add(mirror: &Mirror<View>, addr: usize, value: u64) -> Result<u64> {
    let page = PageRange::from_pages(addr & PAGE_MASK, 1)?;
    let within = addr % PAGE_SIZE;
    for _ in 0..ACCESS_MAX_FAULTS {
        {
            // The table lock keeps entries and their pages stable. User memory must not be accessed
            // with it held.
            let table = mirror.lock_table()?;
            match table.writable(page.start()) {
                Some(PageMemoryMut::Cpu(memory)) => return memory.fetch_add_u64(within, value),
                Some(PageMemoryMut::Device(memory)) => {
                    let vram = &mirror.device().0.memory.driver().0;
                    return vram.fetch_add_u64(offset(&memory) + within, value);
                }
                None => {}
            }
        }
        // A device fault: handled like a write of a CPU.
        mirror.fault(page, Access::Write)?;
    }
    Err(EBUSY)
}

// Step 4: the interface.

/// Two words: an address, and the number to add to the word there.
const ADD: u32 = ioctl::_IOW::<[u64; 2]>('T' as u32, 0);
/// Two words: the address and number of pages to migrate to the device. Returns the number of pages
/// migrated.
const TO_DEVICE: u32 = ioctl::_IOW::<[u64; 2]>('T' as u32, 1);
/// The same, to system memory.
const TO_SYSTEM: u32 = ioctl::_IOW::<[u64; 2]>('T' as u32, 2);

/// An open file: the mirror of the process that opened it.
struct File {
    mirror: Mirror<View>,
}

impl OpenFile for File {
    type Device = Card;

    fn open(card: Arc<Card>) -> Result<Pin<KBox<Self>>> {
        let current = current!();
        // A kernel thread has no address space.
        let mm = current.mm().ok_or(EINVAL)?;
        let mirror = rust_hmm::new_mirror!(mm, View(card))?;
        Ok(KBox::pin(Self { mirror }, GFP_KERNEL_ACCOUNT)?)
    }

    fn ioctl(&self, command: u32, argument: usize) -> Result<isize> {
        let user = UserSlice::new(UserPtr::from_addr(argument), size_of::<[u64; 2]>());
        let [addr, value] = user.reader().read::<[u64; 2]>()?;
        let addr = usize::try_from(addr)?;
        if command == ADD {
            add(&self.mirror, addr, value)?;
            return Ok(0);
        }
        let range = PageRange::from_pages(addr, usize::try_from(value)?)?;
        let outcome = match command {
            TO_DEVICE => self.mirror.migrate(range).to_device()?,
            TO_SYSTEM => self.mirror.migrate(range).to_system()?,
            _ => return Err(ENOTTY),
        };
        // Migration is best effort: the outcome also reports the pages that were not migrated, and
        // why.
        Ok(isize::try_from(outcome.moved)?)
    }
}

// Step 5: the module.

module! {
    type: Template,
    name: "rust_template",
    authors: ["The rust_hmm authors"],
    description: "The smallest useful driver on rust_hmm",
    license: "GPL",
}

/// In a static, because open files may outlive the device node.
static FILE_OPS: FileOps<File> = FileOps::new();

/// The loaded module.
struct Template {
    _node: Pin<KBox<Node<File>>>,
}

impl kernel::Module for Template {
    fn init(module: &'static ThisModule) -> Result<Self> {
        let node = Node::new(c"rust_template", &FILE_OPS, module, Card::new()?);
        Ok(Self {
            _node: KBox::pin_init(node, GFP_KERNEL)?,
        })
    }
}
