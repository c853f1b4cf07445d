// SPDX-License-Identifier: GPL-2.0

//! Connects engines to memory: implements [`Port`] and [`Lane`] with access sections of the mirror.
//! The lane is the bus. It compares each access with the library's tree, and decodes its address.

use crate::{
    client::Client,
    device::View,
    format::{
        Chosen,
        VRAM, //
    },
    hardware::{
        bus::{
            Action,
            Answer,
            Lane, //
        },
        counters::Counters,
        engine::Engine,
        fault::{
            FaultTicket,
            Packet, //
        },
        mmu::Context,
        monitor::{
            Monitor,
            Seen, //
        },
        port::Port,
        tlb::Tlb,
        walk::{
            Miss,
            Translation,
            DEVICE_PAGE_SHIFT, //
        }, //
    },
    locked_window::LockedWindow, //
};
use core::cell::Cell;
use kernel::{
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::Arc, //
};
use rust_hmm::{
    alarm,
    mirror::{
        AccessSection,
        PageMemory,
        PageMemoryMut,
        TableTranslation,
        TranslateError, //
    },
    mm::{
        addr::PageRange,
        device_pages::DeviceRange, //
    },
    pgtable::Format, //
};

/// Maximum number of page table walks of one access. A concurrent table change may invalidate the
/// result of a walk before it is used; the access then walks again.
const ACCESS_MAX_WALKS: usize = 16;

/// State of an engine that its accesses and flushes change.
pub(crate) struct Walker {
    tlb: Tlb,
    monitor: Monitor,
}

impl Walker {
    /// Creates the state of an engine whose TLB has `lines` lines.
    pub(crate) fn new(lines: usize) -> Result<Self> {
        Ok(Self {
            tlb: Tlb::new(lines)?,
            monitor: Monitor::new(lines)?,
        })
    }

    /// Forgets all translations of `range`.
    #[inline]
    pub(crate) fn flush(&mut self, tag: u64, range: PageRange) {
        self.tlb.flush(tag, range);
        self.monitor.flush(tag, range);
    }
}

impl Port for Client {
    type Lane<'p> = MirrorLane<'p>;

    fn begin(&self) {
        self.locked_window.cache.begin();
    }

    fn end(&self) {
        self.locked_window.cache.end();
    }

    fn counters(&self) -> &Counters {
        Client::counters(self)
    }

    fn context(&self) -> &Context {
        Client::context(self)
    }

    fn enter(&self, index: usize) -> Result<MirrorLane<'_>> {
        if self.device().is_gone() {
            return Err(ENODEV);
        }
        Ok(MirrorLane {
            client: self,
            section: self.mirror().enter(index)?,
            seen: Cell::new(Seen::NOTHING),
        })
    }

    fn is_locked(addr: usize) -> bool {
        LockedWindow::holds(addr)
    }

    fn access_locked(&self, addr: usize, action: Action<'_>) -> Result {
        if self.device().is_gone() {
            return Err(ENODEV);
        }
        self.locked_window.access(self.mirror(), addr, action)
    }

    fn report(
        self: &Arc<Self>,
        engine: &Arc<Engine<Self>>,
        addr: usize,
        write: bool,
    ) -> Option<Arc<FaultTicket<Self>>> {
        let packet = Packet::new(self.tag(), addr, write);
        self.device().faults.report(engine, packet)
    }
}

/// The bus during one access of an engine. Holds an access section of the mirror.
pub(crate) struct MirrorLane<'c> {
    client: &'c Client,
    section: AccessSection<'c, View>,
    /// Table entries that the engine has read in this access.
    seen: Cell<Seen>,
}

