// SPDX-License-Identifier: GPL-2.0

//! The engine: an edu, which transfers up to 4 KiB between its internal buffer and any bus address,
//! and raises an interrupt at the end. A copy takes two transfers for each 4 KiB: into the buffer,
//! and out of it. The interrupt of the last one completes the copy job.
//!
//! - `thread`: the thread of the engine; `access`: its accesses to memory of a process.

use crate::file::Client;
use kernel::{
    device::Core,
    io::Io,
    page::PAGE_SIZE,
    pci,
    prelude::*,
    sync::{
        atomic::{
            ordering::{
                Relaxed,
                Release, //
            },
            Atomic,
            AtomicFlag, //
        },
        Arc,
        Completion,
        CondVar,
        Mutex,
        SpinLock, //
    },
    time::Delta, //
};
use rust_hmm::{
    kernel::{
        completion::TimedCompletion,
        kthread::Thread, //
    },
    memory::{
        CopyJob,
        DmaCopy, //
    },
    mm::{
        addr::PageRange,
        bar_tables::BarTables,
        dma::{
            DeviceAddress,
            DmaBuffer,
            DmaDevice, //
        },
        pci::{
            Interrupt,
            IrqHandler,
            PciMemory,
            PeerMemory, //
        }, //
    }, //
};

mod access;
mod thread;

/// Whether `pdev` is an edu, by numeric IDs: the kernel crate does not define QEMU's vendor ID.
pub(crate) fn is_edu(pdev: &pci::Device) -> bool {
    (pdev.vendor_id().as_raw(), pdev.device_id()) == (0x1234, 0x11e8)
}

// Registers of the edu.
const STATUS: usize = 0x24;
const ACKNOWLEDGE: usize = 0x64;
const SOURCE: usize = 0x80;
const DESTINATION: usize = 0x88;
const COUNT: usize = 0x90;
const COMMAND: usize = 0x98;
const START: u32 = 1;
const FROM_BUFFER: u32 = 2;
const INTERRUPT: u32 = 4;
/// Address of the internal buffer on the device side.
const BUFFER_ADDRESS: u64 = 0x40000;
const PAGE_BYTES: u64 = PAGE_SIZE as u64;
/// Size of the internal buffer, and of a device page. A page of the CPU takes one transfer or more.
const TRANSFER_BYTES: u64 = 4096;

/// Capacity of the job queue.
const QUEUE_DEPTH: usize = 4096;

#[cfg(not(hmm_series_7_3))]
type Registers = kernel::devres::Devres<pci::Bar<'static, 0x100>>;
#[cfg(hmm_series_7_3)]
type Registers = pci::DevresBar<0x100>;

/// An access of the GPU to memory of a process.
#[pin_data]
pub(crate) struct Access {
    /// The file whose memory is accessed. Taken before the access is completed, so that the last
    /// reference is not dropped here.
    #[pin]
    pub(crate) client: Mutex<Option<Arc<Client>>>,
    pub(crate) addr: usize,
    pub(crate) write: bool,
    /// Contents of the page, and whether the device had a translation.
    #[pin]
    pub(crate) page: Mutex<(KVVec<u8>, Result<bool>)>,
    #[pin]
    pub(crate) done: Completion,
}

/// A copy, and the destination memory if that belongs to another GPU.
type Copy = (CopyJob, Option<Arc<PciMemory>>);

struct Work {
    copies: KVVec<Copy>,
    accesses: KVec<Arc<Access>>,
    stop: bool,
}

