// SPDX-License-Identifier: GPL-2.0

//! A device with a copy engine, engines that walk its page table, and a page table format of its
//! own. `/dev/rust_engines` has the ioctls of `samples/template`. The guide is
//! `Documentation/engines.rst`.

#![forbid(unsafe_code)]

mod copier;
mod format;
mod tlb;

use copier::Copier;
use format::Pte;
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
    memory::Memory,
    mirror::{
        Device,
        Mirror,
        PageMemoryMut,
        TranslateError,
        Walkers, //
    },
    mm::{
        addr::PageRange,
        device_pages::MemoryKind,
        range_fault::Access, //
    },
    pgtable::FormatOf, //
};
use tlb::Tlb;

/// Pages of device memory.
const MEMORY_PAGES: usize = 4096;

/// Engines of each open file.
const ENGINE_COUNT: usize = 2;

/// Maximum number of device faults of one access.
const ACCESS_MAX_FAULTS: usize = 100;

/// The card.
#[pin_data]
struct Card {
    #[pin]
    memory: Memory<Copier>,
}

impl Card {
    fn new() -> Result<Arc<Self>> {
        let copier = Copier::new()?;
        Arc::pin_init(
            try_pin_init!(Self {
                memory <- Memory::new(copier, MemoryKind::Private, MEMORY_PAGES),
            }? Error),
            GFP_KERNEL,
        )
    }
}

/// The card as one mirror sees it, with its engines.
struct View {
    card: Arc<Card>,
    walkers: Arc<Walkers<Tlb>>,
}

impl Device for View {
    type Memory = Copier;
    type Format = FormatOf<Pte>;
    type Walker = Tlb;
    type Flush = ();

    fn memory(&self) -> Option<&Memory<Copier>> {
        Some(&self.card.memory)
    }

    fn walkers(&self) -> Option<Arc<Walkers<Tlb>>> {
        Some(self.walkers.clone())
    }

    // Nothing to do: the library calls `flush_walker` for each engine.
    fn flush_start(&self, _range: PageRange) {}

    // The walker's lock is held: sections that were entered before have ended.
    fn flush_walker(&self, _flush: &(), tlb: &mut Tlb, range: PageRange) {
        tlb.flush(range);
    }

    // Nothing to do: the TLBs are flushed, and all sections that were entered before have ended.
    fn flush_wait(&self, (): ()) {}

    fn flush_sleeps(&self) -> bool {
        false
    }
}

/// Adds `value` to the word at `addr` by a translation from the TLB or the page table. Returns
/// `None` if no translation permits the write, which is a device fault.
fn try_add(mirror: &Mirror<View>, engine: usize, addr: usize, value: u64) -> Result<Option<u64>> {
    let page = addr & PAGE_MASK;
    let offset = addr % PAGE_SIZE;
    // No invalidation returns before the section has ended, so the page remains valid until then.
    let mut section = mirror.enter(engine)?;
    let leaf = match section.data().lookup(page) {
        Some(leaf) => leaf,
        None => {
            let Some(leaf) = section.walk(page) else {
                return Ok(None);
            };
            section.data().fill(page, leaf);
            leaf
        }
    };
    let why = match section.resolve_mut(page, &leaf) {
        Ok(PageMemoryMut::Cpu(memory)) => return memory.fetch_add_u64(offset, value).map(Some),
        Ok(PageMemoryMut::Device(memory)) => {
            let vram = mirror.device().card.memory.driver().vram();
            let at = memory.first * PAGE_SIZE + offset;
            return vram.fetch_add_u64(at, value).map(Some);
        }
        Err(why) => why,
    };
    if why == TranslateError::Stale {
        rust_hmm::alarm!(StaleTranslation, "address {addr:#x} after its flush");
    }
    section.data().flush(PageRange::from_pages(page, 1)?);
    Ok(None)
}

/// Adds `value` to the word at `addr` of the process.
fn add(mirror: &Mirror<View>, engine: usize, addr: usize, value: u64) -> Result {
    let page = PageRange::from_pages(addr & PAGE_MASK, 1)?;
    for _ in 0..ACCESS_MAX_FAULTS {
        if try_add(mirror, engine, addr, value)?.is_some() {
            return Ok(());
        }
        // The section has ended: faulting may sleep and wait for a flush.
        mirror.fault(page, Access::Write)?;
    }
    Err(EBUSY)
}

/// Three words: an address, what to add to the word there, and the index of the engine.
const ADD: u32 = ioctl::_IOW::<[u64; 3]>('T' as u32, 0);
/// Three words: an address, a number of pages to migrate to the device, and 0. Returns the number
/// of pages migrated.
const TO_DEVICE: u32 = ioctl::_IOW::<[u64; 3]>('T' as u32, 1);
/// The same, to system memory.
const TO_SYSTEM: u32 = ioctl::_IOW::<[u64; 3]>('T' as u32, 2);

/// An open file: the mirror of the process that opened it.
struct File {
    mirror: Mirror<View>,
}

impl OpenFile for File {
    type Device = Card;

    fn open(card: Arc<Card>) -> Result<Pin<KBox<Self>>> {
        let current = current!();
        let mm = current.mm().ok_or(EINVAL)?;
        let walkers = Walkers::new(ENGINE_COUNT, |_| Tlb::new())?;
        let mirror = rust_hmm::new_mirror!(mm, View { card, walkers })?;
        Ok(KBox::pin(Self { mirror }, GFP_KERNEL_ACCOUNT)?)
    }

    fn ioctl(&self, command: u32, argument: usize) -> Result<isize> {
        let user = UserSlice::new(UserPtr::from_addr(argument), size_of::<[u64; 3]>());
        let [addr, value, engine] = user.reader().read::<[u64; 3]>()?;
        let addr = usize::try_from(addr)?;
        if command == ADD {
            add(&self.mirror, usize::try_from(engine)?, addr, value)?;
            return Ok(0);
        }
        let range = PageRange::from_pages(addr, usize::try_from(value)?)?;
        let outcome = match command {
            TO_DEVICE => self.mirror.migrate(range).to_device()?,
            TO_SYSTEM => self.mirror.migrate(range).to_system()?,
            _ => return Err(ENOTTY),
        };
        Ok(isize::try_from(outcome.moved)?)
    }
}

module! {
    type: Engines,
    name: "rust_engines",
    authors: ["The rust_hmm authors"],
    description: "A device with engines and a page table format of its own, on rust_hmm",
    license: "GPL",
}

static FILE_OPS: FileOps<File> = FileOps::new();

struct Engines {
    _node: Pin<KBox<Node<File>>>,
}

impl kernel::Module for Engines {
    fn init(module: &'static ThisModule) -> Result<Self> {
        let node = Node::new(c"rust_engines", &FILE_OPS, module, Card::new()?);
        Ok(Self {
            _node: KBox::pin_init(node, GFP_KERNEL)?,
        })
    }
}