impl Lane for MirrorLane<'_> {
    fn tlb(&mut self) -> &mut Tlb {
        &mut self.section.data().tlb
    }

    fn table_word(&self, address: u64) -> Result<u64, Miss> {
        let (format, root) = self.client.context().table().ok_or(Miss::Bus(address))?;
        let mut seen = self.seen.get();
        let addr = seen.read(format, root, address).ok_or(Miss::Bus(address))?;
        self.seen.set(seen);
        let word = self.section.table_word(addr, address);
        word.map_err(|why| match why {
            TranslateError::Changing => Miss::Superseded,
            TranslateError::Stale | TranslateError::ReadOnly => Miss::Bus(address),
        })
    }

    fn request_translation(&self, addr: usize) -> Option<Translation> {
        let leaf = self.section.walk(addr)?;
        let mut seen = self.seen.get();
        seen.requested(addr);
        self.seen.set(seen);
        let base = if leaf.entry.is_device() { VRAM } else { 0 };
        Some(Translation {
            address: base
                + ((leaf.entry.number() as u64) << PAGE_SHIFT)
                + (addr % PAGE_SIZE >> DEVICE_PAGE_SHIFT << DEVICE_PAGE_SHIFT) as u64,
            order: leaf.order + (PAGE_SHIFT as u32 - DEVICE_PAGE_SHIFT),
            writable: leaf.entry.is_writable(),
        })
    }

    fn access(&mut self, place: Translation, action: &mut Action<'_>) -> Result<Answer> {
        let tag = self.client.tag();
        let translated = self.seen.get().address_of(place.address);
        let monitor = &mut self.section.data().monitor;
        let addr = match translated {
            Some(addr) => {
                monitor.record(tag, addr, place);
                addr
            }
            None => match monitor.find(tag, place) {
                Some(addr) => addr,
                None => return Ok(Answer::Retry),
            },
        };
        Ok(match self.try_access(addr, place, action)? {
            Ok(()) => Answer::Done,
            Err(TranslateError::Changing) if translated.is_some() => {
                self.access_now(addr, action)?
            }
            Err(TranslateError::Changing) => Answer::Retry,
            Err(TranslateError::Stale) => Answer::Stale,
            Err(TranslateError::ReadOnly) => Answer::Denied,
        })
    }

    fn alarm(&self, addr: usize, why: Option<Miss>) {
        match why {
            None => alarm!(
                StaleTranslation,
                "address {addr:#x} was in a TLB after its flush"
            ),
            Some(why) => alarm!(
                StaleTranslation,
                "the table cannot be walked to address {addr:#x}: {why:?}"
            ),
        }
    }
}

impl MirrorLane<'_> {
    /// Performs `action` at `addr`, if the library's tree confirms that `place` is its address.
    fn try_access(
        &self,
        addr: usize,
        place: Translation,
        action: &mut Action<'_>,
    ) -> Result<Result<(), TranslateError>> {
        let found = TableTranslation {
            address: place.address >> Chosen::PAGE_SHIFT << Chosen::PAGE_SHIFT,
            writable: place.writable,
        };
        if action.writes() {
            match self.section.reach_mut(addr, found) {
                Ok(place) => self.write(place, addr, action)?,
                Err(wrong) => return Ok(Err(wrong)),
            }
        } else {
            match self.section.reach(addr, found) {
                Ok(place) => self.read(place, addr, action)?,
                Err(wrong) => return Ok(Err(wrong)),
            }
        }
        Ok(Ok(()))
    }

    /// Performs `action` on the current page at `addr`.
    fn access_now(&self, addr: usize, action: &mut Action<'_>) -> Result<Answer> {
        for _ in 0..ACCESS_MAX_WALKS {
            let Some(leaf) = self.section.walk(addr) else {
                break;
            };
            let wrong = if action.writes() {
                match self.section.resolve_mut(addr, &leaf) {
                    Ok(place) => {
                        self.write(place, addr, action)?;
                        return Ok(Answer::Done);
                    }
                    Err(wrong) => wrong,
                }
            } else {
                match self.section.resolve(addr, &leaf) {
                    Ok(place) => {
                        self.read(place, addr, action)?;
                        return Ok(Answer::Done);
                    }
                    Err(wrong) => wrong,
                }
            };
            if wrong == TranslateError::ReadOnly {
                break;
            }
        }
        Ok(Answer::Denied)
    }

    /// Reads from `place`. `EIO` if device memory was never written there.
    fn read(&self, place: PageMemory<'_>, addr: usize, action: &mut Action<'_>) -> Result {
        let at = addr % PAGE_SIZE;
        match (place, action) {
            (PageMemory::Cpu(pages), Action::Read(buffer)) => pages.read(at, buffer),
            (PageMemory::Cpu(_), _) => Err(EINVAL),
            (PageMemory::Device(range), action) => self.access_vram(range, at, action),
        }
    }

    /// Writes to `place`, or adds to the word there. `EIO` if device memory was never written
    /// there.
    fn write(&self, place: PageMemoryMut<'_>, addr: usize, action: &mut Action<'_>) -> Result {
        let at = addr % PAGE_SIZE;
        match (place, action) {
            (PageMemoryMut::Cpu(pages), Action::Write(buffer)) => pages.write(at, buffer),
            (PageMemoryMut::Cpu(pages), Action::Add(value)) => {
                **value = pages.fetch_add_u64(at, **value)?;
                Ok(())
            }
            (PageMemoryMut::Cpu(_), Action::Read(_)) => Err(EINVAL),
            (PageMemoryMut::Device(range), action) => self.access_vram(range, at, action),
        }
    }

    /// Has the device perform `action` in its own memory, or in that of its other tile.
    fn access_vram(&self, range: DeviceRange, at: usize, action: &mut Action<'_>) -> Result {
        let (vram, range) = self.client.device().vram(range)?;
        vram.access(range, at, action)
    }
}
