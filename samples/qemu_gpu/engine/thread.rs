// SPDX-License-Identifier: GPL-2.0

//! The thread of the engine: transfers, one at a time, and the copies that consist of them.

use super::{
    transfers,
    EngineRegisters,
    BUFFER_ADDRESS,
    COMMAND,
    COUNT,
    DESTINATION,
    FROM_BUFFER,
    INTERRUPT,
    PAGE_BYTES,
    SOURCE,
    START,
    TRANSFER_BYTES, //
};
use kernel::{
    io::Io,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::ordering::{
            Acquire,
            Relaxed, //
        },
        Arc, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    }, //
};
use rust_hmm::{
    memory::{
        CopyJob,
        DmaCopy, //
    },
    mirror::PageAddress,
    mm::pci::PciMemory, //
};

/// Timeout of a transfer.
const TRANSFER_TIMEOUT: Delta = Delta::from_secs(20);

impl EngineRegisters {
    pub(super) fn run(self) {
        let engine = self.engine.clone();
        loop {
            self.serve_accesses();
            let mut work = engine.work.lock();
            if work.stop {
                break;
            }
            if !work.accesses.is_empty() {
                continue;
            }
            match work.copies.remove(0) {
                Ok((job, to)) => {
                    drop(work);
                    self.copy(job, to);
                }
                // A kernel thread gets no signals.
                Err(_) => drop(engine.wake.wait_interruptible(&mut work)),
            }
        }
        engine.peers.lock().clear();
        let own = engine.own_interrupt.lock().take();
        drop(own);
        let (copies, accesses) = {
            let mut work = engine.work.lock();
            (
                core::mem::take(&mut work.copies),
                core::mem::take(&mut work.accesses),
            )
        };
        // Dropping a job completes it with an error.
        drop(copies);
        for access in accesses {
            drop(access.client.lock().take());
            access.page.lock().1 = Err(ENODEV);
            access.done.complete_all();
        }
    }

    /// Starts a transfer. `EINVAL` if an address exceeds the 32 bits that the device supports;
    /// `ENODEV`.
    fn begin(&self, from: u64, to: u64, direction: u32) -> Result<u64> {
        if self.engine.is_deaf.load(Relaxed) {
            return Err(ENODEV);
        }
        let registers = self.engine.registers.try_access().ok_or(ENODEV)?;
        let before = self.engine.finished.load(Acquire);
        registers.write32(u32::try_from(from)?, SOURCE);
        registers.write32(u32::try_from(to)?, DESTINATION);
        registers.write32(TRANSFER_BYTES as u32, COUNT);
        registers.write32(START | direction | INTERRUPT, COMMAND);
        Ok(before)
    }

    fn end(&self, before: u64) -> Result {
        let since = Instant::<Monotonic>::now();
        while self.engine.finished.load(Acquire) == before {
            if since.elapsed() > TRANSFER_TIMEOUT {
                pr_err!("qemu_gpu: no interrupt\n");
                return Err(EIO);
            }
            self.engine.completion.wait_timeout(100);
        }
        Ok(())
    }

    pub(super) fn load(&self, from: u64) -> Result {
        self.end(self.begin(from, BUFFER_ADDRESS, 0)?)
    }

    pub(super) fn store(&self, to: u64) -> Result {
        self.end(self.begin(BUFFER_ADDRESS, to, FROM_BUFFER)?)
    }

    /// Returns the bus address of `target`. `to` is the memory of the target if that belongs to
    /// another GPU.
    fn address(&self, target: PageAddress, to: Option<&Arc<PciMemory>>) -> Result<u64> {
        Ok(match (target, to) {
            (PageAddress::Dma(address), _) => address.raw(),
            (PageAddress::Device(at), None) => {
                self.vram.address(at, PAGE_BYTES).ok_or(ENODEV)?.raw()
            }
            (PageAddress::Device(at), Some(memory)) => {
                let peers = self.engine.peers.lock();
                let peer = peers.iter().find(|peer| peer.is_of(memory));
                peer.and_then(|peer| peer.address(at, PAGE_BYTES))
                    .ok_or(ENODEV)?
                    .raw()
            }
        })
    }

    fn copy(&self, job: CopyJob, to: Option<Arc<PciMemory>>) {
        // On failure, `DmaCopy::new()` has dropped the job, which fails it.
        let Ok(copy) = DmaCopy::new(job, &self.engine.dma) else {
            return;
        };
        let at = match self.copy_up_to_last(&copy, to.as_ref()) {
            Ok(at) => at,
            Err(error) => return copy.complete(Err(error)),
        };
        *self.engine.last.lock() = Some(copy);
        let stored = self.store(at);
        // The interrupt handler has completed the copy, unless there was no interrupt.
        let copy = self.engine.last.lock().take();
        if let Some(copy) = copy {
            copy.complete(stored.and(Err(EIO)));
        }
    }

    /// Performs all transfers of a copy but the last one, which stores the internal buffer. Returns
    /// the bus address to which it is stored.
    fn copy_up_to_last(&self, copy: &DmaCopy, to: Option<&Arc<PciMemory>>) -> Result<u64> {
        let mut last = None;
        for index in 0..copy.pages() {
            if let Some(at) = last.take() {
                self.store(at)?;
            }
            // Accesses use the internal buffer, which is free between two pages.
            self.serve_accesses();
            self.delay();
            if copy.is_cancelled() {
                return Err(EINTR);
            }
            let zeros = self.staging.address(PAGE_SIZE).ok_or(EINVAL)?;
            let from = copy.source(index)?.unwrap_or(PageAddress::Dma(zeros));
            let from = self.address(from, None)?;
            let to = self.address(copy.destination(index)?, to)?;
            for offset in transfers() {
                if let Some(at) = last.replace(to + offset) {
                    self.store(at)?;
                }
                self.load(from + offset)?;
            }
        }
        last.ok_or(EINVAL)
    }

    /// Simulates a longer copy, and serves accesses meanwhile.
    fn delay(&self) {
        let since = Instant::<Monotonic>::now();
        while since.elapsed() < self.engine.delay {
            self.serve_accesses();
            fsleep(Delta::from_millis(1));
        }
    }

    pub(super) fn serve_accesses(&self) {
        loop {
            // The queue is empty if all accesses were served.
            let Ok(access) = self.engine.work.lock().accesses.remove(0) else {
                return;
            };
            let mut page = access.page.lock();
            let (contents, outcome) = &mut *page;
            let client = access.client.lock().take();
            *outcome = match &client {
                Some(client) => self.access(client, &access, contents),
                None => Err(EINVAL),
            };
            drop((client, page));
            access.done.complete_all();
        }
    }
}
