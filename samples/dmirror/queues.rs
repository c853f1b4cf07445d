// SPDX-License-Identifier: GPL-2.0

//! The queues and fences of an open file, by the numbers that user space knows them by.

use crate::{
    blit::Locked,
    client::Client,
    device::View,
    hardware::{command::Spec, status::ECANCELED},
    uapi,
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc,
        Mutex,
        SetOnce, //
    },
    time::Delta,
};
use rust_hmm::{
    managed::{allocated_later, Allocation},
    mirror::Mirror,
    mm::{
        addr::PageRange,
        dma_fence::DmaFence,
        fence::{Fence, Pending},
        fence_watch::{Watch, Watched},
        notifier::Cookie,
    },
    node::{Ready, Waiter},
    queue::{Crew, HasMirror, Queue, Report, Stop},
};

/// Queues that a file can have.
const QUEUES: usize = 16;

/// Fences that a file can have.
const FENCES: usize = 4096;

/// Items that a queue holds.
const DEPTH: usize = 2048;

/// Time between two looks whether an operation should end.
const LOOK: Delta = Delta::from_millis(50);

/// Its address names this type of device.
static KIND: u8 = 0;

/// What an operation did; complete when its fence is signalled.
#[derive(Clone)]
pub(crate) struct Findings {
    /// Pages that it moved, and when.
    pub(crate) report: Arc<Report>,
    /// What an engine found.
    value: Arc<Atomic<u64>>,
}

impl Findings {
    fn new() -> Result<Self> {
        Ok(Self {
            report: Arc::new(Report::new(), GFP_KERNEL_ACCOUNT)?,
            value: Arc::new(Atomic::new(0), GFP_KERNEL_ACCOUNT)?,
        })
    }

    /// The result of a command.
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
    Engine(Spec),
}

/// A fence, and what else there is of it.
struct Side {
    fence: Fence,
    /// The DMA fence that it stands for: only that may leave as a sync file.
    dma: Option<DmaFence>,
    /// For one that the host signals.
    host: Option<Pending>,
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

/// A fence that has a number.
struct Named {
    id: u64,
    side: Side,
    findings: Findings,
    /// While `poll` reports its end.
    watched: Option<Pin<KBox<Watched>>>,
}

struct Tables {
    queues: KVec<(u32, Arc<Queue>)>,
    /// In the order of their numbers.
    fences: KVec<Named>,
    /// Places in `fences` that are reserved.
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
    /// From the first time on that `poll` is to report a fence.
    watch: SetOnce<Arc<Watch>>,
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

    /// Makes a queue. `EMFILE`; `ENOMEM`; `EINTR`.
    pub(crate) fn create(&self) -> Result<u32> {
        let queue = Arc::new(Queue::new(Cookie::of(&KIND), DEPTH)?, GFP_KERNEL_ACCOUNT)?;
        let mut tables = self.tables.lock();
        if tables.queues.len() >= QUEUES {
            // Not under the lock: the drop waits for the queue's thread.
            drop(tables);
            return Err(EMFILE);
        }
        tables.last_queue += 1;
        let number = tables.last_queue;
        tables.queues.push((number, queue), GFP_KERNEL_ACCOUNT)?;
        Ok(number)
    }

    /// Ends a queue; what has not begun is cancelled. `ENOENT`.
    pub(crate) fn destroy(&self, number: u32) -> Result {
        let mut tables = self.tables.lock();
        let at = tables.queues.iter().position(|(other, _)| *other == number);
        let gone = tables.queues.remove(at.ok_or(ENOENT)?);
        drop(tables);
        drop(gone);
        Ok(())
    }

    /// The queue of that number. `ENOENT`.
    pub(crate) fn queue(&self, number: u32) -> Result<Arc<Queue>> {
        let tables = self.tables.lock();
        let found = tables.queues.iter().find(|(other, _)| *other == number);
        Ok(found.ok_or(ENOENT)?.1.clone())
    }

