// SPDX-License-Identifier: GPL-2.0

//! Device memory: allocation, CPU faults, eviction.
//!
//! A [`Memory`] is shared by all mirrors of the device. Its pages are ordinary pages of the
//! processes that map them. CPU faults and eviction need no mirror, because the process that
//! migrated a page may have exited or forked since.
//!
//! - `create` creates a memory, `numbers` converts between its page numbers and page frames, and
//!   `allocator` allocates its pages.
//! - `arrivals` and `steps` count migrations to and from the memory. An unplug waits for both.
//! - `reclaim` and `evict` free blocks, in the order that `lru` records. One task at a time claims
//!   a block.
//! - `splits` splits huge pages in a workqueue, because a CPU fault has a reference that prevents
//!   it. `worker` frees idle chunks in a thread, because reclaim cannot take the memory hotplug
//!   lock.
//! - `copy` and `copying` pass copies to the driver, and wait for them with the pages locked.
//! - `pipeline` is the sequence of all migrations, from the isolation to the end.

use crate::{
    debug::{
        registry::DebugEntry,
        stats::Stats, //
    },
    inject::DeviceFaults,
    kernel::{
        deferred::{
            Deferred,
            DropWaits, //
        },
        identity::{
            MemoryId,
            PgmapOwner, //
        }, //
    },
    mm::{
        device_pages::{
            DevicePages,
            MemoryKind, //
        },
        migrate::Origin, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::ordering::Relaxed,
        Arc,
        SetOnce, //
    }, //
};

mod allocator;
mod arrivals;
mod connect;
mod connection;
mod connection_cache;
mod copy;
mod copying;
mod cpu_fault;
mod create;
mod debugfs;
mod dma_copy;
mod evict;
mod lru;
mod mirrors;
mod no_memory;
mod numbers;
mod ops;
pub(crate) mod pipeline;
mod reclaim;
mod splits;
mod state;
mod steps;
mod unplug;
mod victims;
mod worker;

pub(crate) use arrivals::Arrival;
pub use connection::Connection;
#[cfg(CONFIG_RUST_HMM_CAPI)]
pub(crate) use copy::RawCopyJob;
pub(crate) use copy::{
    CopyContext,
    CopyEndpoint, //
};
pub use copy::{
    CopyDesc,
    CopyJob, //
};
pub(crate) use copying::Copying;
pub use dma_copy::DmaCopy;
pub(crate) use lru::LruStamp;
pub(crate) use mirrors::{
    MemoryClient,
    MirrorRegistration, //
};
pub use no_memory::NoMemory;
pub use ops::MemoryOps;
pub(crate) use state::Copier;
use state::MemoryState;
pub(crate) use steps::StepGuard;
use worker::MemoryWorker;

/// Memory of one device, shared by all its mirrors.
///
/// Dropping it evicts all pages, and waits until all are free. The driver copies the evicted pages.
/// Therefore `M` must own the copy engine.
///
/// # Context
///
/// The drop may sleep. In a callback, with a table lock held or in a section it returns at once;
/// a worker then evicts the pages after the callback has returned.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::memory::CopyJob;
/// use rust_hmm::memory::Memory;
/// use rust_hmm::memory::MemoryOps;
/// use rust_hmm::mm::device_pages::MemoryKind;
///
/// struct Vram;
///
/// impl MemoryOps for Vram {
///     // This device cannot copy: the pages stay in system memory.
///     fn copy(&self, job: CopyJob) {
///         job.complete(Err(EOPNOTSUPP));
///     }
/// }
///
/// let memory = KBox::pin_init(Memory::new(Vram, MemoryKind::Private, 4096), GFP_KERNEL)?;
/// assert_eq!(memory.limit(), 4096);
/// // In a suspend callback: no page stays on the device.
/// assert_eq!(memory.evict_all()?, 0);
/// # Ok::<(), Error>(())
/// ```
pub struct Memory<M: MemoryOps> {
    parts: Deferred<MemoryParts<M>>,
}

/// Parts of a device memory, in the order of their drop.
struct MemoryParts<M: MemoryOps> {
    /// Set on first use. Dropped before `pages`, to which it has a reference.
    worker: SetOnce<MemoryWorker<M>>,
    _debug_entry: DebugEntry,
    pages: Arc<DevicePages<MemoryState<M>>>,
}

