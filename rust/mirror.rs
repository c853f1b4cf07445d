// SPDX-License-Identifier: GPL-2.0

//! A mirror: a device page table that follows the address space of a process.
//!
//! [`Mirror`] owns the *table lock*, a mutex under which the table is changed. The table changes in
//! exactly four ways:
//!
//! - A device [fault](Mirror::fault) installs entries from the CPU page table.
//! - An invalidation removes or write-protects entries.
//! - A migration replaces the entries that still have its mark (`transaction`).
//! - Reclaim removes cold entries to free their table pages (`cold`).

use crate::{
    debug::{
        events::Event,
        registry::{
            DebugEntry,
            ObjectKind, //
        },
        stats::Stats, //
    },
    kernel::{
        deferred::{
            Deferred,
            DropWaits, //
        },
        identity::MmId,
        reentry,
        shrinker::owner::{
            self,
            ReclaimOwner, //
        }, //
    },
    memory::{
        Memory,
        MemoryOps,
        MirrorRegistration, //
    },
    mm::{
        addr::PageRange,
        dma::{
            DmaDevice,
            DmaWindows, //
        },
        range_fault::AddressSpace,
        table_memory::TableMemory, //
    },
    pgtable::{
        DevicePte,
        Format,
        Prealloc,
        Table, //
    },
    policy::{
        Bounces,
        Immovable, //
    },
    space::{
        Membership,
        SpaceHandle, //
    }, //
};
use kernel::{
    mm::MmWithUser,
    page::PAGE_MASK,
    prelude::*,
    sync::{
        Arc,
        LockClassKey, //
    }, //
};

mod announce;
mod announced;
mod attributes;
mod cold;
mod commit;
mod debugfs;
mod exclusive;
mod flushes;
#[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
pub(crate) mod host_locks;
mod immovable;
pub(crate) mod in_flight;
mod install;
mod invalidate;
mod lost;
mod ops;
mod outcome;
mod present;
mod retry;
mod snapshot;
mod software_mmu;
mod table_guard;
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
mod tests;
mod tiles;
mod walkers;

pub use crate::mm::location::{
    PageAddress,
    PageMemory,
    PageMemoryMut, //
};
pub(crate) use announce::{
    AnnounceTries,
    Attempt, //
};
pub(crate) use announced::{
    Announced,
    StepReaders, //
};
pub(crate) use attributes::AttributesAt;
pub(crate) use commit::CommitResult;
pub(crate) use install::FaultRequest;
pub(crate) use invalidate::{
    MirrorShared,
    MirrorState, //
};
pub use outcome::{
    Outcome,
    PageOutcome, //
};
pub(crate) use present::InstallFilter;
pub use snapshot::{
    PageLocation,
    Snapshot, //
};
pub use software_mmu::{
    AccessSection,
    TableTranslation,
    TranslateError, //
};
pub use table_guard::TableGuard;
pub use walkers::Walkers;

#[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
use host_locks::HostLocks;
use in_flight::InFlightMigrations;
use invalidate::{
    remove,
    remove_some, //
};
use lost::LostRanges;

