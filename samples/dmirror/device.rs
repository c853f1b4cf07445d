// SPDX-License-Identifier: GPL-2.0

//! A mock device, shared by all files that are open on it.

use crate::{
    access::Walker,
    blit::BlitEngine,
    client::Client,
    faults::FaultThreads,
    format::{
        Chosen,
        Selected,
        VRAM, //
    },
    hardware::{
        engine::Engine,
        registers::{
            Register,
            Registers, //
        }, //
    },
    settings::{
        Fixed,
        Settings, //
    },
    streams::Streams,
    tables::Tables,
    vram::Vram, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            ordering::{
                Full,
                Relaxed, //
            },
            Atomic, //
        },
        Arc, //
    },
    time::delay::fsleep, //
};
use rust_hmm::{
    debug::events::Event,
    kernel::kthread::Thread,
    memory::Memory,
    mirror::{
        Device,
        Walkers, //
    },
    mm::{
        addr::PageRange,
        device_pages::{
            DeviceRange,
            MemoryKind,
            Owner, //
        },
        dma::DmaDevice,
        table_memory::TableMemory, //
    },
    queue::WorkerPool, //
};

const MIB_PAGES: u64 = (1 << 20) / PAGE_SIZE as u64;

/// Worker threads that execute parts of queue operations in parallel.
const POOL_THREADS: usize = 3;

/// One device.
#[pin_data]
pub(crate) struct MockDevice {
    pub(crate) memory: Arc<Memory<Vram>>,
    /// Memories of the other tiles, if the device has several.
    pub(crate) tiles: KVec<Arc<Memory<Vram>>>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) fixed: Fixed,
    pub(crate) engines: Engines,
    pub(crate) blits: BlitEngine,
    pub(crate) faults: FaultThreads,
    /// Event streams of open files.
    pub(crate) streams: Arc<Streams>,
    /// Worker pool for queue operations.
    pub(crate) worker_pool: WorkerPool,
    /// Devices that can access locked memory.
    pub(crate) agents: Agents,
    tables: Tables,
    /// TLBs of the engines, and monitors of their accesses.
    walkers: Arc<Walkers<Walker>>,
    open_files: Atomic<usize>,
    last_tag: Atomic<u64>,
}

impl MockDevice {
    /// Resets all test settings.
    fn reset(&self) {
        self.settings.reset();
        self.memory.faults().fail_allocation(false);
        self.memory.faults().keep_write(false);
    }

    /// Registers of the hardware.
    fn registers(&self) -> &Registers {
        &self.settings.registers
    }

    /// Changes setting `what` and returns its previous value. `EINVAL`.
    pub(crate) fn set(&self, what: u32, value: u64) -> Result<u64> {
        let old = self.settings.set(what, value)?;
        let keep_write = self.settings.keeps_write();
        self.memory.faults().keep_write(keep_write);
        Ok(old)
    }

