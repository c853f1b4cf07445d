// SPDX-License-Identifier: GPL-2.0

//! The fences of an open file: their numbers, imports, exports, and their end in `poll()`.

use super::{
    work::Findings,
    Named,
    Queues,
    Side, //
};
use crate::{
    client::Client,
    uapi, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
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
    queue::Queue, //
};

/// Maximum number of fences of a file.
const MAX_FENCES: usize = 4096;

impl Queues {
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

    /// Releases a fence. A fence of the host that was not signalled is cancelled. `ENOENT`.
    pub(crate) fn release(&self, id: u64) -> Result {
        let mut tables = self.tables.lock();
        let at = tables.at(id)?;
        let gone = tables.fences.remove(at);
        drop(tables);
        drop(gone);
        Ok(())
    }
}

/// Reservation of a number for a fence. Dropping it cancels the reservation.
pub(crate) struct Number<'a> {
    queues: &'a Queues,
    pub(super) findings: Findings,
}

impl Number<'_> {
    /// Assigns the number to a fence.
    pub(super) fn name(self, side: Side) -> u64 {
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