    /// A number for a fence, before there is one: once an operation is queued nothing may fail any more.
    ///
    /// # Errors
    ///
    /// `EMFILE`; `ENOMEM`.
    pub(crate) fn number(&self) -> Result<Number<'_>> {
        let findings = Findings::new()?;
        let mut tables = self.tables.lock();
        let places = tables.reserved + 1;
        if tables.fences.len() + places > FENCES {
            return Err(EMFILE);
        }
        tables.fences.reserve(places, GFP_KERNEL_ACCOUNT)?;
        tables.reserved = places;
        Ok(Number {
            queues: self,
            findings,
        })
    }

    /// Gives a number to the DMA fence of a sync file. `EMFILE`; `ENOMEM`.
    pub(crate) fn import(&self, dma: DmaFence) -> Result<u64> {
        let number = self.number()?;
        // One fence for all numbers: each would be one more callback that the signal of the DMA fence calls.
        let known = {
            let tables = self.tables.lock();
            let mut sides = tables.fences.iter().map(|named| &named.side);
            let same = sides.find(|side| side.dma.as_ref() == Some(&dma));
            same.map(|side| side.fence.clone())
        };
        let fence = match known {
            Some(fence) => fence,
            None => Fence::of(&dma)?,
        };
        Ok(number.name(Side {
            fence,
            dma: Some(dma),
            host: None,
        }))
    }

    /// Gives a number to fence `id` of another file. `EMFILE`; `ENOMEM`; `ENOENT`.
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

    /// A fence that the host signals.
    pub(crate) fn create_fence(&self) -> Result<u64> {
        let pending = Pending::new(Cookie::NONE)?;
        let side = Side {
            fence: pending.fence(),
            dma: None,
            host: Some(pending),
        };
        Ok(self.number()?.name(side))
    }

    /// Signals a fence of the host. `ENOENT`; `EINVAL` if it is not the host's, or signalled.
    pub(crate) fn signal(&self, id: u64, result: Result) -> Result {
        let host = self.tables.lock().named(id)?.side.host.take();
        host.ok_or(EINVAL)?.signal(result);
        Ok(())
    }

    /// The fence of that number, and what its operation did. `ENOENT`.
    pub(crate) fn fence(&self, id: u64) -> Result<(Fence, Findings)> {
        let mut tables = self.tables.lock();
        let named = tables.named(id)?;
        Ok((named.side.fence.clone(), named.findings.clone()))
    }

    /// The DMA fence of that number.
    ///
    /// # Errors
    ///
    /// - `ENOENT`
    /// - `EOPNOTSUPP`: its operation may fault, take an mmap lock or wait for user space.
    pub(crate) fn dma_fence(&self, id: u64) -> Result<DmaFence> {
        let mut tables = self.tables.lock();
        let dma = tables.named(id)?.side.dma.clone();
        dma.ok_or(Error::from_errno(uapi::EOPNOTSUPP))
    }

    /// Has `poll` report the end of a fence, until [`Self::reported`] or its release. `ENOENT`; `ENOMEM`.
    pub(crate) fn watch(&self, id: u64) -> Result {
        if self.watch.as_ref().is_none() {
            // If another task was faster, this one is dropped.
            self.watch.populate(Watch::new()?);
        }
        let watch = self.watch.as_ref().ok_or(EBUSY)?;
        let (fence, _) = self.fence(id)?;
        let watched = Watched::new(fence, watch.clone())?;
        // Dropped without the lock.
        let _before = self.tables.lock().named(id)?.watched.replace(watched);
        Ok(())
    }

    /// The end of a fence was reported.
    pub(crate) fn reported(&self, id: u64) {
        // Dropped without the lock.
        let _watched = {
            let mut tables = self.tables.lock();
            tables.named(id).ok().and_then(|named| named.watched.take())
        };
    }