    /// Creates a device with the memory `tile`. `tiles` are the memories of its other tiles.
    pub(crate) fn new(
        tile: Tile,
        tiles: KVec<Arc<Memory<Vram>>>,
        fixed: &Fixed,
        agents: Agents,
        tables: Tables,
    ) -> Result<Arc<Self>> {
        let Tile {
            memory,
            settings,
            streams,
        } = tile;
        let engines = Engines::new(fixed.engines)?;
        let blits = BlitEngine::new(settings.registers.clone())?;
        let faults = FaultThreads::new(fixed.engines)?;
        let walkers = Walkers::new(fixed.engines, |_| Walker::new(fixed.tlb_entries))?;
        Arc::pin_init(
            try_pin_init!(Self {
                memory,
                tiles,
                settings,
                fixed: *fixed,
                engines,
                blits,
                faults,
                streams,
                worker_pool: WorkerPool::new(POOL_THREADS)?,
                agents,
                tables,
                walkers,
                open_files: Atomic::new(0),
                last_tag: Atomic::new(0),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// The memory that has `range` of an entry, and the place in it. `EIO` if there is none.
    pub(crate) fn vram(&self, range: DeviceRange) -> Result<(&Vram, DeviceRange)> {
        // With one memory, the device page numbers in entries are page numbers of that memory.
        if self.tiles.is_empty() {
            return Ok((self.memory.driver(), range));
        }
        if let Some(range) = self.memory.locate(range) {
            return Ok((self.memory.driver(), range));
        }
        let mut tiles = self.tiles.iter();
        let found = tiles.find_map(|tile| Some((tile.driver(), tile.locate(range)?)));
        found.ok_or(EIO)
    }

    /// Whether it was unplugged.
    pub(crate) fn is_gone(&self) -> bool {
        self.memory.is_gone()
    }

    /// Simulates surprise removal. Returns the numbers of pages that were migrated back and that
    /// are lost.
    pub(crate) fn unplug(&self) -> Result<(usize, usize)> {
        let unplugged = self.memory.unplug();
        self.engines.iter().for_each(|engine| engine.wake());
        unplugged
    }
}

/// One memory, with the settings and streams that it shares with its device.
#[derive(Clone)]
pub(crate) struct Tile {
    pub(crate) memory: Arc<Memory<Vram>>,
    settings: Arc<Settings>,
    streams: Arc<Streams>,
}

impl Tile {
    /// Creates a memory of at most `mib` MiB. `owner` is set if the device has several tiles.
    pub(crate) fn new(
        owner: Option<&Arc<Owner>>,
        kind: MemoryKind,
        mib: u64,
        fixed: &Fixed,
    ) -> Result<Self> {
        let pages = usize::try_from(mib.checked_mul(MIB_PAGES).ok_or(EINVAL)?)?;
        let contents = match kind {
            MemoryKind::Private => pages.checked_mul(PAGE_SIZE).ok_or(EINVAL)?,
            MemoryKind::Coherent { .. } => 0,
        };
        let settings = Arc::new(Settings::new(fixed)?, GFP_KERNEL)?;
        let streams = Streams::new()?;
        let vram = Vram::new(contents, fixed, settings.clone(), streams.clone())?;
        let memory = match owner {
            Some(owner) => Arc::pin_init(
                Memory::new_tile(owner.clone(), vram, kind, pages),
                GFP_KERNEL,
            )?,
            None => Arc::pin_init(Memory::new(vram, kind, pages), GFP_KERNEL)?,
        };
        Ok(Self {
            memory,
            settings,
            streams,
        })
    }
}

/// DMA devices of all mock devices, and the index of this one.
pub(crate) struct Agents {
    pub(crate) all: Arc<KVec<Arc<DmaDevice>>>,
    pub(crate) index: usize,
}

impl Agents {
    /// This device.
    pub(crate) fn own(&self) -> Result<Arc<DmaDevice>> {
        Ok(self.all.get(self.index).ok_or(ENODEV)?.clone())
    }
}

/// The engines of a device, and their threads.
pub(crate) struct Engines {
    list: KVec<Arc<Engine<Client>>>,
    threads: KVec<Thread>,
}

impl Engines {
    fn new(count: usize) -> Result<Self> {
        let mut engines = Self {
            list: KVec::new(),
            threads: KVec::new(),
        };
        for index in 0..count {
            let engine = Engine::new(index)?;
            engines.list.push(engine.clone(), GFP_KERNEL)?;
            engines.threads.reserve(1, GFP_KERNEL)?;
            // Allocate before the thread starts: without an engine thread no command would
            // complete.
            let buffer = KBox::new([0; PAGE_SIZE], GFP_KERNEL)?;
            let thread = Thread::spawn(c"dmirror_engine", move || engine.run(buffer))?;
            engines.threads.push(thread, GFP_KERNEL)?;
        }
        Ok(engines)
    }
}

impl core::ops::Deref for Engines {
    type Target = [Arc<Engine<Client>>];

    fn deref(&self) -> &[Arc<Engine<Client>>] {
        &self.list
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        // The engines have no commands, because each file waits for its own before it is closed.
        // The threads can be joined.
        self.list.iter().for_each(|engine| engine.stop());
        self.threads.clear();
    }
}

/// Counts an open file of the device. Dropping the last one evicts all pages.
pub(crate) struct Session(Arc<MockDevice>);

impl Session {
    pub(crate) fn new(device: Arc<MockDevice>) -> Self {
        device.open_files.fetch_add(1, Relaxed);
        Self(device)
    }

    /// Checks whether the file that is being closed is the last one, and then resets all test
    /// settings. Called after the file's commands have ended.
    pub(crate) fn is_ending(&self) -> bool {
        let last = self.0.open_files.load(Relaxed) == 1;
        if last {
            self.0.reset();
        }
        last
    }
}

impl core::ops::Deref for Session {
    type Target = MockDevice;

    fn deref(&self) -> &MockDevice {
        &self.0
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.0.open_files.fetch_sub(1, Full) != 1 {
            return;
        }
        self.0.reset();
        let all = DeviceRange {
            first: 0,
            count: self.0.memory.limit(),
        };
        // Does not fail: the range is not empty, and this is not called from a callback.
        let _ = self.0.memory.online_pages(all);
        // Pages that remain are not lost: a CPU fault migrates them back, and unloading the module
        // evicts again.
        if let Err(error) = self.0.memory.evict_all() {
            pr_warn!("cannot evict on close: {error:?}\n");
        }
    }
}

/// A flush under way.
pub(crate) struct Flush {
    /// Whether the flush leaves the TLBs as they are, for tests.
    skips: bool,
}

/// The device as a mirror sees it.
pub(crate) struct View {
    device: Arc<MockDevice>,
    tag: u64,
}

impl View {
    pub(crate) fn new(device: Arc<MockDevice>) -> Self {
        let tag = device.last_tag.fetch_add(1, Relaxed) + 1;
        Self { device, tag }
    }

    /// The memory that has `range` of an entry, and the place in it. `EIO` if there is none.
    pub(crate) fn vram(&self, range: DeviceRange) -> Result<(&Vram, DeviceRange)> {
        self.device.vram(range)
    }

    /// Address space identifier of the mirror in TLBs.
    pub(crate) fn tag(&self) -> u64 {
        self.tag
    }
}

impl Device for View {
    type Memory = Vram;
    type Format = Chosen;
    type Walker = Walker;
    type Flush = Flush;

    fn memory(&self) -> Option<&Memory<Vram>> {
        Some(&self.device.memory)
    }

    fn tile(&self, index: usize) -> Option<&Memory<Vram>> {
        Some(self.device.tiles.get(index)?)
    }

    fn table_memory(&self) -> TableMemory {
        let memory = match self.device.fixed.format {
            Selected::Tree => TableMemory::none(),
            _ => self.device.tables.memory(),
        };
        memory.with_device_pages_at(VRAM)
    }

    fn walkers(&self) -> Option<Arc<Walkers<Walker>>> {
        Some(self.device.walkers.clone())
    }

    fn flush_sleeps(&self) -> bool {
        self.device
            .registers()
            .delay(Register::FlushDelay)
            .is_some()
    }

    fn wants_events(&self) -> bool {
        self.device.streams.any()
    }

    fn event(&self, mirror: u32, event: &Event) {
        self.device.streams.of_mirror(mirror, self.tag, event);
    }

    fn flush_start(&self, _range: PageRange) -> Flush {
        Flush {
            skips: self.device.registers().skip_flush(),
        }
    }

    fn flush_walker(&self, flush: &Flush, walker: &mut Walker, range: PageRange) {
        if !flush.skips {
            walker.flush(self.tag, range);
        }
    }

    fn flush_wait(&self, _flush: Flush) {
        if let Some(delay) = self.device.registers().delay(Register::FlushDelay) {
            fsleep(delay);
        }
    }
}
