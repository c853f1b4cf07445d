// SPDX-License-Identifier: GPL-2.0

//! A GPU: its memory, and its side of mirrors.

use crate::engine::{
    Engine,
    EngineThread, //
};
use kernel::{
    device::Core,
    page::PAGE_SIZE,
    pci,
    prelude::*,
    sync::{
        atomic::{
            ordering::{
                Full,
                Relaxed, //
            },
            Atomic, //
        },
        Arc,
        Mutex, //
    }, //
};
use rust_hmm::{
    connection::Connection,
    memory::{
        CopyJob,
        Memory,
        MemoryOps, //
    },
    mirror::Device,
    mm::{
        addr::PageRange,
        bar_tables::BarTables,
        device_pages::MemoryKind,
        dma::DmaDevice,
        pci::PciMemory,
        table_memory::TableMemory, //
    },
    pgtable::{
        DmaFormat,
        Radix4, //
    }, //
};

/// Bus address of device memory as seen by the GPU. DMA addresses of system memory have 32 bits, so
/// the two do not overlap.
pub(crate) const VRAM: u64 = 1 << 40;

/// Size of the area for page tables at the end of device memory; at most half of the memory is
/// used.
const TABLES_MAX_BYTES: u64 = 8 << 20;

/// Device memory of a GPU.
pub(crate) struct Vram {
    engine: Arc<Engine>,
    memory: Arc<PciMemory>,
}

impl MemoryOps for Vram {
    fn copy(&self, job: CopyJob) {
        self.engine.copy(job, None);
    }

    fn cancelled(&self) {
        self.engine.drop_cancelled();
    }

    fn connection(&self, other: &Self, _kind: MemoryKind) -> Connection {
        if self.engine.reaches(&other.memory) {
            Connection::Migratable
        } else {
            Connection::None
        }
    }

    fn copy_to(&self, other: &Self, job: CopyJob) {
        self.engine.copy(job, Some(other.memory.clone()));
    }
}

/// A GPU.
#[pin_data]
pub(crate) struct Gpu {
    #[pin]
    pub(crate) memory: Memory<Vram>,
    pub(crate) engine: Arc<Engine>,
    /// Devices that a lock can grant access: this one.
    pub(crate) agents: KVec<Arc<DmaDevice>>,
    bar: Arc<PciMemory>,
    /// The part of device memory for page tables, unless they are in coherent memory.
    tables: Option<Arc<BarTables>>,
    #[pin]
    running: Mutex<Option<EngineThread>>,
    files: Atomic<usize>,
    last_tag: Atomic<u64>,
}

impl Gpu {
    pub(crate) fn new(pdev: &pci::Device<Core<'_>>) -> Result<Arc<Self>> {
        pdev.enable_device_mem()?;
        let bits = u32::try_from(crate::number(crate::module_parameters::dma_bits.value()))?;
        if bits > 32 {
            return Err(EINVAL);
        }
        let dma = DmaDevice::bound(pdev.as_ref(), bits)?;
        let bar = PciMemory::claim(pdev, 0, 2)?;
        let mut usable = bar.size();
        let mut tables = None;
        if crate::number(crate::module_parameters::coherent_tables.value()) == 0 {
            let bytes = TABLES_MAX_BYTES.min(usable / 2);
            usable -= bytes;
            tables = Some(BarTables::new(&bar, usable, bytes, VRAM + usable)?);
        }
        let pages = usize::try_from(usable)? / PAGE_SIZE;
        let mut agents = KVec::new();
        agents.push(dma.clone(), GFP_KERNEL)?;
        let (engine, running) = Engine::start(pdev, dma, &bar, tables.clone())?;
        let vram = Vram {
            engine: engine.clone(),
            memory: bar.clone(),
        };
        Arc::pin_init(
            try_pin_init!(Self {
                memory <- Memory::new(vram, MemoryKind::Private, pages),
                engine,
                agents,
                bar,
                tables,
                running <- kernel::new_mutex!(Some(running), "qemu_gpu::running"),
                files: Atomic::new(0),
                last_tag: Atomic::new(0),
            }? Error),
            GFP_KERNEL,
        )
    }

    pub(crate) fn mib(&self) -> u64 {
        self.bar.size() >> 20
    }

    /// Called when the device is unbound, possibly while it is in use; the BAR is unmapped
    /// afterwards. Returns the numbers of pages that were migrated back and that are lost.
    pub(crate) fn remove(&self) -> (usize, usize) {
        // The removal cannot fail, and the engine stops after it. If the task was killed while a
        // process holds its mmap lock, wait for that: each call sleeps.
        let pages = loop {
            match self.memory.unplug() {
                Err(EINTR) => {}
                pages => break pages.unwrap_or_default(),
            }
        };
        drop(self.running.lock().take());
        pages
    }

    /// Counts an opened or closed file. Closing the last one evicts all pages.
    pub(crate) fn count_file(&self, opened: bool) {
        if opened {
            self.files.fetch_add(1, Relaxed);
        } else if self.files.fetch_sub(1, Full) == 1 {
            self.memory.faults().fail_allocation(false);
            // Pages that remain are not lost: a CPU fault migrates them back.
            let _ = self.memory.evict_all();
        }
    }
}

/// The GPU as a mirror sees it.
pub(crate) struct View {
    gpu: Arc<Gpu>,
    tag: u64,
}

impl View {
    pub(crate) fn new(gpu: Arc<Gpu>) -> Self {
        let tag = gpu.last_tag.fetch_add(1, Relaxed) + 1;
        Self { gpu, tag }
    }

    /// Tag of the mirror in the engine.
    pub(crate) fn tag(&self) -> u64 {
        self.tag
    }
}

impl Device for View {
    type Memory = Vram;
    // The engine walks the page tables.
    type Format = DmaFormat<Radix4>;
    type Walker = ();
    // Whether an access is in progress that the flush must wait for.
    type Flush = bool;

    fn memory(&self) -> Option<&Memory<Vram>> {
        Some(&self.gpu.memory)
    }

    fn dma(&self) -> Option<&Arc<DmaDevice>> {
        Some(&self.gpu.engine.dma)
    }

    fn table_memory(&self) -> TableMemory {
        let memory = match &self.gpu.tables {
            Some(tables) => TableMemory::in_bar(tables),
            None => TableMemory::coherent(&self.gpu.engine.dma),
        };
        memory.with_device_pages_at(VRAM)
    }

    fn flush_start(&self, range: PageRange) -> bool {
        self.gpu.engine.is_under_way(self.tag, range)
    }

    fn flush_wait(&self, under_way: bool) {
        if under_way {
            self.gpu.engine.wait_for_landing();
        }
    }
}