    /// Whether a fence of [`Self::watch`] has ended; `None` if there never was one.
    pub(crate) fn poll(&self, waiter: &Waiter<'_>) -> Option<Ready> {
        let watch = self.watch.as_ref()?;
        waiter.add(watch.changed());
        Some(match watch.is_ready() {
            true => Ready::PRIORITY,
            false => Ready::NOTHING,
        })
    }

    /// Copies locked memory after the DMA fences `after`. Returns the number of a DMA fence.
    pub(crate) fn blit(
        &self,
        client: &Client,
        (to, from): (Locked, Locked),
        bytes: usize,
        after: &[DmaFence],
    ) -> Result<u64> {
        let id = self.number()?;
        // Before the fence is made: nothing may fail afterwards.
        let (fence, dma) =
            client
                .device()
                .blits
                .submit(to, from, bytes, after, Cookie::of(&KIND))?;
        Ok(id.name(Side {
            fence,
            dma: Some(dma),
            host: None,
        }))
    }

    /// Forgets a fence. One of the host's that was not signalled is cancelled. `ENOENT`.
    pub(crate) fn release(&self, id: u64) -> Result {
        let mut tables = self.tables.lock();
        let at = tables.at(id)?;
        let gone = tables.fences.remove(at);
        drop(tables);
        drop(gone);
        Ok(())
    }

    /// A fence for all that is in the queue now.
    pub(crate) fn record(&self, number: u32) -> Result<u64> {
        let (queue, id) = (self.queue(number)?, self.number()?);
        Ok(id.name(queue.record()?.into()))
    }

    /// Puts `work` into a queue, after the fences `after`.
    pub(crate) fn submit(
        &self,
        client: &Arc<Client>,
        number: u32,
        after: KVec<Fence>,
        work: Work,
    ) -> Result<u64> {
        let (queue, id) = (self.queue(number)?, self.number()?);
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

    /// Ends all of it.
    pub(crate) fn close(&self) {
        let mut tables = self.tables.lock();
        let queues = core::mem::take(&mut tables.queues);
        let fences = core::mem::take(&mut tables.fences);
        drop(tables);
        // First those of the host, which queues may wait for.
        drop(fences);
        drop(queues);
    }
}

/// A number that a fence will have. Dropped, it is nobody's.
pub(crate) struct Number<'a> {
    queues: &'a Queues,
    findings: Findings,
}

impl Number<'_> {
    /// Gives it to a fence.
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
        // There is room.
        let _full = tables.fences.push_within_capacity(named);
        id
    }

    /// Populates managed memory that was just mapped; if that fails, or cannot be queued, it is unmapped.
    pub(crate) fn allocated(
        self,
        client: &Arc<Client>,
        queue: &Queue,
        memory: Allocation,
    ) -> Result<u64> {
        let (after, owner) = (KVec::new(), client.clone());
        let fence = allocated_later(queue, after, owner, memory, &self.findings.report)?;
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

    fn crew(&self) -> Option<&Crew> {
        Some(&self.device().crew)
    }

    fn copy(self: &Arc<Self>, to: PageRange, from: PageRange, stop: &Stop) -> Result {
        self.run(Spec::copy(to, from)?, stop).map(|_| ())
    }
}

impl Client {
    /// Has any engine carry out a command, and waits for its end. Returns what it found.
    ///
    /// # Errors
    ///
    /// That of the command; `ECANCELED` if it was stopped.
    fn run(self: &Arc<Self>, spec: Spec, stop: &Stop) -> Result<u64> {
        let id = loop {
            stop.check()?;
            match self.submit(None, spec) {
                // Others have to end first.
                Err(error) if error == EBUSY => kernel::time::delay::fsleep(Delta::from_millis(1)),
                result => break result?,
            }
        };
        let status = self.status(id)?;
        while let Err(error) = status.wait(Some(LOOK)) {
            if error != ETIMEDOUT || stop.is_set() {
                // If it is not there any more, somebody else has stopped it.
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