/// State of the engine, shared by its thread, its users and the interrupt handler.
#[pin_data]
pub(crate) struct Engine {
    pub(crate) dma: Arc<DmaDevice>,
    registers: Registers,
    #[pin]
    work: Mutex<Work>,
    #[pin]
    wake: CondVar,
    /// Number of completed transfers. Incremented by the interrupt handler.
    finished: Atomic<u64>,
    #[pin]
    completion: TimedCompletion,
    /// The copy whose last transfer is in progress. The interrupt handler only tries the lock,
    /// because the lock is taken with interrupts enabled. It is not held while the transfer is in
    /// progress.
    #[pin]
    last: SpinLock<Option<DmaCopy>>,
    /// The access that is in progress: tag of the mirror and address of the page. Flushes wait for
    /// it.
    #[pin]
    in_flight: Mutex<Option<(u64, usize)>>,
    #[pin]
    access_done: CondVar,
    /// Memories of other GPUs that are mapped for this one.
    #[pin]
    peers: Mutex<KVec<PeerMemory>>,
    delay: Delta,
    skip: Atomic<u64>,
    /// For tests: the interrupt, which its own handler drops. Locked like `last`.
    #[pin]
    own_interrupt: SpinLock<Option<Interrupt<Self>>>,
    /// Whether the handler has dropped the interrupt. No transfer is started then.
    is_deaf: AtomicFlag,
    /// For tests: a mapping that the next copy callback drops.
    #[pin]
    spare_peer: Mutex<Option<PeerMemory>>,
}

impl IrqHandler for Engine {
    fn handle_irq(&self) {
        if let Some(registers) = self.registers.try_access() {
            registers.write32(registers.read32(STATUS), ACKNOWLEDGE);
        }
        let copy = self.last.try_lock().and_then(|mut last| last.take());
        if let Some(copy) = copy {
            copy.complete(Ok(()));
        }
        let own = self.own_interrupt.try_lock().and_then(|mut own| own.take());
        if own.is_some() {
            self.is_deaf.store(true, Relaxed);
            drop(own);
        }
        self.finished.fetch_add(1, Release);
        self.completion.complete();
    }
}

/// Data of the engine's thread. The resources that need the bound device are dropped with it.
struct EngineRegisters {
    engine: Arc<Engine>,
    vram: PeerMemory,
    /// A staging page for transfers from and to the CPU, a page of zeros, and a page for the table
    /// that is read.
    staging: DmaBuffer,
    tables: Option<Arc<BarTables>>,
    /// `None` if the handler drops it.
    _interrupt: Option<Interrupt<Engine>>,
}

/// Handle of the engine's thread. Dropping it stops the thread and fails the pending work.
pub(crate) struct EngineThread {
    engine: Arc<Engine>,
    // Dropped after `drop()` has requested the thread to exit. Dropping it waits for the thread.
    _thread: Thread,
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        self.engine.work.lock().stop = true;
        self.engine.wake.notify_all();
    }
}

impl Engine {
    /// Starts the engine of `pdev`, whose device memory is `memory`.
    pub(crate) fn start(
        pdev: &pci::Device<Core<'_>>,
        dma: Arc<DmaDevice>,
        memory: &Arc<PciMemory>,
        tables: Option<Arc<BarTables>>,
    ) -> Result<(Arc<Self>, EngineThread)> {
        let delay = crate::number(crate::module_parameters::copy_delay_ms.value());
        let registers = pdev
            .iomap_region_sized::<0x100>(0, c"qemu_gpu")?
            .into_devres()?;
        let engine = Arc::pin_init(
            try_pin_init!(Self {
                registers,
                work <- kernel::new_mutex!(Work {
                    copies: KVVec::with_capacity(QUEUE_DEPTH, GFP_KERNEL)?,
                    accesses: KVec::new(),
                    stop: false,
                }, "qemu_gpu::work"),
                wake <- kernel::new_condvar!("qemu_gpu::wake"),
                finished: Atomic::new(0),
                completion <- TimedCompletion::new(),
                last <- kernel::new_spinlock!(None, "qemu_gpu::last"),
                in_flight <- kernel::new_mutex!(None, "qemu_gpu::in_flight"),
                access_done <- kernel::new_condvar!("qemu_gpu::landed"),
                peers <- kernel::new_mutex!(KVec::new(), "qemu_gpu::peers"),
                delay: Delta::from_millis(i64::try_from(delay.min(10_000))?),
                skip: Atomic::new(crate::number(crate::module_parameters::skip_flush.value())),
                own_interrupt <- kernel::new_spinlock!(None, "qemu_gpu::own_interrupt"),
                is_deaf: AtomicFlag::new(false),
                spare_peer <- kernel::new_mutex!(None, "qemu_gpu::spare_peer"),
                dma,
            }? Error),
            GFP_KERNEL,
        )?;
        let mut interrupt = Some(Interrupt::new(pdev, c"qemu_gpu", engine.clone())?);
        if crate::number(crate::module_parameters::drop_in_callbacks.value()) != 0 {
            *engine.spare_peer.lock() = Some(PeerMemory::map(memory, &engine.dma)?);
            *engine.own_interrupt.lock() = interrupt.take();
        }
        let hardware = EngineRegisters {
            vram: PeerMemory::map(memory, &engine.dma)?,
            staging: DmaBuffer::new(&engine.dma, 3)?,
            tables,
            _interrupt: interrupt,
            engine: engine.clone(),
        };
        let running = EngineThread {
            engine: engine.clone(),
            _thread: Thread::spawn(c"qemu_gpu", move || hardware.run())?,
        };
        Ok((engine, running))
    }

