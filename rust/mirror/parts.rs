// SPDX-License-Identifier: GPL-2.0

//! Registrations of a mirror: how it is set up, and in which order it is torn down.

#[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
use super::host_locks::HostLocks;
use super::{
    in_flight::InFlightMigrations,
    invalidate::remove,
    lost::LostRanges,
    Device,
    MirrorShared,
    MirrorState, //
};
use crate::{
    debug::registry::{
        DebugEntry,
        ObjectKind, //
    },
    kernel::{
        deferred::DropWaits,
        shrinker::owner::{
            self,
            ReclaimOwner, //
        }, //
    },
    memory::MirrorRegistration,
    mm::{
        addr::PageRange,
        dma::DmaWindows, //
    },
    pgtable::Table,
    policy::Immovable,
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

/// Parts of a mirror, in the order of their drop.
pub(super) struct MirrorParts<D: Device> {
    // Dropped first, so that reclaim does not use the mirror while it is torn down.
    reclaim: Option<owner::OwnerRegistration>,
    registration: Option<MirrorRegistration>,
    /// Registrations with the tiles of [`Device::tile`].
    tiles: KVec<MirrorRegistration>,
    pub(super) membership: Option<Membership>,
    _debug_entry: DebugEntry,
    pub(super) inner: Arc<MirrorShared<D>>,
    #[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
    pub(super) host_locks: Pin<KBox<HostLocks>>,
}

impl<D: Device> DropWaits for MirrorParts<D> {}

impl<D: Device> MirrorParts<D> {
    /// Creates the parts of a mirror of `mm` for `device`, and registers them; see
    /// [`Mirror::new`](super::Mirror::new).
    pub(super) fn new(
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
            in_flight: InFlightMigrations::new(),
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
