// SPDX-License-Identifier: GPL-2.0

//! Ownership of device memory whose drop does not wait for pages in use.

use super::{
    DevicePageOps,
    DevicePages,
    MemoryKind,
    Owner, //
};
use crate::kernel::deferred::{
    Deferred,
    DropWaits, //
};
use core::ops::Deref;
use kernel::{
    prelude::*,
    sync::Arc, //
};

impl<T: DevicePageOps> DropWaits for DevicePages<T> {
    /// A page for which the core calls [`DevicePageOps`] counts as in use until the callback has
    /// returned. The removal of the page frames would wait for that.
    fn waits_for_current(&self) -> bool {
        self.used() != 0
    }
}

/// Memory of one device, with its owner.
///
/// Dropping it removes the page frames, which waits until all pages are free. The drop returns
/// immediately if pages are in use, and a worker waits for them; therefore a driver may drop the
/// memory in a callback. The caller must migrate or evict the pages, before or after that.
///
/// # Context
///
/// The drop may sleep. In a callback and in atomic context a worker removes the page frames.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::mm::device_pages::CpuFault;
/// use rust_hmm::mm::device_pages::DevicePageOps;
/// use rust_hmm::mm::device_pages::DevicePages;
/// use rust_hmm::mm::device_pages::FaultError;
/// use rust_hmm::mm::device_pages::MemoryKind;
/// use rust_hmm::mm::device_pages::OwnedDevicePages;
///
/// struct Vram;
///
/// impl DevicePageOps for Vram {
///     // This device cannot copy: the contents are lost, and the process gets SIGBUS.
///     fn migrate_to_ram(_: &DevicePages<Self>, _: CpuFault<'_>) -> Result<(), FaultError> {
///         Err(FaultError::Lost)
///     }
/// }
///
/// let pages = OwnedDevicePages::new(MemoryKind::Private, 4096, Vram)?;
/// assert_eq!((pages.limit(), pages.used()), (4096, 0));
/// # Ok::<(), Error>(())
/// ```
pub struct OwnedDevicePages<T: DevicePageOps>(Deferred<DevicePages<T>>);

impl<T: DevicePageOps> OwnedDevicePages<T> {
    /// Creates memory of at most `max_pages` pages. Their numbers are below `max_pages`. No pages
    /// are added yet, see [`DevicePages::add_chunks`].
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available.
    /// - `EINVAL`: the start of coherent memory is not a multiple of
    ///   [`PMD_SIZE`](crate::mm::addr::PMD_SIZE), or `max_pages` is larger than
    ///   [`MAX_PAGES`](super::MAX_PAGES).
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new(kind: MemoryKind, max_pages: usize, data: T) -> Result<Self> {
        Self::of_owner(None, kind, max_pages, data)
    }

    /// As [`Self::new`], with an owner that several memories can share. For `None` the memory gets
    /// an owner of its own.
    ///
    /// # Errors
    ///
    /// - The errors of [`Self::new`].
    /// - `EINVAL`: the memories of the owner would have more than
    ///   [`MAX_PAGES`](super::MAX_PAGES) in total.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn of_owner(
        owner: Option<Arc<Owner>>,
        kind: MemoryKind,
        max_pages: usize,
        data: T,
    ) -> Result<Self> {
        let pages = DevicePages::of_owner(owner, kind, max_pages, data);
        Deferred::pinned(pages, GFP_KERNEL).map(Self)
    }
}

impl<T: DevicePageOps> Deref for OwnedDevicePages<T> {
    type Target = DevicePages<T>;

    #[inline]
    fn deref(&self) -> &DevicePages<T> {
        &self.0
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_owned_pages)]
mod tests {
    use super::{
        super::{
            CpuFault,
            DeviceRange,
            FaultError, //
        },
        *, //
    };
    use crate::{
        kernel::{
            deferred,
            reentry::ReentryGuard, //
        },
        mm::addr::PMD_PAGES, //
    };
    use kernel::sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        SpinLock, //
    };

    /// Callback that drops its own memory.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Callback {
        Freed,
        Released,
    }

    #[pin_data]
    struct Shared {
        /// The memory, until a callback drops it.
        #[pin]
        own: SpinLock<Option<OwnedDevicePages<Dropper>>>,
        /// Number of dropped memories.
        dropped: Atomic<usize>,
    }

    impl Shared {
        fn new() -> Result<Arc<Self>> {
            Arc::pin_init(
                pin_init!(Self {
                    own <- kernel::new_spinlock!(None),
                    dropped: Atomic::new(0),
                }),
                GFP_KERNEL,
            )
        }
    }

    struct Dropper {
        shared: Arc<Shared>,
        at: Callback,
    }

    impl Dropper {
        fn memory(shared: &Arc<Shared>, at: Callback) -> Result<OwnedDevicePages<Self>> {
            let shared = shared.clone();
            let memory =
                OwnedDevicePages::new(MemoryKind::Private, PMD_PAGES, Self { shared, at })?;
            memory.add_chunks(1)?;
            Ok(memory)
        }

        fn called(&self, from: Callback) {
            if from == self.at {
                let own = self.shared.own.lock().take();
                drop(own);
            }
        }
    }

    impl Drop for Dropper {
        fn drop(&mut self) {
            self.shared.dropped.add(1, Relaxed);
        }
    }

    impl DevicePageOps for Dropper {
        fn migrate_to_ram(_: &DevicePages<Self>, _: CpuFault<'_>) -> Result<(), FaultError> {
            Err(FaultError::Lost)
        }

        fn freed(pages: &DevicePages<Self>, _range: DeviceRange) {
            pages.data().called(Callback::Freed);
        }

        fn pages_released(pages: &DevicePages<Self>, _range: DeviceRange) {
            pages.data().called(Callback::Released);
        }
    }

    #[test]
    fn memory_dropped_in_its_callbacks_is_freed() -> Result {
        for at in [Callback::Freed, Callback::Released] {
            let shared = Shared::new()?;
            let memory = Dropper::memory(&shared, at)?;
            let page = memory.alloc(0).ok_or(ENOMEM)?;
            *shared.own.lock() = Some(memory);
            // Waits for itself if the drop is in place.
            drop(page);
            assert!(shared.own.lock().is_none());
            deferred::flush();
            assert_eq!(shared.dropped.load(Relaxed), 1);
        }
        Ok(())
    }

    #[test]
    fn drop_does_not_wait_for_pages_in_use() -> Result {
        let shared = Shared::new()?;
        let memory = Dropper::memory(&shared, Callback::Freed)?;
        let page = memory.alloc(0).ok_or(ENOMEM)?;
        drop(memory);
        assert_eq!(shared.dropped.load(Relaxed), 0);
        drop(page);
        deferred::flush();
        assert_eq!(shared.dropped.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn unused_memory_is_dropped_in_place() -> Result {
        let shared = Shared::new()?;
        drop(Dropper::memory(&shared, Callback::Freed)?);
        assert_eq!(shared.dropped.load(Relaxed), 1);
        let memory = Dropper::memory(&shared, Callback::Freed)?;
        let within = ReentryGuard::enter();
        drop(memory);
        drop(within);
        deferred::flush();
        assert_eq!(shared.dropped.load(Relaxed), 2);
        Ok(())
    }
}