/// Operations of a device that uses the address space of a process. Implemented by the driver.
///
/// # Examples
///
/// ```
/// use rust_hmm::memory::Memory;
/// use rust_hmm::memory::NoMemory;
/// use rust_hmm::mirror::Device;
/// use rust_hmm::mm::addr::PageRange;
/// use rust_hmm::pgtable::Radix4;
///
/// /// A device without memory, whose TLB flushes have numbers.
/// struct Gpu {
///     start_flush: fn(PageRange) -> u64,
///     wait_for_flush: fn(u64),
/// }
///
/// impl Device for Gpu {
///     type Memory = NoMemory;
///     type Format = Radix4;
///     type Walker = ();
///     type Flush = u64;
///
///     fn memory(&self) -> Option<&Memory<NoMemory>> {
///         None
///     }
///
///     fn flush_start(&self, range: PageRange) -> u64 {
///         (self.start_flush)(range)
///     }
///
///     fn flush_wait(&self, flush: u64) {
///         (self.wait_for_flush)(flush);
///     }
/// }
/// ```
pub trait Device: Send + Sync + Sized + 'static {
    /// The driver's view of its memory.
    type Memory: MemoryOps;

    /// Format of the device page table.
    type Format: Format;

    /// Data of each walker of a software device, such as a TLB; `()` for other devices.
    type Walker: Send + Unpin + 'static;

    /// An outstanding TLB flush.
    type Flush: Send;

    /// Returns the device's own memory, to which its faults migrate, or `None` if the device has no
    /// memory.
    ///
    /// # Context
    ///
    /// Any lock of the library may be held. Must not sleep.
    fn memory(&self) -> Option<&Memory<Self::Memory>>;

    /// Returns tile `index`, which is a further memory of a device with several. The library
    /// enumerates the tiles from 0 until the first `None`, and at most 64.
    ///
    /// The tiles must exist before the first mirror is created, and as long as the device. A memory
    /// whose owner differs from that of [`Self::memory`] is ignored, see [`Memory::new_tile`];
    /// [`Self::memory`] itself is ignored, too.
    ///
    /// Pages of a tile are mapped in place if [`MemoryOps::connection`] of both memories returns
    /// [`Unified`]. Otherwise a device fault moves them to [`Self::memory`].
    ///
    /// # Context
    ///
    /// The table lock may be held. Must not sleep.
    ///
    /// [`Unified`]: crate::connection::Connection::Unified
    fn tile(&self, index: usize) -> Option<&Memory<Self::Memory>> {
        let _ = index;
        None
    }

    /// Returns the device for which system memory is mapped. Must return a device if the format has
    /// DMA addresses ([`DmaFormat`](crate::pgtable::DmaFormat)), and `None` otherwise. Called once
    /// for each mirror.
    ///
    /// A page is mapped for DMA when its entry is installed. It is unmapped after the entry was
    /// removed and [`Self::flush_wait`] has returned.
    ///
    /// # Context
    ///
    /// May sleep.
    fn dma(&self) -> Option<&Arc<DmaDevice>> {
        None
    }

    /// Returns the memory for the page table that the hardware walks. Called once for each mirror.
    /// [`Mirror::table_root`] returns the address for the hardware.
    ///
    /// The default is [`TableMemory::coherent`] memory of [`Self::dma`] if that was made by
    /// [`DmaDevice::bound`], and [`TableMemory::none`] otherwise. A device that finds its own
    /// memory at another address than 0 overrides it, see [`TableMemory::with_device_pages_at`].
    ///
    /// # Context
    ///
    /// May sleep.
    fn table_memory(&self) -> TableMemory {
        TableMemory::default_of(self.dma())
    }

    /// Returns whether [`Self::flush_wait`] may sleep now. If it may, the library refuses
    /// non-blockable events. The OOM reaper then skips the mirrored memory, and the process frees
    /// it when it exits.
    ///
    /// # Context
    ///
    /// A non-blockable event is handled. Must not sleep. Blocking functions of the library return
    /// `EDEADLK`.
    fn flush_sleeps(&self) -> bool {
        true
    }

    /// Returns the walkers that access memory through mirrors of this device. Called once for each
    /// mirror.
    ///
    /// # Context
    ///
    /// May sleep.
    fn walkers(&self) -> Option<Arc<Walkers<Self::Walker>>> {
        None
    }

    /// Returns whether the driver needs events now. [`Self::event`] is called only then.
    ///
    /// # Context
    ///
    /// As for [`Self::event`].
    #[inline]
    fn wants_events(&self) -> bool {
        false
    }

    /// Reports an event of the memory that mirror number `mirror` of this device maps, see
    /// [`crate::debug::events`].
    ///
    /// # Context
    ///
    /// Called during the operation that the event describes, including non-blockable invalidations.
    /// The table lock may be held. Must not sleep or allocate with reclaim. Functions of this
    /// library that may sleep return `EDEADLK`.
    fn event(&self, mirror: u32, event: &Event) {
        let _ = (mirror, event);
    }

    /// Starts to flush all translations of `range` from the device's TLBs.
    ///
    /// Entries in the range were just removed or write-protected. A translation that a walk found
    /// before this call must not be used after [`Self::flush_wait`].
    ///
    /// # Context
    ///
    /// The table lock is held. Must not allocate with reclaim. Functions of this library that may
    /// sleep return `EDEADLK`. Walkers may be entered.
    fn flush_start(&self, range: PageRange) -> Self::Flush;

    /// Flushes all translations of `range` from `walker`, as a part of `flush`. Called once for
    /// each of [`Self::walkers`], before [`Self::flush_wait`]. The default implementation is for
    /// walkers that cache no translations.
    ///
    /// # Context
    ///
    /// The walker's spinlock is held. The table lock may be held. Must not sleep. Functions of this
    /// library that may sleep return `EDEADLK`, and so does [`Mirror::enter`] for this walker.
    fn flush_walker(&self, flush: &Self::Flush, walker: &mut Self::Walker, range: PageRange) {
        let _ = (flush, walker, range);
    }

    /// Waits until `flush` has completed. Afterwards the device must not use a translation that was
    /// flushed.
    ///
    /// # Context
    ///
    /// The table lock may be held. Must not allocate with reclaim. Functions of this library that
    /// may sleep return `EDEADLK`.
    fn flush_wait(&self, flush: Self::Flush);
}

