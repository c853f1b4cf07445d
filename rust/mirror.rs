// SPDX-License-Identifier: GPL-2.0

//! A mirror: a device page table that follows the address space of a process.
//!
//! [`Mirror`] owns the one lock, the *table lock*, under which the table is read and changed. The
//! table changes in four ways only: a [fault](Mirror::fault) installs what the CPU's page table
//! says, an invalidation removes or write-protects, a migration switches entries that its
//! transaction still owns (`transaction`), and reclaim removes entries for the memory of their
//! table pages (`cold`).

use crate::{
    deferred::{
        Deferred,
        DropWaits, //
    },
    events::Event as Told,
    host_lock::HostLocks,
    memory::{Memory, MemoryOps, Registration},
    mm::{
        addr::PageRange,
        dma::{DmaDevice, Windows},
        notifier::Cookie,
        range_fault::AddressSpace,
        shrinker::owner::{self, Owner},
        table_memory::TableMemory,
    },
    pgtable::{Entry, Format, Spares, Table},
    policy::Immovable,
    space::{Handle, Membership},
    stats::Stats,
    watch::{Kind, Seat},
    within, //
};
use kernel::{
    mm::MmWithUser,
    page::PAGE_MASK,
    prelude::*,
    sync::{
        Arc,
        LockClassKey, //
    },
};

mod access;
mod announced;
mod attributes;
mod cold;
mod exclusive;
mod fault;
mod flushes;
mod invalidate;
mod ops;
mod serve;
mod snapshot;
mod step;
mod switch;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;
mod tiles;
pub(crate) mod transaction;
mod walker;
mod watch;

pub use access::{Place, PlaceMut, TableGuard, Target};
pub(crate) use announced::Announced;
pub(crate) use fault::Present;
pub(crate) use invalidate::{Inner, State};
pub(crate) use ops::Peer;
pub use serve::Served;
pub use snapshot::{Location, Snapshot};
pub(crate) use step::Tries;
pub(crate) use switch::Switched;
pub use walker::{Section, Seen, Unresolved, Walkers};

use invalidate::{remove, remove_some};
use transaction::Transactions;

/// What a driver says about the address-space side of its device.
pub trait Device: Send + Sync + Sized + 'static {
    /// The driver's view of its memory.
    type Memory: MemoryOps;

    /// How the device's page table looks.
    type Format: Format;

    /// What each walker of a software device holds, such as a TLB; `()` for other devices.
    type Walker: Send + Unpin + 'static;

    /// A TLB flush under way.
    type Flush: Send;

    /// The device's memory, if it has any.
    fn memory(&self) -> Option<&Memory<Self::Memory>>;

    /// Another memory of the device, if it has several (tiles): that of number `index`, up to the
    /// first number that has none, at most 64. All have the owner of [`Self::memory`], see
    /// [`Memory::new_tile`]; others are ignored, and so is [`Self::memory`] itself. They are there
    /// before the first mirror is made, and stay as long as the device.
    ///
    /// Pages of a tile are mapped in place if [`MemoryOps::connection`] says [`Unified`] at both
    /// ends. Else a device fault moves them to [`Self::memory`]. Context: the table lock may be
    /// held; must not sleep.
    ///
    /// [`Unified`]: crate::connection::Connection::Unified
    fn tile(&self, index: usize) -> Option<&Memory<Self::Memory>> {
        let _ = index;
        None
    }

    /// Who accesses the system memory that the page table names: for a format of DMA addresses
    /// ([`OfDma`](crate::pgtable::OfDma)), and only for such a one. Asked once per mirror. Pages are mapped for it when
    /// entries are installed, and unmapped when [`Self::flush_wait`] has returned after they went.
    fn dma(&self) -> Option<&Arc<DmaDevice>> {
        None
    }

    /// Memory in which the device reads its page table, if it walks by itself. Called once for each
    /// mirror. [`Mirror::table_root`] has the address for the hardware. Context: may sleep.
    fn table_memory(&self) -> TableMemory {
        TableMemory::none()
    }

    /// Whether [`Self::flush_wait`] may sleep now. If so, events that must not wait are refused: the OOM
    /// reaper then leaves the memory that is mirrored to the process itself.
    fn flush_sleeps(&self) -> bool {
        true
    }

    /// The walkers that access memory through mirrors of this device. Asked once per mirror.
    fn walkers(&self) -> Option<Arc<Walkers<Self::Walker>>> {
        None
    }

    /// Whether a faultless migration is to leave writable entries as they are. That loses writes:
    /// it is there to prove that a test finds it.
    fn test_keep_write(&self) -> bool {
        false
    }

    /// Whether [`Self::event`] is to be called now: somebody wants to know. Context: as there.
    #[inline]
    fn wants_events(&self) -> bool {
        false
    }

    /// Something has happened to the memory that mirror number `mirror` of this device shows: see [`crate::events`].
    ///
    /// Context: what the event is about may be going on, up to an invalidation that must not wait for memory: the
    /// table lock may be held. Must not sleep or allocate with reclaim; functions of this library that wait fail with
    /// `EDEADLK`.
    fn event(&self, mirror: u32, event: &Told) {
        let _ = (mirror, event);
    }

    /// Starts to flush all translations of `range` from the device's TLBs.
    ///
    /// Entries in the range were just removed or write-protected; the device must not walk the
    /// table for them in between. Context: the table lock is held; must not allocate with reclaim.
    /// Functions of this library that wait fail with `EDEADLK`; walkers may be entered.
    fn flush_start(&self, range: PageRange) -> Self::Flush;

    /// Flushes all translations of `range` from `walker`, as a part of `flush`. Called once for
    /// each of [`Self::walkers`], before [`Self::flush_wait`]. By default walkers keep none.
    ///
    /// Context: the walker's spinlock is held, and perhaps the table lock; must not sleep.
    /// Functions of this library that wait fail with `EDEADLK`, also those that enter this walker.
    fn flush_walker(&self, flush: &Self::Flush, walker: &mut Self::Walker, range: PageRange) {
        let _ = (flush, walker, range);
    }

    /// Waits until the device uses no flushed translation any more.
    ///
    /// Context: called with or without the table lock; must not allocate with reclaim. As in
    /// [`Self::flush_start`], functions that wait fail with `EDEADLK`.
    fn flush_wait(&self, flush: Self::Flush);
}

