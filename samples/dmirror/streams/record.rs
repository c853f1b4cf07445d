// SPDX-License-Identifier: GPL-2.0

//! Encodes events as `struct dmirror_event`.

use crate::arguments;
use kernel::prelude::*;
use rust_hmm::debug::events::Event;

/// `DMIRROR_EVENT_VERSION`.
const VERSION: u16 = 1;

/// Size of `struct dmirror_event`.
pub(crate) const RECORD_BYTES: usize = size_of::<arguments::Event>();

/// `DMIRROR_EVENT_*`.
#[derive(Clone, Copy)]
#[repr(u16)]
pub(super) enum Type {
    FaultBegin = 0,
    FaultEnd = 1,
    CpuFault = 2,
    MigrateBegin = 3,
    MigrateEnd = 4,
    Evict = 5,
    Invalidate = 6,
    Retry = 7,
    Thrash = 8,
}

/// Bits of a mask: one for each type.
pub(crate) const ALL_TYPES: u64 = (1 << (Type::Thrash as u32 + 1)) - 1;

/// The fields of a record that depend on the event.
#[derive(Clone, Copy)]
pub(super) struct Said {
    pub(super) kind: Type,
    error: i32,
    addr: u64,
    npages: u64,
    detail: u32,
    to_device: bool,
    moved: u64,
    switched: u64,
    stayed: u64,
}

fn errno(result: Result) -> i32 {
    result.map_or_else(Error::to_errno, |()| 0)
}

impl Said {
    /// Converts `event`.
    pub(super) fn new(event: &Event) -> Self {
        let mut said = Self {
            kind: Type::FaultBegin,
            error: 0,
            addr: 0,
            npages: 0,
            detail: 0,
            to_device: false,
            moved: 0,
            switched: 0,
            stayed: 0,
        };
        let range = match *event {
            Event::FaultBegin { range, write } => {
                said.detail = u32::from(write);
                Some(range)
            }
            Event::FaultEnd {
                range,
                write,
                result,
            } => {
                said.kind = Type::FaultEnd;
                said.detail = u32::from(write);
                said.error = errno(result);
                Some(range)
            }
            Event::CpuFault { address, moved } => {
                said.kind = Type::CpuFault;
                said.addr = address as u64;
                said.npages = 1;
                said.moved = moved.unwrap_or(0) as u64;
                said.error = errno(moved.map(|_| ()));
                None
            }
            Event::MigrateBegin {
                range,
                to_device,
                trigger,
            } => {
                said.kind = Type::MigrateBegin;
                said.to_device = to_device;
                // CAST: As the header numbers them.
                said.detail = trigger as u32;
                Some(range)
            }
            Event::MigrateEnd {
                to_device,
                trigger,
                moved,
                switched,
                stayed,
                result,
            } => {
                said.kind = Type::MigrateEnd;
                said.to_device = to_device;
                // CAST: As the header numbers them.
                said.detail = trigger as u32;
                said.moved = moved as u64;
                said.switched = switched as u64;
                said.stayed = stayed as u64;
                said.error = errno(result);
                None
            }
            Event::Evict { need, pages } => {
                said.kind = Type::Evict;
                // CAST: As the header numbers them.
                said.detail = need as u32;
                said.moved = pages as u64;
                None
            }
            Event::Invalidate {
                range,
                reason,
                changed,
            } => {
                said.kind = Type::Invalidate;
                said.detail = reason.number();
                said.moved = changed as u64;
                Some(range)
            }
            Event::Retry { range, why } => {
                said.kind = Type::Retry;
                // CAST: As the header numbers them.
                said.detail = why as u32;
                Some(range)
            }
            Event::Thrash { range, ms } => {
                said.kind = Type::Thrash;
                said.detail = u32::from(ms.is_none());
                said.stayed = ms.unwrap_or(0);
                Some(range)
            }
        };
        if let Some(range) = range {
            said.addr = range.start() as u64;
            said.npages = range.pages() as u64;
        }
        said
    }
}

/// A record of the ring.
#[derive(Clone, Copy)]
pub(super) struct Record {
    pub(super) time_ns: u64,
    pub(super) lost: u64,
    pub(super) sequence: u64,
    pub(super) mirror: u32,
    pub(super) said: Said,
}

impl Record {
    /// Encodes the record for user space.
    pub(super) fn encode(&self) -> arguments::Event {
        let said = &self.said;
        arguments::Event {
            version: VERSION,
            // CAST: As the header numbers them.
            r#type: said.kind as u16,
            error: said.error,
            time_ns: self.time_ns,
            sequence: self.sequence,
            lost: self.lost,
            addr: said.addr,
            npages: said.npages,
            mirror: self.mirror,
            detail: said.detail,
            to_device: u32::from(said.to_device),
            reserved: 0,
            moved: said.moved,
            switched: said.switched,
            stayed: said.stayed,
        }
    }
}
