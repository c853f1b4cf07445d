// SPDX-License-Identifier: GPL-2.0

//! The smallest useful driver: a device with 16 MiB of memory of its own, which adds to words of the process
//! that opens `/dev/rust_template`. Copy it, and replace what is marked HARDWARE.
//!
//! The guide to it is `Documentation/first-device.rst`.

// A driver needs none.
#![forbid(unsafe_code)]

use kernel::{
    ioctl,
    page::{PAGE_MASK, PAGE_SIZE},
    prelude::*,
    sync::Arc,
    uaccess::UserSlice, //
};
use rust_hmm::{
    memory::{Copy, CopyJob, Memory, MemoryOps},
    mirror::{Device, Mirror, Place, PlaceMut},
    mm::{
        addr::PageRange,
        device_pages::{DeviceRange, Kind},
        page::SharedBytes,
        range_fault::Access,
    },
    node::{FileOps, Node, OpenFile},
    pgtable::Radix4,
};

// Step 1: the memory.

/// Pages of 4 KiB that the device has.
const PAGES: usize = 4096;

/// HARDWARE: the memory on the card, here a block of kernel memory.
struct Vram(SharedBytes);

/// Where device pages begin in the card's memory, in bytes.
fn offset(pages: &DeviceRange) -> usize {
    pages.first * PAGE_SIZE
}

impl Vram {
    /// HARDWARE: what a copy engine does.
    fn transfer(&self, copy: &Copy<'_>) -> Result {
        match (&copy.source, &copy.destination) {
            // To the device. Without a source it was a hole: the page must read as zeros.
            (None, PlaceMut::Device(to)) => self.0.clear(offset(to), to.count * PAGE_SIZE),
            (Some(Place::Cpu(from)), PlaceMut::Device(to)) => self.0.load(offset(to), from),
            // Back.
            (Some(Place::Device(from)), PlaceMut::Cpu(to)) => self.0.store(offset(from), to),
            // Not asked for: it has one memory, which the CPU cannot address.
            _ => Err(EINVAL),
        }
    }
}

impl MemoryOps for Vram {
    // Called for each page, or huge page, of a migration; the migration waits until the job is completed. It may
    // be queued and completed later, by another thread.
    fn copy(&self, job: CopyJob) {
        let result = self.transfer(&job.copy());
        // After an error the page stays where it is.
        job.complete(result);
    }
}

// Step 2: the device.

/// The card: what all who use it share.
#[pin_data]
struct Card {
    // Gone with the last `Arc<Card>`: then all pages that are still in there go back to their processes.
    #[pin]
    memory: Memory<Vram>,
}

impl Card {
    fn new() -> Result<Arc<Self>> {
        let vram = Vram(SharedBytes::new(PAGES * PAGE_SIZE)?);
        Arc::pin_init(
            try_pin_init!(Self {
                memory <- Memory::new(vram, Kind::Private, PAGES),
            }? Error),
            GFP_KERNEL,
        )
    }
}

/// The card as one mirror sees it.
struct View(Arc<Card>);

impl Device for View {
    type Memory = Vram;
    // HARDWARE: how its page table looks.
    type Format = Radix4;
    // No engine walks the page table by itself.
    type Walker = ();
    // What `flush_start` hands to `flush_wait`.
    type Flush = ();

    fn memory(&self) -> Option<&Memory<Vram>> {
        Some(&self.0.memory)
    }

    // HARDWARE: tell the TLB to forget `_range`. This device has none: each access asks the page table.
    fn flush_start(&self, _range: PageRange) {}

    // HARDWARE: wait until it has.
    fn flush_wait(&self, (): ()) {}

    // So the OOM reaper need not skip what is mirrored.
    fn flush_sleeps(&self) -> bool {
        false
    }
}

// Step 3: the work.

/// Device faults of one access. The page may be taken away again before it is used, each time.
const TRIES: usize = 100;

/// HARDWARE: adds `value` to the word at `addr` of the process, atomically. Returns what it was.
///
/// # Errors
///
/// Those of [`Mirror::fault`]; `EINVAL` if the address is no multiple of 8; `EBUSY`.
fn add(mirror: &Mirror<View>, addr: usize, value: u64) -> Result<u64> {
    let page = PageRange::from_pages(addr & PAGE_MASK, 1)?;
    let within = addr % PAGE_SIZE;
    for _ in 0..TRIES {
        {
            // While it is held, what entries name stays. User memory must not be touched under it.
            let table = mirror.lock_table()?;
            match table.writable(page.start()) {
                Some(PlaceMut::Cpu(memory)) => return memory.fetch_add_u64(within, value),
                Some(PlaceMut::Device(memory)) => {
                    let vram = &mirror.device().0.memory.driver().0;
                    return vram.fetch_add_u64(offset(&memory) + within, value);
                }
                None => {}
            }
        }
        // A device fault: as if a CPU wrote there.
        mirror.fault(page, Access::Write)?;
    }
    Err(EBUSY)
}

// Step 4: the interface.

/// Two words: an address, and what to add to the word there.
const ADD: u32 = ioctl::_IOW::<[u64; 2]>('T' as u32, 0);
/// Two words: an address and a number of pages, which move to the device. Returns how many did.
const TO_DEVICE: u32 = ioctl::_IOW::<[u64; 2]>('T' as u32, 1);
/// The same, back.
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
        // Some pages may have stayed: the outcome says how many, and why.
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

/// In a static, since files may be open when the node has gone.
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
