// SPDX-License-Identifier: GPL-2.0

//! Events of the memory of a process, reported by tracepoints and by [`Device::event`].
//!
//! The mirror of an event emits the tracepoint and then calls the driver (`MirrorShared::emit`),
//! so that both report the same events. A CPU fault belongs to device memory and not to a mirror;
//! `MemoryState` of that memory reports it.

#[cfg(doc)]
use crate::mirror::Device;
use crate::mm::{
    addr::PageRange,
    notifier::NotifierEvent, //
};
use kernel::prelude::*;

/// Reason of a migration. The numbers are those of `hmm_show_trigger()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MigrateReason {
    /// A request of the driver or of a program.
    Request = 0,
    /// The owner of the mirror closes it.
    Close = 1,
    /// A device fault: the attributes or a policy require a migration.
    Fault = 2,
    /// A pull of pages from another device.
    Pull = 3,
}

/// Reason of an eviction. The numbers are those of `hmm_show_need()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum EvictReason {
    /// All pages of the memory are evicted.
    All = 0,
    /// The memory is needed for other pages.
    Room = 1,
}

/// Reason why a device fault is retried. The numbers are those of `hmm_show_reason()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RetryReason {
    /// An invalidation between collection and commit.
    Invalidated = 0,
    /// An in-flight migration that will replace entries of the range.
    Migration = 1,
    /// `hmm_range_fault()` returned `EBUSY`.
    Busy = 2,
}

impl NotifierEvent {
    /// Returns the number of the reason in events. The numbers are those of `hmm_show_event()`.
    ///
    /// # Context
    ///
    /// Any.
    pub fn number(self) -> u32 {
        match self {
            Self::Unmap => 0,
            Self::Clear => 1,
            Self::ProtectionVma => 2,
            Self::ProtectionPage => 3,
            Self::SoftDirty => 4,
            Self::Release => 5,
            Self::Migrate => 6,
            Self::Exclusive => 7,
        }
    }
}

/// An event. Numbers of pages count pages of `PAGE_SIZE`.
///
/// # Examples
///
/// ```
/// use rust_hmm::debug::events::Event;
///
/// /// Returns the line of a driver's own trace for an event.
/// fn describe(event: &Event) -> Option<(&'static str, usize)> {
///     match event {
///         Event::FaultBegin { range, .. } => Some(("fault", range.pages())),
///         Event::MigrateEnd { moved, .. } => Some(("moved", *moved)),
///         Event::Evict { pages, .. } => Some(("evicted", *pages)),
///         _ => None,
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// The library begins to handle a device fault.
    FaultBegin {
        /// Range of the fault.
        range: PageRange,
        /// Whether the access is a write.
        write: bool,
    },
    /// A device fault was handled, or has failed.
    FaultEnd {
        /// Range of the fault.
        range: PageRange,
        /// Whether the access is a write.
        write: bool,
        /// Result of the fault.
        result: Result,
    },
    /// A CPU has accessed private device memory.
    CpuFault {
        /// Address of the access.
        address: usize,
        /// Number of pages that were migrated to system memory, or the error.
        moved: Result<usize>,
    },
    /// A migration begins.
    MigrateBegin {
        /// Range of the migration; the whole address space for [`MigrateReason::Close`].
        range: PageRange,
        /// Whether the destination is the device.
        to_device: bool,
        /// Reason of the migration.
        trigger: MigrateReason,
    },
    /// A migration has ended.
    MigrateEnd {
        /// Whether the destination was the device.
        to_device: bool,
        /// Reason of the migration.
        trigger: MigrateReason,
        /// Number of pages that have moved.
        moved: usize,
        /// Number of moved pages whose device PTE was replaced without being removed before.
        switched: usize,
        /// Number of pages that did not move.
        stayed: usize,
        /// Result of the migration.
        result: Result,
    },
    /// The mirror has lost pages to an eviction.
    Evict {
        /// Reason of the eviction.
        need: EvictReason,
        /// Number of these pages.
        pages: usize,
    },
    /// A notifier event has invalidated a range.
    Invalidate {
        /// Range of the event.
        range: PageRange,
        /// Type of the notifier event.
        reason: NotifierEvent,
        /// Number of pages whose device PTE was removed or write-protected.
        changed: usize,
    },
    /// A device fault is retried.
    Retry {
        /// Range of the fault.
        range: PageRange,
        /// Reason of the retry.
        why: RetryReason,
    },
    /// A device fault on memory that thrashes.
    Thrash {
        /// Range of the fault.
        range: PageRange,
        /// Delay before the fault is retried, in ms. `None`: the memory is mapped in place.
        ms: Option<u64>,
    },
}
