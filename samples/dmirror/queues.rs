// SPDX-License-Identifier: GPL-2.0

//! The queues and fences of an open file, and the numbers by which user space refers to them.
//!
//! A mutex protects the tables. Queues and fences are dropped without it, because the drop of a
//! queue waits for its operations. The slot of a fence is reserved before its operation is
//! submitted, so that a failure cannot leave an operation without a number.
//!
//! - `fences`: the fences of a file; `work`: the operations of a queue.

use crate::{
    blit::Locked,
    client::Client, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::ordering::Relaxed,
        Arc,
        Mutex,
        SetOnce, //
    }, //
};
use rust_hmm::{
    kernel::{
        dma_fence::DmaFence,
        fence::{
            DriverFence,
            Fence, //
        },
        fence_watch::{
            FenceWatch,
            WatchedFence, //
        },
        identity::FenceType, //
    },
    queue::Queue, //
};
use work::{
    Findings,
    Work, //
};

mod fences;
pub(crate) mod work;

/// Maximum number of queues of a file.
const MAX_QUEUES: usize = 16;

/// Capacity of a queue.
const QUEUE_DEPTH: usize = 2048;

/// Identifies this type of device by its address.
static KIND: u8 = 0;

/// A fence, with its DMA fence or its signalling side.
struct Side {
    fence: Fence,
    /// The DMA fence that `fence` wraps. Only this one can be exported as a sync file.
    dma: Option<DmaFence>,
    /// The signalling side of a fence that the host signals.
    host: Option<DriverFence>,
}

impl From<Fence> for Side {
    fn from(fence: Fence) -> Self {
        Self {
            fence,
            dma: None,
            host: None,
        }
    }
}

/// A fence with a number.
struct Named {
    id: u64,
    side: Side,
    findings: Findings,
    /// Set while `poll()` reports the end of the fence.
    watched: Option<Pin<KBox<WatchedFence>>>,
}

struct Tables {
    queues: KVec<(u32, Arc<Queue>)>,
    /// Sorted by number.
    fences: KVec<Named>,
    /// Reserved elements of `fences`, one for each [`Number`].
    reserved: usize,
    last_queue: u32,
    last_fence: u64,
}

impl Tables {
    fn at(&self, id: u64) -> Result<usize> {
        self.fences
            .binary_search_by_key(&id, |named| named.id)
            .map_err(|_| ENOENT)
    }

    fn named(&mut self, id: u64) -> Result<&mut Named> {
        let at = self.at(id)?;
        self.fences.get_mut(at).ok_or(ENOENT)
    }
}

/// The queues and fences of a file.
#[pin_data]
pub(crate) struct Queues {
    #[pin]
    tables: Mutex<Tables>,
    /// Set by the first call of [`Self::watch`].
    watch: SetOnce<Arc<FenceWatch>>,
}

impl Queues {
    pub(crate) fn new() -> impl PinInit<Self> {
        let tables = Tables {
            queues: KVec::new(),
            fences: KVec::new(),
            reserved: 0,
            last_queue: 0,
            last_fence: 0,
        };
        pin_init!(Self {
            tables <- kernel::new_mutex!(tables, "dmirror::queues"),
            watch: SetOnce::new(),
        })
    }

    /// Creates a queue. `EMFILE`; `ENOMEM`; `EINTR`.
    pub(crate) fn create(&self) -> Result<u32> {
        let queue = Arc::new(
            Queue::new(FenceType::of(&KIND), QUEUE_DEPTH)?,
            GFP_KERNEL_ACCOUNT,
        )?;
        let mut tables = self.tables.lock();
        if tables.queues.len() >= MAX_QUEUES {
            // Unlock first: dropping the queue waits for its thread.
            drop(tables);
            return Err(EMFILE);
        }
        tables.last_queue += 1;
        let number = tables.last_queue;
        tables.queues.push((number, queue), GFP_KERNEL_ACCOUNT)?;
        Ok(number)
    }

    /// Destroys a queue and cancels its pending operations. `ENOENT`.
    pub(crate) fn destroy(&self, number: u32) -> Result {
        let mut tables = self.tables.lock();
        let at = tables.queues.iter().position(|(other, _)| *other == number);
        let gone = tables.queues.remove(at.ok_or(ENOENT)?);
        drop(tables);
        drop(gone);
        Ok(())
    }

    /// Returns queue `number`. `ENOENT`.
    pub(crate) fn queue(&self, number: u32) -> Result<Arc<Queue>> {
        let tables = self.tables.lock();
        let found = tables.queues.iter().find(|(other, _)| *other == number);
        Ok(found.ok_or(ENOENT)?.1.clone())
    }

    /// Queues a blit that depends on the DMA fences `after`. Returns the number of its DMA fence.
    pub(crate) fn blit(
        &self,
        client: &Client,
        (to, from): (Locked, Locked),
        bytes: usize,
        after: &[DmaFence],
    ) -> Result<u64> {
        let id = self.number()?;
        // The number is reserved before the DMA fence is created, because no error can be returned
        // afterwards.
        let (fence, dma) =
            client
                .device()
                .blits
                .submit(to, from, bytes, after, FenceType::of(&KIND))?;
        Ok(id.name(Side {
            fence,
            dma: Some(dma),
            host: None,
        }))
    }

    /// Creates a fence that is signalled when all queued operations are completed.
    pub(crate) fn record(&self, number: u32) -> Result<u64> {
        let queue = self.queue(number)?;
        let id = self.number()?;
        Ok(id.name(queue.record()?.into()))
    }

    /// Queues `work`, which depends on the fences `after`.
    pub(crate) fn submit(
        &self,
        client: &Arc<Client>,
        number: u32,
        after: KVec<Fence>,
        work: Work,
    ) -> Result<u64> {
        let queue = self.queue(number)?;
        let id = self.number()?;
        let report = &id.findings.report;
        let owner = client.clone();
        let fence = match work {
            Work::Migrate(range) => queue.migrate(after, owner, range, report),
            Work::Prefetch(range) => queue.prefetch(after, owner, range, report),
            Work::Evict(range) => queue.evict(after, owner, range, report),
            Work::Copy { to, from } => queue.copy(after, owner, to, from, report),
            Work::Engine(spec) => {
                let findings = id.findings.clone();
                queue.submit(after, move |stop| {
                    findings.report.during(|| {
                        findings.value.store(owner.run(spec, stop)?, Relaxed);
                        Ok(())
                    })
                })
            }
        }?;
        Ok(id.name(fence.into()))
    }

    /// Releases all fences and destroys all queues when the file is closed.
    pub(crate) fn close(&self) {
        let mut tables = self.tables.lock();
        let queues = core::mem::take(&mut tables.queues);
        let fences = core::mem::take(&mut tables.fences);
        drop(tables);
        // Fences of the host first: cancelling them ends queued operations that wait for them.
        drop(fences);
        drop(queues);
    }
}
