// SPDX-License-Identifier: GPL-2.0

//! One GPU: its memory, and how mirrors see it.

use crate::engine::{Engine, Running};
use kernel::{
    device::Core,
    page::PAGE_SIZE,
    pci,
    prelude::*,
    sync::{
        atomic::{
            ordering::{Full, Relaxed},
            Atomic, AtomicFlag,
        },
        Arc,
        Mutex, //
    },
};
use rust_hmm::{
    connection::Connection,
    memory::{CopyJob, Memory, MemoryOps},
    mirror::Device,
    mm::{
        addr::PageRange, bar_tables::BarTables, device_pages::Kind, dma::DmaDevice, pci::PciMemory,
        table_memory::TableMemory,
    },
    pgtable::{OfDma, Radix4},
};

/// Where the GPU finds its memory. The DMA addresses of system memory have 32 bits.
pub(crate) const VRAM: u64 = 1 << 40;

/// Bytes at the end of the memory that are for page tables, but no more than half of it.
const TABLES: u64 = 8 << 20;

/// The memory.
pub(crate) struct Vram {
    engine: Arc<Engine>,
    memory: Arc<PciMemory>,
    /// Tests want the next allocation to fail.
    pub(crate) fail_allocation: AtomicFlag,
}

impl MemoryOps for Vram {
    fn copy(&self, job: CopyJob) {
        self.engine.copy(job, None);
    }

    fn cancelled(&self) {
        self.engine.drop_cancelled();
    }

    fn connection(&self, other: &Self, _kind: Kind) -> Connection {
        match self.engine.reaches(&other.memory) {
            true => Connection::Migratable,
            false => Connection::None,
        }
    }

    fn copy_to(&self, other: &Self, job: CopyJob) {
        self.engine.copy(job, Some(other.memory.clone()));
    }

    fn fail_allocation(&self, _order: u32) -> bool {
        self.fail_allocation.load(Relaxed) && self.fail_allocation.xchg(false, Full)
    }
}

/// Those that can access locked memory: itself.
pub(crate) struct Agents {
    pub(crate) all: Arc<KVec<Arc<DmaDevice>>>,
}

/// A GPU.
#[pin_data]
pub(crate) struct Gpu {
    #[pin]
    pub(crate) memory: Memory<Vram>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) agents: Agents,
    bar: Arc<PciMemory>,
    tables: Arc<BarTables>,
    #[pin]
    running: Mutex<Option<Running>>,
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
        let for_tables = TABLES.min(bar.size() / 2);
        let usable = bar.size() - for_tables;
        let pages = usize::try_from(usable)? / PAGE_SIZE;
        let tables = BarTables::new(&bar, usable, for_tables, VRAM + usable)?;
        let mut all = KVec::new();
        all.push(dma.clone(), GFP_KERNEL)?;
        let all = Arc::new(all, GFP_KERNEL)?;
        let (engine, running) = Engine::start(pdev, dma, &bar, tables.clone())?;
        let vram = Vram {
            engine: engine.clone(),
            memory: bar.clone(),
            fail_allocation: AtomicFlag::new(false),
        };
        Arc::pin_init(
            try_pin_init!(Self {
                memory <- Memory::new(vram, Kind::Private, pages),
                engine,
                agents: Agents { all },
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

    /// The device is unbound, maybe while it is in use. Mappings of memory are taken away after this. Returns the pages
    /// that were saved, and those that are lost.
    pub(crate) fn remove(&self) -> (usize, usize) {
        let pages = self.memory.unplug().unwrap_or_default();
        drop(self.running.lock().take());
        pages
    }

    /// A file was opened, or closed: the last one takes all pages out.
    pub(crate) fn count_file(&self, opened: bool) {
        if opened {
            self.files.fetch_add(1, Relaxed);
        } else if self.files.fetch_sub(1, Full) == 1 {
            self.memory.driver().fail_allocation.store(false, Relaxed);
            // What stays is not lost: a CPU touch brings it back.
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

    /// Name of the mirror in the engine.
    pub(crate) fn tag(&self) -> u64 {
        self.tag
    }
}

impl Device for View {
    type Memory = Vram;
    // The GPU walks it in its own memory.
    type Format = OfDma<Radix4>;
    type Walker = ();
    // Whether there is something to wait for.
    type Flush = bool;

    fn memory(&self) -> Option<&Memory<Vram>> {
        Some(&self.gpu.memory)
    }

    fn dma(&self) -> Option<&Arc<DmaDevice>> {
        Some(&self.gpu.engine.dma)
    }

    fn table_memory(&self) -> TableMemory {
        TableMemory::in_bar(&self.gpu.tables).with_device_pages_at(VRAM)
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
