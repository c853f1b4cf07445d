// SPDX-License-Identifier: GPL-2.0

//! Interfaces of a mirror to its space and to the memory of its device: [`MirrorOps`] for notifier
//! events and for migrations that another mirror or a CPU fault begins, [`MemoryClient`] for unplug
//! and eviction.

use super::{
    commit::{
        forget_moved,
        permit_joined_writes,
        switch_present,
        WriteAccess, //
    },
    in_flight::InFlightNode,
    remove,
    Device,
    MirrorShared,
    MirrorState, //
};
use crate::{
    debug::{
        events::EvictReason,
        timing::{
            Phase,
            Stopwatch, //
        }, //
    },
    kernel::{
        identity::{
            DeviceId,
            MemoryId,
            MigrationId, //
        },
        reentry::ReentryGuard, //
    },
    memory::{
        Connection,
        Memory,
        MemoryClient, //
    },
    mm::{
        addr::PageRange,
        folio::DirtyBatch,
        migrate::Moved,
        notifier::NotifierRange,
        page_set::PageSet, //
    },
    pgtable::{
        Flushed,
        Flushing, //
    },
    space::{
        Destination,
        Invalidated,
        MigrationDesc,
        MirrorOps,
        OwnMemory,
        StartedFlush, //
    }, //
};
use core::ops::ControlFlow;
use kernel::page::PAGE_MASK;

impl<D: Device> MirrorShared<D> {
    /// Returns whether the device can keep reading pages that migrate to `destination`.
    ///
    /// # Context
    ///
    /// May sleep.
    fn can_use(&self, destination: Destination) -> bool {
        let memory = self.device.memory();
        let reaches = |memory: &Memory<D::Memory>, tile: MemoryId| {
            memory.tile() == tile || memory.connections().peek(tile) == Some(Connection::Unified)
        };
        match destination {
            Destination::Any | Destination::CpuFault => true,
            Destination::Private(tile) => memory.is_some_and(|memory| reaches(memory, tile)),
            // A device without memory has no connections, and can use all memory that the CPU can
            // address.
            Destination::Coherent(tile) => memory.is_none_or(|memory| reaches(memory, tile)),
        }
    }
}

impl<D: Device> MirrorOps for MirrorShared<D> {
    fn invalidate(&self, event: &NotifierRange<'_>, alone: bool) -> ControlFlow<(), Invalidated> {
        let mut state = if event.blockable {
            self.lock()
        } else {
            let sleeps = {
                let _within = ReentryGuard::enter();
                self.device.flush_sleeps()
            };
            match self.try_lock() {
                Some(state) if !sleeps => state,
                _ => return ControlFlow::Break(()),
            }
        };
        let (changed, flush) = self.invalidated(&mut state, event);
        drop(state);
        let flush = match flush {
            Some(flush) if event.blockable && !alone => {
                let kept = self.flushes.keep(event.number(), flush);
                kept.map_err(|flush| flush.wait(self)).ok()
            }
            Some(flush) => {
                flush.wait(self);
                None
            }
            None => None,
        };
        ControlFlow::Continue(Invalidated { changed, flush })
    }

    fn link(&self, flush: usize, next: StartedFlush) {
        self.flushes.link(flush, next);
    }

    fn finish(&self, flush: usize) -> Option<StartedFlush> {
        let (flush, next) = self.flushes.take(flush)?;
        flush.wait(self);
        next
    }

    fn leave_window(&self, range: PageRange) -> bool {
        let mut state = self.lock();
        if state.table.any(range, |_| true) || state.in_flight.overlap(range) {
            return false;
        }
        state.immovable.remove(range);
        if let Some(windows) = self.dma() {
            windows.retire_windows(range);
        }
        true
    }

    fn evicted(&self, need: EvictReason) {
        MirrorShared::evicted(self, need);
    }

    fn device_name(&self) -> DeviceId {
        self.device_name()
    }

    fn own_memory(&self) -> OwnMemory {
        self.own_memory()
    }

    fn add_resident(&self, own: OwnMemory, range: PageRange, mask: &mut PageSet) {
        if self.own_memory() == own {
            self.each_resident(range, |index, pages| mask.add(index..index + pages));
        }
    }

    fn restore(&self, range: Option<PageRange>) {
        // Ignore failures, because the device can fault the pages later.
        let _ = MirrorShared::restore(self, range);
    }

    fn join(&self, request: MigrationDesc) -> bool {
        let inner = self;
        if !self.can_use(request.destination) {
            return false;
        }
        let mut stopwatch = Stopwatch::start();
        let Ok(node) = InFlightNode::new() else {
            return false;
        };
        let mut guard = self.lock();
        let MirrorState {
            table, in_flight, ..
        } = &mut *guard;
        if table.live() == 0 {
            return false;
        }
        let MigrationDesc { name, range, .. } = request;
        if in_flight.begin(request, node).is_err() {
            return false;
        }
        // One pass clears the marks of pages without an entry, and write-protects the others.
        let mut writable = PageSet::EMPTY;
        let keep_write = inner.keeps_write();
        let mut behind = range.start();
        let mut any = false;
        let ((), flush) = inner.change(table, None, |table, batch| {
            let mut dirty = DirtyBatch::empty();
            table.for_each(range, batch, |span, entry| {
                any = true;
                if let Ok(gap) = PageRange::new(behind, span.start()) {
                    in_flight.release(name, gap);
                }
                behind = span.end();
                if !entry.is_writable() {
                    return;
                }
                // A huge leaf that begins before the range, and was not split, stays read-only.
                if let Some(first) = range.index_of(span.start()) {
                    match span.pages() {
                        1 => writable.insert(first),
                        pages => writable.add(first..first + pages),
                    }
                }
                if !keep_write {
                    MirrorShared::<D>::retire(&mut dirty, span.pages(), *entry);
                    *entry = entry.write_protected();
                }
            });
        });
        // The next write faults, and may bring the page back to the device.
        if matches!(request.destination, Destination::CpuFault) && inner.places() {
            writable = PageSet::EMPTY;
        }
        in_flight.set_writable(name, range.start(), &writable);
        if let Ok(gap) = PageRange::new(behind, range.end()) {
            in_flight.release(name, gap);
        }
        if !any {
            in_flight.end(name, range.start());
        }
        drop(guard);
        stopwatch.end(Phase::Collect);
        if flush.is_some() {
            Flushing::end(flush, inner);
            stopwatch.end(Phase::Flush);
        }
        any
    }

    fn switch(&self, name: MigrationId, moved: &Moved<'_>) -> Flushed<'_> {
        switch_present(self, name, moved, WriteAccess::OnLeave, |_, _| ())
    }

    fn forget_moved(&self, moved: &Moved<'_>) -> Flushed<'_> {
        forget_moved(self, moved)
    }

    fn permit_writes(&self, name: MigrationId, range: PageRange) {
        permit_joined_writes(self, name, range);
    }

    fn leave(&self, name: MigrationId, range: PageRange) {
        self.lock().in_flight.end(name, range.start());
        self.ended.notify_all();
    }
}

impl<D: Device> MemoryClient for MirrorShared<D> {
    fn remove_entries(&self) {
        if let Ok(all) = PageRange::new(0, usize::MAX & PAGE_MASK) {
            remove(self, all);
        }
    }

    fn evicted_from_many(&self, need: Option<EvictReason>, restore: bool) {
        self.space.evicted(need, restore);
    }
}
