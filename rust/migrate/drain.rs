// SPDX-License-Identifier: GPL-2.0

//! Migration of a closing mirror's device pages to system memory, by address.
//!
//! Eviction searches the reverse mapping of each page, and calls notifiers for each. On close, the
//! address space is known and no device access is running, so that walking the device's table is
//! cheaper.

use super::{
    step::MigrateStep,
    OutcomeTally,
    Target, //
};
use crate::{
    debug::{
        events::{
            Event,
            MigrateReason, //
        },
        stats::Counter, //
    },
    kernel::reentry,
    memory::Memory,
    mirror::{
        Device,
        Mirror, //
    },
    mm::addr::{
        PageRange,
        PMD_SIZE, //
    }, //
};
use kernel::{
    page::{
        PAGE_MASK,
        PAGE_SIZE, //
    },
    prelude::*, //
};

/// Maximum number of ranges that are collected before they are migrated. Each lies within a block.
const DRAIN_MAX_RANGES: usize = 1024;

/// Ranges of the address space whose device entries refer to the device's own memory.
struct ResidentRanges {
    list: KVVec<PageRange>,
    /// Whether there were more than fit.
    full: bool,
}

impl ResidentRanges {
    fn new() -> Result<Self> {
        Ok(Self {
            list: KVVec::with_capacity(DRAIN_MAX_RANGES, GFP_KERNEL)?,
            full: false,
        })
    }

    /// Adds `span`, which lies behind all ranges that were added before. Returns `false` if the
    /// list is full.
    fn add(&mut self, span: PageRange) -> bool {
        let block = |range: &PageRange| range.start() & !(PMD_SIZE - 1);
        if let Some(last) = self.list.last_mut() {
            if block(last) == block(&span) {
                *last = last.union(&span);
                return true;
            }
        }
        let added = self.list.push_within_capacity(span).is_ok();
        self.full |= !added;
        added
    }
}

impl<D: Device> Mirror<D> {
    /// Removes all entries of the device, and migrates its pages in device memory to system memory.
    /// For drivers that close a mirror: called when no command is running, before the mirror is
    /// dropped.
    ///
    /// Best effort, but faster than [`Memory::evict_all`]. Pages without a device entry and pages
    /// that other processes share are left to eviction. Returns the number of pages that moved.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the device has no memory.
    /// - `EFAULT` if the address space of the process was torn down.
    /// - `ENOMEM`
    /// - `EINTR` if a fatal signal is pending. Some entries may remain, and pages that have moved
    ///   stay in system memory.
    /// - `EDEADLK` within a callback.
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    ///
    /// # Examples
    ///
    /// ```
    /// use rust_hmm::mirror::Device;
    /// use rust_hmm::mirror::Mirror;
    ///
    /// /// Closes the mirror of a process that continues to run. Returns the number of pages moved.
    /// fn close<D: Device>(mirror: Mirror<D>) -> usize {
    ///     // Pages that remain in device memory are migrated by CPU faults.
    ///     mirror.drain().unwrap_or(0)
    /// }
    /// ```
    // Not inlined, because the stack frames of callers that close files are large.
    #[inline(never)]
    pub fn drain(&self) -> Result<usize> {
        reentry::may_wait()?;
        let memory: &Memory<_> = self.device().memory().ok_or(ENODEV)?;
        let mut parts = ResidentRanges::new()?;
        let all = PageRange::new(0, usize::MAX & PAGE_MASK)?;
        let tally = OutcomeTally::new(all, None);
        let mut step = MigrateStep::new(self, Target::System, false, false, None, tally)?;
        let inner = self.inner();
        let to_device = false;
        let trigger = MigrateReason::Close;
        inner.emit(&Event::MigrateBegin {
            range: all,
            to_device,
            trigger,
        });
        self.stats().add(Counter::Migrations, 1);
        let mut moved = 0;
        let result = self.drain_all(all, &mut parts, &mut step, &mut moved);
        inner.emit(&Event::MigrateEnd {
            to_device,
            trigger,
            moved,
            switched: 0,
            stayed: 0,
            result,
        });
        memory.stats().add(Counter::Evicted, moved as u64);
        result.map(|()| moved)
    }

    #[inline(never)]
    fn drain_all(
        &self,
        all: PageRange,
        parts: &mut ResidentRanges,
        step: &mut MigrateStep<'_, D>,
        moved: &mut usize,
    ) -> Result {
        let mut rest = Some(all);
        while let Some(range) = rest {
            self.remove_some(range, |span, entry| !entry.is_device() || parts.add(span));
            let end = parts.list.last().map(PageRange::end);
            rest = end
                .filter(|_| parts.full)
                .and_then(|end| range.from_address(end));
            for part in parts.list.drain_all() {
                *moved += step.move_part(part)?;
            }
            parts.full = false;
        }
        Ok(())
    }
}

impl<D: Device> MigrateStep<'_, D> {
    /// Migrates the movable pages of `part`. Returns the number of pages that moved.
    ///
    /// # Errors
    ///
    /// - `EINTR` if a fatal signal is pending.
    fn move_part(&mut self, part: PageRange) -> Result<usize> {
        let mut moved = 0;
        let mut rest = Some(part);
        while let Some(range) = rest {
            let (done, result) = self.run(range);
            let pages = self.work.pages.iter();
            moved += pages.filter(|page| page.has_moved()).count();
            rest = match result {
                Ok(()) => range.from_address(done),
                // A hole, or a VMA that may not be read.
                Err(error) if error == EINVAL => range.from_address(done + PAGE_SIZE),
                Err(error) if error == EINTR => return Err(error),
                Err(_) => None,
            };
        }
        Ok(moved)
    }
}
