// SPDX-License-Identifier: GPL-2.0
//! Event streams: completeness, and the mirrors whose events they report.

use super::{
    fail,
    Fail,
    Lane, //
};
use crate::torture::op::Span;
use hmm::engine::Way;
use hmm::events::{
    Record,
    Type, //
};
use hmm::{
    Device,
    Errno, //
};

fn text(error: Errno) -> Fail {
    format!("events: {error}")
}

/// Checks that gaps in the sequence numbers match the counts of lost records.
fn in_sequence(records: &[Record]) -> Result<(), Fail> {
    for pair in records.windows(2) {
        let [one, next] = pair else { continue };
        if next.sequence <= one.sequence || next.lost < one.lost {
            return fail("events", format!("{one:?} is followed by {next:?}"));
        }
        if next.sequence - one.sequence - 1 != next.lost - one.lost {
            return fail("events", format!("between {one:?} and {next:?} some were not counted"));
        }
    }
    Ok(())
}

impl Lane<'_> {
    /// Changes the mask of event types, and reads all pending records.
    pub(super) fn events(&mut self, dev: usize, mask: u64) -> Result<(), Fail> {
        // The first call creates the stream of a file.
        self.devices[dev].events(mask & 0x1ff, false).map_err(text)?;
        let records = self.devices[dev].records().map_err(text)?;
        *self.counts.entry("  events read".into()).or_default() += records.len() as u64;
        in_sequence(&records)
    }

    /// Migrates memory to the device through another open file, and back through the lane's own.
    /// The stream always reports the latter. It reports the former only if events of all mirrors
    /// are enabled.
    pub(super) fn events_of(&mut self, dev: usize, at: Span, all: bool) -> Result<(), Fail> {
        let addr = self.addr(at);
        let device = &self.devices[dev];
        let second = Device::open(dev as u32).map_err(text)?;
        let mask = Type::MigrateBegin.bit() | Type::MigrateEnd.bit();
        device.events(0, false).map_err(text)?;
        device.records().map_err(text)?;
        let begin = device.events(mask, all).map_err(text)?;
        let moved = [
            second.migrate(addr, at.n, Way::ToDevice).err(),
            device.migrate(addr, at.n, Way::ToSystem).err(),
        ];
        let end = device.events(0, false).map_err(text)?;
        if end.old != mask {
            return fail("events", format!("the mask was {:#x}, not {mask:#x}", end.old));
        }
        let records = device.records().map_err(text)?;
        in_sequence(&records)?;
        let begins = |to_device: bool| {
            records.iter().find(|record| {
                record.kind == Type::MigrateBegin
                    && (record.addr, record.npages) == (addr as u64, at.n as u64)
                    && record.to_device == to_device
            })
        };
        // Lost records are those at the end, and are counted in the last one.
        if end.lost == begin.lost {
            let own = begins(false).ok_or("events: the file's own migration is missing")?.mirror;
            let strange = records.iter().find(|record| record.mirror != own);
            match (all, begins(true), strange) {
                (true, None, _) => return fail("events", "those of another file are missing"),
                (false, _, Some(record)) => {
                    return fail("events", format!("of another file: {record:?}"))
                }
                _ => {}
            }
        }
        *self.counts.entry("  events read".into()).or_default() += records.len() as u64;
        for error in moved.into_iter().flatten() {
            self.expect_move("migration with events", error, at)?;
        }
        Ok(())
    }
}
