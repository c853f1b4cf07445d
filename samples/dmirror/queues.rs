// SPDX-License-Identifier: GPL-2.0

//! The queues and fences of an open file, and the numbers by which user space refers to them.
//!
//! A mutex protects the tables. Queues and fences are dropped without it, because the drop of a
//! queue waits for its operations. The slot of a fence is reserved before its operation is
//! submitted, so that a failure cannot leave an operation without a number.

use crate::{
    blit::Locked,
    client::Client,
    device::View,
    hardware::{
        command::CommandDesc,
        status::ECANCELED, //
    },
    uapi, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        Arc,
        Mutex,
        SetOnce, //
    },
    time::Delta, //
};
use rust_hmm::{
    kernel::{
        cancel::CancelToken,
        dma_fence::DmaFence,
        fence::{
            DriverFence,
            Fence, //
        },
        fence_watch::{
            FenceWatch,
            WatchedFence, //
        },
        identity::FenceType,
        miscdevice::{
            PollFlags,
            Poller, //
        }, //
    },
    managed::{
        finish_allocation_async,
        Allocation, //
    },
    mirror::Mirror,
    mm::addr::PageRange,
    queue::{
        HasMirror,
        Queue,
        TransferReport,
        WorkerPool, //
    }, //
};

/// Maximum number of queues of a file.
const MAX_QUEUES: usize = 16;

/// Maximum number of fences of a file.
const MAX_FENCES: usize = 4096;

/// Capacity of a queue.
const QUEUE_DEPTH: usize = 2048;

/// Interval at which a running operation checks for cancellation.
const CANCEL_POLL_INTERVAL: Delta = Delta::from_millis(50);

/// Identifies this type of device by its address.
static KIND: u8 = 0;

/// Results of an operation. They are final when its fence is signalled.
#[derive(Clone)]
pub(crate) struct Findings {
    /// Numbers of migrated pages, and timestamps.
    pub(crate) report: Arc<TransferReport>,
    /// Result of an engine's command.
    value: Arc<Atomic<u64>>,
}

impl Findings {
    fn new() -> Result<Self> {
        Ok(Self {
            report: Arc::new(TransferReport::new(), GFP_KERNEL_ACCOUNT)?,
            value: Arc::new(Atomic::new(0), GFP_KERNEL_ACCOUNT)?,
        })
    }

    /// Returns the result of an engine's command.
    pub(crate) fn value(&self) -> u64 {
        self.value.load(Relaxed)
    }
}

