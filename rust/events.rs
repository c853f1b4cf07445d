// SPDX-License-Identifier: GPL-2.0

//! What happens to the memory of a process, as tracepoints tell everybody and [`Device::event`] a driver.
//!
//! An event is told once, by `Inner::tell` of the mirror that it is about: the tracepoint and the driver's
//! function are called one after the other, so that neither knows of something that the other does not. A CPU
//! fault is one on a device's memory, of an address space; `Ops` of that memory tells it.

#[cfg(doc)]
use crate::mirror::Device;
use crate::mm::{addr::PageRange, notifier::Reason};
use kernel::prelude::*;

/// Why pages move. The numbers are those of `hmm_show_trigger()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Trigger {
    /// Somebody asked for it.
    Request = 0,
    /// The mirror's owner closes.
    Close = 1,
    /// A device fault, by attributes or a policy.
    Fault = 2,
    /// From another device.
    Pull = 3,
}

/// Why pages are evicted. The numbers are those of `hmm_show_need()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Need {
    /// All of them are to go.
    All = 0,
    /// Others need the room.
    Room = 1,
}

/// Why a device fault tries again. The numbers are those of `hmm_show_reason()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Again {
    /// An invalidation came between collection and commit.
    Invalidated = 0,
    /// A migration is about to switch entries of the range.
    Migration = 1,
    /// The kernel's walk has said so.
    Busy = 2,
}

impl Reason {
    /// Its number in events. The numbers are those of `hmm_show_event()`.
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

/// Something that has happened. Pages are of 4 KiB, and counted.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A device fault is about to be served.
    FaultBegin {
        /// Where.
        range: PageRange,
        /// Whether the device wants to write.
        write: bool,
    },
    /// It was served, or not.
    FaultEnd {
        /// Where.
        range: PageRange,
        /// Whether the device wants to write.
        write: bool,
        /// How it ended.
        result: Result,
    },
    /// A CPU has touched device memory.
    CpuFault {
        /// Where.
        address: usize,
        /// Pages that came back, or why none did.
        moved: Result<usize>,
    },
    /// A migration begins.
    MigrateBegin {
        /// Where; all of the address space for [`Trigger::Close`].
        range: PageRange,
        /// Whether it is one to the device.
        to_device: bool,
        /// Why.
        trigger: Trigger,
    },
    /// It has ended.
    MigrateEnd {
        /// Whether it was one to the device.
        to_device: bool,
        /// Why.
        trigger: Trigger,
        /// Pages that have moved.
        moved: usize,
        /// Of these, those whose entry was switched.
        switched: usize,
        /// Pages that were left where they were.
        stayed: usize,
        /// How it ended.
        result: Result,
    },
    /// The mirror has lost pages to an eviction.
    Evict {
        /// Why.
        need: Need,
        /// How many.
        pages: usize,
    },
    /// The kernel has announced a change.
    Invalidate {
        /// Where.
        range: PageRange,
        /// What happens there.
        reason: Reason,
        /// Pages that lost rights in the device.
        changed: usize,
    },
    /// A device fault has to try again.
    Retry {
        /// Where.
        range: PageRange,
        /// Why.
        why: Again,
    },
    /// The device wants memory that bounces.
    Thrash {
        /// Where.
        range: PageRange,
        /// For how many ms it waits; for `None` the memory stays where it is.
        ms: Option<u64>,
    },
}