/// A device page table that follows the address space of a process.
///
/// Dropping it waits for callbacks that run, and flushes what the device still has; the address space
/// may be gone already.
///
/// # Context
///
/// The drop may sleep. In a callback, with a table lock held and in a section it returns at once,
/// and a worker does all of this when the callback has returned. The device is dropped with it.
pub struct Mirror<D: Device>(Deferred<Parts<D>>);

/// The parts of a mirror, in the order of their drop.
struct Parts<D: Device> {
    // First: nobody else may use the mirror when it goes.
    reclaim: Option<owner::Registration>,
    registration: Option<Registration>,
    /// The same with the other tiles.
    tiles: KVec<Registration>,
    membership: Option<Membership>,
    _seat: Seat,
    inner: Arc<Inner<D>>,
    host_locks: Pin<KBox<HostLocks>>,
}

impl<D: Device> DropWaits for Parts<D> {}

impl<D: Device> Parts<D> {
    fn new(
        mm: &MmWithUser,
        device: D,
        name: &'static CStr,
        key: Pin<&'static LockClassKey>,
    ) -> Result<Self> {
        let dma = match device.dma() {
            Some(device) => Some(Windows::new(device)?),
            None => None,
        };
        let state = State {
            table: Table::with(dma.clone(), device.table_memory())?,
            transactions: Transactions::new(),
            lost: None,
            immovable: Immovable::new(),
        };
        let space = Handle::new(mm)?;
        let inner = Arc::pin_init(
            Inner::new(mm, space.space(), device, state, dma, (name, key)),
            GFP_KERNEL_ACCOUNT,
        )?;
        let membership = Some(Membership::new(space, inner.clone())?);
        let registration = match inner.device().memory() {
            Some(memory) => Some(memory.add_peer(inner.space.name(), inner.clone())?),
            None => None,
        };
        let mut tiles = KVec::new();
        for tile in inner.tiles() {
            let added = tile.add_peer(inner.space.name(), inner.clone())?;
            tiles.push(added, GFP_KERNEL)?;
        }
        let reclaim = Owner::register(inner.reader.owner(), inner.clone())?;
        let who = inner.who;
        let seat = Seat::new(Kind::Mirror, who.mirror(), who.pid(), inner.clone())?;
        Ok(Self {
            reclaim: Some(reclaim),
            registration,
            tiles,
            membership,
            _seat: seat,
            inner,
            host_locks: KBox::pin_init(HostLocks::new(), GFP_KERNEL_ACCOUNT)?,
        })
    }
}

