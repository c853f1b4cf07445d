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
pub(super) struct EventFields {
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

impl EventFields {
    /// Converts `event`.
    pub(super) fn new(event: &Event) -> Self {
        let mut fields = Self {
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
                fields.detail = u32::from(write);
                Some(range)
            }
            Event::FaultEnd {
                range,
                write,
                result,
            } => {
                fields.kind = Type::FaultEnd;
                fields.detail = u32::from(write);
                fields.error = errno(result);
                Some(range)
            }
            Event::CpuFault { address, moved } => {
                fields.kind = Type::CpuFault;
                fields.addr = address as u64;
                fields.npages = 1;
                fields.moved = moved.unwrap_or(0) as u64;
                fields.error = errno(moved.map(|_| ()));
                None
            }
            Event::MigrateBegin {
                range,
                to_device,
                trigger,
            } => {
                fields.kind = Type::MigrateBegin;
                fields.to_device = to_device;
                // CAST: As the header numbers them.
                fields.detail = trigger as u32;
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
                fields.kind = Type::MigrateEnd;
                fields.to_device = to_device;
                // CAST: As the header numbers them.
                fields.detail = trigger as u32;
                fields.moved = moved as u64;
                fields.switched = switched as u64;
                fields.stayed = stayed as u64;
                fields.error = errno(result);
                None
            }
            Event::Evict { need, pages } => {
                fields.kind = Type::Evict;
                // CAST: As the header numbers them.
                fields.detail = need as u32;
                fields.moved = pages as u64;
                None
            }
            Event::Invalidate {
                range,
                reason,
                changed,
            } => {
                fields.kind = Type::Invalidate;
                fields.detail = reason.number();
                fields.moved = changed as u64;
                Some(range)
            }
            Event::Retry { range, why } => {
                fields.kind = Type::Retry;
                // CAST: As the header numbers them.
                fields.detail = why as u32;
                Some(range)
            }
            Event::Thrash { range, ms } => {
                fields.kind = Type::Thrash;
                fields.detail = u32::from(ms.is_none());
                fields.stayed = ms.unwrap_or(0);
                Some(range)
            }
        };
        if let Some(range) = range {
            fields.addr = range.start() as u64;
            fields.npages = range.pages() as u64;
        }
        fields
    }
}

/// A record of the ring.
#[derive(Clone, Copy)]
pub(super) struct Record {
    pub(super) time_ns: u64,
    pub(super) lost: u64,
    pub(super) sequence: u64,
    pub(super) mirror: u32,
    pub(super) fields: EventFields,
}

impl Record {
    /// Encodes the record for user space.
    pub(super) fn encode(&self) -> arguments::Event {
        let fields = &self.fields;
        arguments::Event {
            version: VERSION,
            // CAST: As the header numbers them.
            r#type: fields.kind as u16,
            error: fields.error,
            time_ns: self.time_ns,
            sequence: self.sequence,
            lost: self.lost,
            addr: fields.addr,
            npages: fields.npages,
            mirror: self.mirror,
            detail: fields.detail,
            to_device: u32::from(fields.to_device),
            reserved: 0,
            moved: fields.moved,
            switched: fields.switched,
            stayed: fields.stayed,
        }
    }
}