impl<M: MemoryOps> DropWaits for MemoryParts<M> {
    /// The worker thread of the memory frees chunks. If it drops the last reference, the drop would
    /// wait for the thread itself.
    fn waits_for_current(&self) -> bool {
        self.worker.as_ref().is_some_and(MemoryWorker::is_current)
    }
}

impl<M: MemoryOps> Memory<M> {
    /// Returns the pages of the memory.
    #[inline]
    fn pages(&self) -> &Arc<DevicePages<MemoryState<M>>> {
        &self.parts.pages
    }

    /// Returns the driver's object.
    ///
    /// # Context
    ///
    /// Any.
    pub fn driver(&self) -> &M {
        &self.pages().data().driver
    }

    /// Returns the counters of CPU faults and evictions.
    ///
    /// # Context
    ///
    /// Any.
    pub fn stats(&self) -> &Stats {
        &self.pages().data().stats
    }

    /// Returns the number of the memory in tracepoints and debugfs.
    pub(crate) fn number(&self) -> u32 {
        self.pages().data().id
    }

    /// Returns the failures to inject into the device. Only for drivers for tests.
    ///
    /// # Context
    ///
    /// Any.
    pub fn faults(&self) -> &DeviceFaults {
        &self.pages().data().faults
    }

    /// Returns how the CPU can access the memory.
    ///
    /// # Context
    ///
    /// Any.
    pub fn kind(&self) -> MemoryKind {
        self.pages().kind()
    }

    /// Returns the number of pages in use, and of those that exist now.
    ///
    /// # Context
    ///
    /// Any.
    pub fn usage(&self) -> (usize, usize) {
        (self.pages().used(), self.pages().total())
    }

    /// Returns the maximum number of pages.
    ///
    /// # Context
    ///
    /// Any.
    pub fn limit(&self) -> usize {
        self.pages().limit()
    }

    /// Registers a mirror. Context: may sleep.
    pub(crate) fn add_peer(&self, mirror: Arc<dyn MemoryClient>) -> Result<MirrorRegistration> {
        self.pages().data().mirrors.add(mirror)
    }

    pub(crate) fn owner(&self) -> PgmapOwner {
        self.pages().owner()
    }

    /// Identifies the memory among those of the same owner.
    pub(crate) fn tile(&self) -> MemoryId {
        self.pages().tile()
    }

    /// Returns whether the owner may have other memories. If not, the owner's page numbers are
    /// those of this memory.
    #[inline]
    pub(crate) fn shares_owner(&self) -> bool {
        self.pages().shares_owner()
    }

    /// Returns the number of chunks of 256 MiB, and how many of them have no page in use.
    ///
    /// # Context
    ///
    /// Any.
    pub fn chunks(&self) -> (usize, usize) {
        self.pages().idle_chunks()
    }

    /// Identifies this memory as the source of an isolation.
    pub(crate) fn origin(&self) -> Origin {
        self.pages().origin()
    }

    /// Begins a step of a migration to this memory.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the device was unplugged.
    pub(crate) fn arrive(&self) -> Result<Arrival<'_>> {
        self.pages().data().arrivals.begin()
    }

    /// Begins a step of a migration from this memory. Must be called before the first page is
    /// isolated. An unplug waits until the step is dropped, because its copies need the device: the
    /// caller drops it when the copies have completed and the pages are mapped again.
    pub(crate) fn depart(&self) -> StepGuard<'_> {
        self.pages().data().departures.begin()
    }

    /// Returns whether the CPU cannot address the memory.
    pub(crate) fn is_private(&self) -> bool {
        self.kind() == MemoryKind::Private
    }

    /// Stores whether copies of a step to this memory were still outstanding after the last one had
    /// been submitted.
    pub(crate) fn set_asynchronous(&self, yes: bool) {
        let flag = &self.pages().data().is_asynchronous;
        // The flag rarely changes. Not writing it keeps its cache line shared.
        if yes != flag.load(Relaxed) {
            flag.store(yes, Relaxed);
        }
    }

    /// Returns the flag that [`Self::set_asynchronous`] stored. If it is set, other steps may
    /// overlap with the copies of the next one.
    pub(crate) fn is_asynchronous(&self) -> bool {
        self.pages().data().is_asynchronous.load(Relaxed)
    }
}

impl<M: MemoryOps> Drop for MemoryParts<M> {
    fn drop(&mut self) {
        connection_cache::invalidate();
        self.evict_until_empty(evict::STAY_REPORT_ROUNDS);
        // Waits for the work items that hold references to the pages: the last reference must be
        // dropped here.
        self.pages.data().splits.close();
    }
}
