// SPDX-License-Identifier: GPL-2.0

//! Columns of device memory in debugfs.

use super::{
    MemoryOps,
    MemoryState, //
};
use crate::{
    debug::{
        registry::DebugObject,
        stats::Counter, //
    },
    mm::device_pages::{
        DevicePages,
        MemoryKind, //
    }, //
};
use kernel::fmt;

impl<M: MemoryOps> DebugObject for DevicePages<MemoryState<M>> {
    fn columns(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind() {
            MemoryKind::Private => "private",
            MemoryKind::Coherent { .. } => "coherent",
        };
        write!(
            f,
            " {kind} {} {} {}",
            self.used(),
            self.total(),
            self.limit()
        )?;
        let counters = [
            Counter::CpuFaults,
            Counter::CpuFaultPages,
            Counter::Evicted,
            Counter::EvictedForRoom,
        ];
        for counter in counters {
            write!(f, " {}", self.data().stats.get(counter))?;
        }
        Ok(())
    }
}