impl<D: Device> Mirror<D> {
    /// Starts to mirror `mm` for `device`. Use [`new_mirror!`](crate::new_mirror), which makes a
    /// lock class for the caller.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINTR` if killed; `EDEADLK` within a callback; `EINVAL` if the format and
    /// [`Device::dma`] do not agree, or the format cannot express the addresses of
    /// [`Device::table_memory`]; `ENODEV` if the device of either is gone. Context: may sleep.
    pub fn new(
        mm: &MmWithUser,
        device: D,
        name: &'static CStr,
        key: Pin<&'static LockClassKey>,
    ) -> Result<Self> {
        within::may_wait()?;
        let make = || Parts::new(mm, device, name, key);
        Deferred::new(make, GFP_KERNEL_ACCOUNT).map(Self)
    }

    /// The driver's side.
    pub fn device(&self) -> &D {
        &self.inner().device
    }

    /// Address at which a device that walks by itself finds the root of its table; `None` if
    /// [`Device::table_memory`] has none, or its device is closed. It stays the same for the life
    /// of the mirror.
    ///
    /// The table is valid for the device at every instant: until the mirror is dropped, or the
    /// device closed. The driver stops the hardware from walking before. [`Device::flush_wait`]
    /// waits until walks that began before the flush are over. Context: any.
    pub fn table_root(&self) -> Option<u64> {
        self.inner().reader.root_address()
    }

    /// Counters of this mirror.
    pub fn stats(&self) -> &Stats {
        &self.inner().stats
    }

    /// Names the address space that it shows, as long as it exists. Context: any.
    pub fn space_name(&self) -> Cookie {
        self.inner().space.name()
    }

    /// Whether the address space is still in use. It may end right after. Context: any.
    pub fn is_alive(&self) -> bool {
        self.inner().space.is_alive()
    }

    /// Keeps the address space from being torn down. `EFAULT` if it is gone; `ENODEV` if the device is.
    pub(crate) fn space(&self) -> Result<AddressSpace> {
        if self.device().memory().is_some_and(Memory::is_gone) {
            return Err(ENODEV);
        }
        AddressSpace::new(self.inner().space.mm())
    }

    /// Removes the device's entries for `range`: the device no longer needs it.
    ///
    /// Pages that live in device memory stay there.
    ///
    /// # Errors
    ///
    /// `EDEADLK` within a callback. Context: may sleep.
    pub fn discard(&self, range: PageRange) -> Result {
        within::may_wait()?;
        remove(self.inner(), range);
        Ok(())
    }

    /// Removes the entries of `range` for which `which` says so.
    pub(crate) fn remove_some(
        &self,
        range: PageRange,
        which: impl FnMut(PageRange, Entry) -> bool,
    ) {
        remove_some(self.inner(), range, which);
    }

    /// What an update of the table needs; not filled yet.
    pub(crate) fn spares(&self) -> Spares<D::Format> {
        self.inner().reader.spares()
    }

    /// The locked ranges of the address space.
    pub(crate) fn host_locks(&self) -> &HostLocks {
        &self.0.host_locks
    }

    /// The number of its place in its space.
    pub(crate) fn place_in_space(&self) -> Option<usize> {
        self.0.membership.as_ref().map(Membership::number)
    }

    /// What others may use meanwhile.
    #[inline]
    pub(crate) fn inner(&self) -> &Inner<D> {
        &self.0.inner
    }
}

impl<D: Device> Drop for Parts<D> {
    fn drop(&mut self) {
        // Reclaim does not look at its tables any more.
        self.reclaim = None;
        // Nobody has it map anything from here on.
        self.registration = None;
        self.tiles.clear();
        // What the device has written is dirty, and it uses nothing any more. Until then it is told of what changes.
        if let Ok(all) = PageRange::new(0, usize::MAX & PAGE_MASK) {
            remove(&self.inner, all);
        }
        self.membership = None;
        // Windows in which only this one had entries can go.
        self.inner.space.windows().doubt_all();
    }
}

/// Creates a [`Mirror`] with a lock class of the caller's own, which may be given a name.
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
