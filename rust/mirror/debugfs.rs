// SPDX-License-Identifier: GPL-2.0

//! Columns of mirrors in debugfs.

use super::{
    Device,
    MirrorShared, //
};
use crate::{
    debug::{
        registry::DebugObject,
        stats::Counter, //
    },
    memory::Memory,
    mm::addr::PageRange,
    pgtable::DevicePte, //
};
use kernel::fmt;

/// Number of table parts that are scanned before the walk yields.
const SCAN_PARTS_PER_YIELD: usize = 64;

impl<D: Device> DebugObject for MirrorShared<D> {
    fn columns(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self;
        match inner.device.memory().map(Memory::number) {
            Some(number) => write!(f, " {number}")?,
            None => write!(f, " -")?,
        }
        write!(f, " {}", u8::from(self.space.is_alive()))?;
        let counters = [
            Counter::Faults,
            Counter::FaultNs,
            Counter::Migrations,
            Counter::MappedPages,
            Counter::Invalidations,
            Counter::InvalidatedPages,
            Counter::ToDevice,
            Counter::ToSystem,
            Counter::Switched,
            Counter::Skipped,
            Counter::Retries,
        ];
        for counter in counters {
            write!(f, " {}", inner.stats.get(counter))?;
        }
        Ok(())
    }

    fn translations(
        &self,
        from: usize,
        f: &mut dyn FnMut(PageRange, DevicePte, bool) -> bool,
    ) -> Option<usize> {
        self.reader.scan(from, SCAN_PARTS_PER_YIELD, f)
    }
}