/// A device page table that follows the address space of a process.
///
/// Dropping a mirror removes all its entries, flushes the device's TLBs, waits for running
/// callbacks, and drops the device. The address space may have been torn down before.
///
/// # Context
///
/// The drop may sleep. In a callback, in a section, or with a table lock held, it returns
/// immediately, and a worker tears the mirror down after the callback has returned.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::mirror::Device;
/// use rust_hmm::mirror::Mirror;
/// use rust_hmm::mm::addr::PageRange;
/// use rust_hmm::mm::range_fault::Access;
///
/// /// Attaches a device to the current process.
/// fn attach<D: Device>(device: D) -> Result<Mirror<D>> {
///     let current = current!();
///     let mm = current.mm().ok_or(EINVAL)?;
///     rust_hmm::new_mirror!(mm, device)
/// }
///
/// /// Handles a device fault, in a thread of the driver.
/// fn device_fault<D: Device>(mirror: &Mirror<D>, range: PageRange, write: bool) -> Result {
///     mirror.migrate(range).to_device()?;
///     mirror.fault(range, if write { Access::Write } else { Access::Read })
/// }
/// ```
pub struct Mirror<D: Device>(Deferred<MirrorParts<D>>);

/// Parts of a mirror, in the order of their drop.
struct MirrorParts<D: Device> {
    // Dropped first, so that reclaim does not use the mirror while it is torn down.
    reclaim: Option<owner::OwnerRegistration>,
    registration: Option<MirrorRegistration>,
    /// Registrations with the tiles of [`Device::tile`].
    tiles: KVec<MirrorRegistration>,
    membership: Option<Membership>,
    _debug_entry: DebugEntry,
    inner: Arc<MirrorShared<D>>,
    #[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
    host_locks: Pin<KBox<HostLocks>>,
}

impl<D: Device> DropWaits for MirrorParts<D> {}

impl<D: Device> MirrorParts<D> {
    fn new(
        mm: &MmWithUser,
        device: D,
        name: &'static CStr,
        key: Pin<&'static LockClassKey>,
    ) -> Result<Self> {
        let dma = match device.dma() {
            Some(device) => Some(DmaWindows::new(device)?),
            None => None,
        };
        let state = MirrorState {
            table: Table::with(dma.clone(), device.table_memory())?,
            transactions: InFlightMigrations::new(),
            lost: KBox::new(LostRanges::default(), GFP_KERNEL_ACCOUNT)?,
            immovable: Immovable::new(),
        };
        let space = SpaceHandle::new(mm)?;
        let inner = Arc::pin_init(
            MirrorShared::new(mm, space.space(), device, state, dma, (name, key)),
            GFP_KERNEL_ACCOUNT,
        )?;
        let membership = Some(Membership::new(space, inner.clone())?);
        let registration = match inner.device().memory() {
            Some(memory) => Some(memory.add_peer(inner.clone())?),
            None => None,
        };
        let mut tiles = KVec::new();
        for tile in inner.tiles() {
            let added = tile.add_peer(inner.clone())?;
            tiles.push(added, GFP_KERNEL)?;
        }
        let reclaim = ReclaimOwner::register(inner.reader.owner(), inner.clone())?;
        let trace = inner.trace;
        let debug_entry = DebugEntry::new(
            ObjectKind::Mirror,
            trace.mirror(),
            trace.pid(),
            inner.clone(),
        )?;
        Ok(Self {
            reclaim: Some(reclaim),
            registration,
            tiles,
            membership,
            _debug_entry: debug_entry,
            inner,
            #[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
            host_locks: KBox::pin_init(HostLocks::new(), GFP_KERNEL_ACCOUNT)?,
        })
    }
}

impl<D: Device> Mirror<D> {
    /// Creates a mirror of `mm` for `device`. Use [`new_mirror!`](crate::new_mirror), which creates
    /// a lock class for the caller.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    /// - `EINTR` if a fatal signal is pending.
    /// - `EDEADLK` within a callback.
    /// - `EINVAL` if the format and [`Device::dma`] do not agree, or if the format cannot encode
    ///   the addresses of [`Device::table_memory`].
    /// - `ENODEV` if the device of [`Device::dma`] or of [`Device::table_memory`] was unbound.
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    pub fn new(
        mm: &MmWithUser,
        device: D,
        name: &'static CStr,
        key: Pin<&'static LockClassKey>,
    ) -> Result<Self> {
        reentry::may_wait()?;
        let make = || MirrorParts::new(mm, device, name, key);
        Deferred::new(make, GFP_KERNEL_ACCOUNT).map(Self)
    }

