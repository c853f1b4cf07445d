// SPDX-License-Identifier: GPL-2.0

//! Creation of a device memory with all its parts.

#[cfg(doc)]
use super::CopyJob;
use super::{
    arrivals::Arrivals,
    connection_cache::ConnectionCache,
    lru::Lru,
    mirrors::MirrorList,
    splits::Splits,
    steps::Steps,
    victims::Victims,
    worker::DeferredWork,
    Memory,
    MemoryOps,
    MemoryParts,
    MemoryState, //
};
use crate::{
    debug::{
        registry::{
            self,
            DebugEntry, //
        },
        stats::Stats,
        trace, //
    },
    inject::DeviceFaults,
    kernel::{
        deferred::Deferred,
        lock_classes, //
    },
    mm::{
        addr::PMD_PAGES,
        device_pages::{
            DevicePages,
            MemoryKind,
            Owner,
            MAX_PAGES, //
        }, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            AtomicFlag, //
        },
        Arc,
        SetOnce, //
    }, //
};

impl<M: MemoryOps> MemoryParts<M> {
    fn new(
        owner: Option<Arc<Owner>>,
        driver: M,
        kind: MemoryKind,
        max_pages: usize,
    ) -> Result<Self> {
        let pages = Self::pages(owner, driver, kind, max_pages)?;
        Ok(Self {
            worker: SetOnce::new(),
            _debug_entry: DebugEntry::new(
                registry::ObjectKind::Device,
                pages.data().id,
                0,
                pages.clone(),
            )?,
            pages,
        })
    }

    // Not inlined: this saves stack of the caller.
    #[inline(never)]
    fn pages(
        owner: Option<Arc<Owner>>,
        driver: M,
        kind: MemoryKind,
        max_pages: usize,
    ) -> Result<Arc<DevicePages<MemoryState<M>>>> {
        // Checked before an allocation whose size depends on it.
        if max_pages > MAX_PAGES {
            return Err(EINVAL);
        }
        let ops = MemoryState {
            driver,
            id: trace::new_device(),
            stats: Stats::new(),
            mirrors: KBox::pin_init(MirrorList::new(), GFP_KERNEL)?,
            victims: KBox::pin_init(Victims::new(), GFP_KERNEL)?,
            connections: KBox::pin_init(ConnectionCache::new(), GFP_KERNEL)?,
            deferred_work: KBox::pin_init(DeferredWork::new(), GFP_KERNEL)?,
            splits: KBox::pin_init(Splits::new(), GFP_KERNEL)?,
            evicting: Atomic::new(0),
            arrivals: KBox::pin_init(Arrivals::new(), GFP_KERNEL)?,
            departures: KBox::pin_init(
                Steps::new(lock_classes::departures(), lock_classes::departures_idle()),
                GFP_KERNEL,
            )?,
            lru: Lru::new(max_pages.div_ceil(PMD_PAGES))?,
            is_asynchronous: AtomicFlag::new(false),
            faults: DeviceFaults::new(),
        };
        let pages = DevicePages::of_owner(owner, kind, max_pages, ops);
        Arc::pin_init(pages, GFP_KERNEL)
    }
}

impl<M: MemoryOps> Memory<M> {
    /// Creates memory of at most `max_pages` pages of `PAGE_SIZE`. Their numbers are below
    /// `max_pages`. The memory grows on demand. It may end within a huge page; the pages behind the
    /// last whole one are used as small pages.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    /// - `EINVAL` if the limit or the start is invalid, see
    ///   [`OwnedDevicePages::new`](crate::mm::device_pages::OwnedDevicePages::new).
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new(driver: M, kind: MemoryKind, max_pages: usize) -> impl PinInit<Self, Error> {
        Self::of_owner(None, driver, kind, max_pages)
    }

    /// Creates one of several memories of a device (tiles), all of which have the same `owner`.
    /// Otherwise as [`Self::new`].
    ///
    /// The driver lists the other memories in [`Device::tile`](crate::mirror::Device::tile).
    /// Device page numbers in [`MemoryOps`] and [`CopyJob`] begin at 0 in each memory. Numbers in
    /// device PTEs count all memories of the owner, see [`Self::locate`].
    ///
    /// # Errors
    ///
    /// - Those of [`Self::new`].
    /// - `EINVAL` if the owner would have more than [`MAX_PAGES`] pages.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new_tile(
        owner: Arc<Owner>,
        driver: M,
        kind: MemoryKind,
        max_pages: usize,
    ) -> impl PinInit<Self, Error> {
        Self::of_owner(Some(owner), driver, kind, max_pages)
    }

    fn of_owner(
        owner: Option<Arc<Owner>>,
        driver: M,
        kind: MemoryKind,
        max_pages: usize,
    ) -> impl PinInit<Self, Error> {
        try_init!(Self {
            parts: Deferred::new(|| MemoryParts::new(owner, driver, kind, max_pages), GFP_KERNEL)?,
        }? Error)
    }
}
