// SPDX-License-Identifier: GPL-2.0

//! Stand-ins for modules of `rust/` that depend on many functions of the kernel.

#[macro_use]
#[path = "shared.rs"]
mod shared;

pub(crate) use shared::{
    deferred,
    shrinker,
    table_memory,
    zeroed, //
};

/// Fault injection, which never injects a failure here.
pub(crate) mod inject {
    pub(crate) enum FailPoint {
        Copy,
        DevicePage,
        Dma,
        Grow,
        Install,
        Region,
        Retry,
        TablePage,
        InFlightMigration,
    }

    pub(crate) fn fails(_point: FailPoint) -> bool {
        false
    }
}

/// Cancellation.
pub(crate) mod cancel {
    pub(crate) struct CancelToken;

    impl CancelToken {
        pub(crate) fn is_set(&self) -> bool {
            false
        }
    }
}

/// Identities.
pub(crate) mod identity {
    use kernel::ffi;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MemoryId(pub(crate) usize);

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PgmapOwner(pub(crate) usize);

    impl PgmapOwner {
        pub(crate) fn as_ptr(self) -> *mut ffi::c_void {
            self.0 as *mut ffi::c_void
        }
    }
}

/// Folios.
pub(crate) mod folio {
    use core::marker::PhantomData;

    /// An allocated folio; drop frees it.
    pub struct LockedFolio(pub(crate) usize);

    impl LockedFolio {
        pub(crate) unsafe fn from_raw(pfn: usize, _order: u32) -> Self {
            Self(pfn)
        }
    }

    pub struct CpuPages<'a>(pub(crate) usize, PhantomData<&'a ()>);

    impl CpuPages<'_> {
        pub(crate) unsafe fn new(pfn: usize, _count: usize) -> Self {
            Self(pfn, PhantomData)
        }
    }

    pub struct CpuPagesMut<'a>(pub(crate) usize, usize, PhantomData<&'a ()>);

    impl CpuPagesMut<'_> {
        pub(crate) unsafe fn new(pfn: usize, count: usize) -> Self {
            Self(pfn, count, PhantomData)
        }

        pub(crate) fn bytes(&self) -> usize {
            self.1 << 12
        }
    }
}

/// Pinned pages.
pub(crate) mod pin {
    pub struct PinnedPages(pub(crate) usize);

    impl PinnedPages {
        pub(crate) fn count(&self) -> usize {
            self.0
        }

        pub(crate) fn pfn(&self, index: usize) -> Option<usize> {
            Some(index + 1)
        }
    }
}

/// Locations of page contents.
pub(crate) mod location {
    use crate::mm::{
        device_pages::DeviceRange,
        folio, //
    };

    pub enum PageMemory<'a> {
        Cpu(folio::CpuPages<'a>),
        Device(DeviceRange),
    }

    pub enum PageMemoryMut<'a> {
        Cpu(folio::CpuPagesMut<'a>),
        Device(DeviceRange),
    }
}