    /// Returns the driver's device.
    ///
    /// # Context
    ///
    /// Any.
    pub fn device(&self) -> &D {
        &self.inner().device
    }

    /// Returns the address of the root of the table that the hardware walks. Returns `None` if
    /// [`Device::table_memory`] returned [`TableMemory::none()`], or if its device is closed. The
    /// address does not change during the lifetime of the mirror.
    ///
    /// The table is valid at every instant until the mirror is dropped or the device is closed. The
    /// driver must stop hardware walks before that. [`Device::flush_wait`] must wait for walks that
    /// began before the flush.
    ///
    /// # Context
    ///
    /// Any.
    pub fn table_root(&self) -> Option<u64> {
        self.inner().reader.root_address()
    }

    /// Returns the counters of this mirror.
    ///
    /// # Context
    ///
    /// Any.
    pub fn stats(&self) -> &Stats {
        &self.inner().stats
    }

    /// Returns the identity of the mirrored address space. It is unique as long as the mirror
    /// exists.
    ///
    /// # Context
    ///
    /// Any.
    pub fn mm_id(&self) -> MmId {
        self.inner().space.name()
    }

    /// Returns whether the address space is still in use. It may be torn down concurrently.
    ///
    /// # Context
    ///
    /// Any.
    pub fn is_alive(&self) -> bool {
        self.inner().space.is_alive()
    }

    /// Takes a reference that prevents the teardown of the address space.
    ///
    /// # Errors
    ///
    /// - `EFAULT` if the address space was torn down.
    /// - `ENODEV` if the device memory was unplugged.
    pub(crate) fn space(&self) -> Result<AddressSpace> {
        if self.device().memory().is_some_and(Memory::is_gone) {
            return Err(ENODEV);
        }
        AddressSpace::new(self.inner().space.mm())
    }

    /// Removes the device's entries for `range`, which the device no longer needs, and waits for
    /// the TLB flush.
    ///
    /// Pages in device memory are not migrated.
    ///
    /// # Errors
    ///
    /// - `EDEADLK` within a callback.
    ///
    /// # Context
    ///
    /// May sleep. Takes the table lock.
    pub fn discard(&self, range: PageRange) -> Result {
        reentry::may_wait()?;
        remove(self.inner(), range);
        Ok(())
    }

    /// Removes the entries of `range` for which `which` returns `true`, and waits for the TLB
    /// flush.
    pub(crate) fn remove_some(
        &self,
        range: PageRange,
        which: impl FnMut(PageRange, DevicePte) -> bool,
    ) {
        remove_some(self.inner(), range, which);
    }

    /// Returns an empty set of spare table pages for an update of the table.
    pub(crate) fn prealloc(&self) -> Prealloc<D::Format> {
        self.inner().reader.prealloc()
    }

    /// Returns the locked ranges of the address space.
    #[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
    pub(crate) fn host_locks(&self) -> &HostLocks {
        &self.0.host_locks
    }

    /// Returns the index of the mirror in its space.
    pub(crate) fn place_in_space(&self) -> Option<usize> {
        self.0.membership.as_ref().map(Membership::number)
    }

    /// Returns the thrashing history that this process and memory share.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the mirror is being dropped.
    pub(crate) fn bounces(&self) -> Result<&Bounces> {
        let membership = self.0.membership.as_ref().ok_or(ENODEV)?;
        Ok(membership.bounces())
    }

    /// Returns the part of the mirror that the space, the device memory and other mirrors share.
    #[inline]
    pub(crate) fn inner(&self) -> &MirrorShared<D> {
        &self.0.inner
    }
}

impl<D: Device> Drop for MirrorParts<D> {
    fn drop(&mut self) {
        // Unregister from the shrinker, so that reclaim no longer scans the table.
        self.reclaim = None;
        // Unregister from the device memories, so that unplug and eviction no longer call
        // `MemoryClient`.
        self.registration = None;
        self.tiles.clear();
        // Remove the entries before leaving the space. Pages that the device wrote are marked dirty
        // here, and until then invalidations must reach the mirror.
        if let Ok(all) = PageRange::new(0, usize::MAX & PAGE_MASK) {
            remove(&self.inner, all);
        }
        self.membership = None;
        // Windows in which only this mirror had entries can be removed.
        self.inner.space.windows().queue_check_all();
    }
}

/// Creates a [`Mirror`] with a lock class for the caller, which may have a name.
#[macro_export]
macro_rules! new_mirror {
    ($mm:expr, $device:expr $(, $name:literal)? $(,)?) => {
        $crate::mirror::Mirror::new(
            $mm,
            $device,
            ::kernel::optional_name!($($name)?),
            ::kernel::static_lock_class!(),
        )
    };
}