/// An operation of a queue.
pub(crate) enum Work {
    Migrate(PageRange),
    Prefetch(PageRange),
    Evict(PageRange),
    Copy { to: PageRange, from: PageRange },
    Engine(CommandDesc),
}

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

    /// Reserves a number for a fence. Called before an operation is queued, because afterwards no
    /// error can be returned.
    pub(crate) fn number(&self) -> Result<Number<'_>> {
        let findings = Findings::new()?;
        let mut tables = self.tables.lock();
        let places = tables.reserved + 1;
        if tables.fences.len() + places > MAX_FENCES {
            return Err(EMFILE);
        }
        tables.fences.reserve(places, GFP_KERNEL_ACCOUNT)?;
        tables.reserved = places;
        Ok(Number {
            queues: self,
            findings,
        })
    }

    /// Imports the DMA fence of a sync file. `EMFILE`; `ENOMEM`.
    pub(crate) fn import(&self, dma: DmaFence) -> Result<u64> {
        let number = self.number()?;
        // All imports of a DMA fence share one fence, so that it has one callback only.
        let existing = {
            let tables = self.tables.lock();
            let mut sides = tables.fences.iter().map(|named| &named.side);
            let same = sides.find(|side| side.dma.as_ref() == Some(&dma));
            same.map(|side| side.fence.clone())
        };
        let fence = match existing {
            Some(fence) => fence,
            None => Fence::of(&dma)?,
        };
        Ok(number.name(Side {
            fence,
            dma: Some(dma),
            host: None,
        }))
    }

    /// Imports fence `id` of another file. `EMFILE`; `ENOMEM`; `ENOENT`.
    pub(crate) fn share(&self, other: &Self, id: u64) -> Result<u64> {
        let side = {
            let mut tables = other.tables.lock();
            let Side { fence, dma, .. } = &tables.named(id)?.side;
            Side {
                fence: fence.clone(),
                dma: dma.clone(),
                host: None,
            }
        };
        Ok(self.number()?.name(side))
    }

    /// Creates a fence that the host signals.
    pub(crate) fn create_fence(&self) -> Result<u64> {
        let pending = DriverFence::new(FenceType::NONE)?;
        let side = Side {
            fence: pending.fence(),
            dma: None,
            host: Some(pending),
        };
        Ok(self.number()?.name(side))
    }

    /// Signals a fence of the host. `ENOENT`; `EINVAL` if the host did not create it, or it was
    /// already signalled.
    pub(crate) fn signal(&self, id: u64, result: Result) -> Result {
        let host = self.tables.lock().named(id)?.side.host.take();
        host.ok_or(EINVAL)?.signal(result);
        Ok(())
    }

    /// Returns fence `id` and the results of its operation. `ENOENT`.
    pub(crate) fn fence(&self, id: u64) -> Result<(Fence, Findings)> {
        let mut tables = self.tables.lock();
        let named = tables.named(id)?;
        Ok((named.side.fence.clone(), named.findings.clone()))
    }

    /// Returns the DMA fence of fence `id`.
    ///
    /// # Errors
    ///
    /// - `ENOENT`
    /// - `EOPNOTSUPP`: it is not a DMA fence: its operation may fault, take an mmap lock or wait
    ///   for user space.
    pub(crate) fn dma_fence(&self, id: u64) -> Result<DmaFence> {
        let mut tables = self.tables.lock();
        let dma = tables.named(id)?.side.dma.clone();
        dma.ok_or(Error::from_errno(uapi::EOPNOTSUPP))
    }

    /// Makes `poll()` report the end of a fence, until [`Self::reported`] or its release. `ENOENT`;
    /// `ENOMEM`.
    pub(crate) fn watch(&self, id: u64) -> Result {
        if self.watch.as_ref().is_none() {
            // If a concurrent task has populated it, this one is dropped.
            self.watch.populate(FenceWatch::new()?);
        }
        let watch = self.watch.as_ref().ok_or(EBUSY)?;
        let (fence, _) = self.fence(id)?;
        let watched = WatchedFence::new(fence, watch.clone())?;
        // Dropped without the lock.
        let _before = self.tables.lock().named(id)?.watched.replace(watched);
        Ok(())
    }

    /// Stops reporting a fence in `poll()` after user space has read its outcome.
    pub(crate) fn reported(&self, id: u64) {
        // Dropped without the lock.
        let _watched = {
            let mut tables = self.tables.lock();
            tables.named(id).ok().and_then(|named| named.watched.take())
        };
    }

    /// Whether a fence of [`Self::watch`] has ended; `None` if `watch()` was never called.
    pub(crate) fn poll(&self, waiter: &Poller<'_>) -> Option<PollFlags> {
        let watch = self.watch.as_ref()?;
        waiter.add(watch.changed());
        Some(if watch.is_ready() {
            PollFlags::PRIORITY
        } else {
            PollFlags::NOTHING
        })
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

    /// Releases a fence. A fence of the host that was not signalled is cancelled. `ENOENT`.
    pub(crate) fn release(&self, id: u64) -> Result {
        let mut tables = self.tables.lock();
        let at = tables.at(id)?;
        let gone = tables.fences.remove(at);
        drop(tables);
        drop(gone);
        Ok(())
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

/// Reservation of a number for a fence. Dropping it cancels the reservation.
pub(crate) struct Number<'a> {
    queues: &'a Queues,
    findings: Findings,
}

impl Number<'_> {
    /// Assigns the number to a fence.
    fn name(self, side: Side) -> u64 {
        let tables = &mut *self.queues.tables.lock();
        tables.last_fence += 1;
        let id = tables.last_fence;
        let named = Named {
            id,
            side,
            findings: self.findings.clone(),
            watched: None,
        };
        // Cannot fail: the element was reserved.
        let _full = tables.fences.push_within_capacity(named);
        id
    }

    /// Queues the population of a new managed allocation. The memory is unmapped if that cannot be
    /// queued, or fails.
    pub(crate) fn allocated(
        self,
        client: &Arc<Client>,
        queue: &Queue,
        memory: Allocation,
    ) -> Result<u64> {
        let after = KVec::new();
        let owner = client.clone();
        let fence = finish_allocation_async(queue, after, owner, memory, &self.findings.report)?;
        Ok(self.name(fence.into()))
    }
}

impl Drop for Number<'_> {
    fn drop(&mut self) {
        self.queues.tables.lock().reserved -= 1;
    }
}

impl HasMirror for Client {
    type Device = View;

    fn mirror(&self) -> &Mirror<View> {
        Self::mirror(self)
    }

    fn worker_pool(&self) -> Option<&WorkerPool> {
        Some(&self.device().worker_pool)
    }

    fn copy(self: &Arc<Self>, to: PageRange, from: PageRange, stop: &CancelToken) -> Result {
        self.run(CommandDesc::copy(to, from)?, stop).map(|_| ())
    }
}

impl Client {
    /// Runs a command on any engine and waits until it has ended. Returns its result.
    fn run(self: &Arc<Self>, spec: CommandDesc, stop: &CancelToken) -> Result<u64> {
        let id = loop {
            stop.check()?;
            match self.submit(None, spec) {
                // The engine's queue is full: wait for other commands to end.
                Err(error) if error == EBUSY => kernel::time::delay::fsleep(Delta::from_millis(1)),
                result => break result?,
            }
        };
        let status = self.status(id)?;
        while let Err(error) = status.wait(Some(CANCEL_POLL_INTERVAL)) {
            if error != ETIMEDOUT || stop.is_set() {
                // A concurrent task may have stopped and released it already.
                let _gone = self.stop(id);
            }
        }
        let report = status.report();
        self.forget(id);
        match report.ended {
            Some(result) => result.map(|()| report.result),
            None => Err(Error::from_errno(ECANCELED)),
        }
    }
}