    /// Maps `memory` of another GPU for this engine. Returns whether the engine can access it.
    pub(crate) fn reaches(&self, memory: &Arc<PciMemory>) -> bool {
        let mut peers = self.peers.lock();
        // The memory of a GPU that was unbound has no address.
        peers.retain(|peer| peer.address(DeviceAddress::START, PAGE_BYTES).is_some());
        if peers.iter().any(|peer| peer.is_of(memory)) {
            return true;
        }
        let mapped = PeerMemory::map(memory, &self.dma);
        mapped.is_ok_and(|peer| peers.push(peer, GFP_KERNEL).is_ok())
    }

    /// Queues a job. `to` is the destination memory if it belongs to another GPU. Must not
    /// allocate: if the queue is full the job fails.
    pub(crate) fn copy(&self, job: CopyJob, to: Option<Arc<PciMemory>>) {
        let spare = self.spare_peer.lock().take();
        drop(spare);
        let mut work = self.work.lock();
        if work.stop {
            return;
        }
        let full = work.copies.push_within_capacity((job, to)).is_err();
        drop(work);
        if !full {
            self.wake.notify_all();
        }
    }

    /// Completes the cancelled jobs in the queue.
    pub(crate) fn drop_cancelled(&self) {
        let mut work = self.work.lock();
        work.copies.retain(|(job, _)| !job.is_cancelled());
    }

    /// Queues an access and waits until it is completed. `ENODEV`; `ENOMEM`.
    pub(crate) fn access(&self, access: &Arc<Access>) -> Result {
        {
            let mut work = self.work.lock();
            if work.stop {
                return Err(ENODEV);
            }
            work.accesses.push(access.clone(), GFP_KERNEL)?;
        }
        self.wake.notify_all();
        access.done.wait_for_completion();
        Ok(())
    }

    /// Whether an access to `range` of the mirror with tag `tag` is in progress.
    pub(crate) fn is_under_way(&self, tag: u64, range: PageRange) -> bool {
        let under_way = *self.in_flight.lock();
        under_way.is_some_and(|(of, page)| of == tag && range.index_of(page).is_some())
    }

    /// Waits until the access in progress is completed. Called by flushes.
    pub(crate) fn wait_for_landing(&self) {
        if self.skip.load(Relaxed) != 0 {
            self.skip.fetch_sub(1, Relaxed);
            return;
        }
        let mut in_flight = self.in_flight.lock();
        let first = *in_flight;
        // Signals must not end the wait: the engine may still access the page.
        while in_flight.is_some() && *in_flight == first {
            let _why = self
                .access_done
                .wait_interruptible_timeout(&mut in_flight, 10);
        }
    }
}

/// Offsets in a page of the CPU of the transfers that it takes.
fn transfers() -> impl Iterator<Item = u64> {
    (0..PAGE_BYTES).step_by(TRANSFER_BYTES as usize)
}
