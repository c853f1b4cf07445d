// SPDX-License-Identifier: GPL-2.0

//! CPU faults on pages in private device memory.
//!
//! A fault does not wait for invalidations, because it holds a folio lock for which an invalidation
//! may wait (H14). Mirrors that can join the migration without waiting keep their device PTEs, so
//! that the device continues to read. The notifier calls of the migration remove the device PTEs of
//! all other mirrors.

use super::{
    pipeline::{
        fill_from_system,
        Migration,
        MigrationOps, //
    },
    splits::{
        sleep_before_return,
        Met, //
    },
    Copier,
    CopyContext,
    MemoryOps,
    MemoryState,
    StepGuard, //
};
use crate::{
    debug::timing::Stopwatch,
    kernel::{
        completion::TimedCompletion,
        identity::MigrationId, //
    },
    mm::{
        addr::{
            PageRange,
            PMD_ORDER,
            PMD_SIZE, //
        },
        device_pages::{
            CpuFault,
            DevicePages,
            FaultError, //
        },
        folio::{
            Effort,
            LockedFolio, //
        },
        migrate::{
            Batch,
            Isolated,
            MigrateEntry,
            Moved,
            Source, //
        },
        page_set::PageSet,
        vma::Vma, //
    },
    space::{
        cpu_fault_window,
        Destination,
        EventMatch,
        FlushedReaders,
        JoinedMirrors,
        MigrationDesc,
        Readers, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

/// Migrates the faulting page to system memory and, as far as possible, the window around it.
/// Returns the number of pages that moved.
pub(super) fn handle<M: MemoryOps>(
    pages: &DevicePages<MemoryState<M>>,
    fault: &CpuFault<'_>,
) -> Result<usize, FaultError> {
    if fault.is_huge() {
        return handle_huge(pages, fault);
    }
    // Size in bytes of the window that is migrated with the faulting page.
    let window = cpu_fault_window(fault.vma().space(), pages.data().id, fault.address());
    let mut batch = Batch::with_capacity(window / PAGE_SIZE).map_err(|_| FaultError::NoMemory)?;
    let mut copies = CopyContext::new(true).map_err(|_| FaultError::NoMemory)?;
    if fault.is_large_folio_subpage() {
        // Isolating the page splits the folio, and then migrates the page only if it is the first
        // one. If the split failed, the CPU repeats the access.
        let moved = attempt(pages, fault, &mut batch, &mut copies, PAGE_SIZE)?;
        if moved != 0 || fault.is_large_folio_subpage() {
            return Ok(moved);
        }
    }
    attempt(pages, fault, &mut batch, &mut copies, window)
}

/// Migrates a huge page to system memory without a split. If other processes map it, too, or if no
/// huge page of system memory can be allocated, it must be split first. That is not possible in the
/// fault, so that a work item does it: see [`splits`](super::splits). A task that faults in user
/// mode sleeps until the work item has ended.
fn handle_huge<M: MemoryOps>(
    pages: &DevicePages<MemoryState<M>>,
    fault: &CpuFault<'_>,
) -> Result<usize, FaultError> {
    let number = pages.lookup(fault.pfn()).ok_or(FaultError::Lost)?;
    let splits = &pages.data().splits;
    let can_sleep = fault.is_user();
    let mut is_last = false;
    let mut is_visit = false;
    match splits.meet(number, can_sleep) {
        Met::Nothing => {}
        Met::GaveUp => is_last = true,
        Met::Splitting(completion) if can_sleep => return put_off(fault, completion),
        Met::Splitting(_) if splits.returns_at_once(fault.can_retry()) => {
            return Err(FaultError::Retry);
        }
        Met::Splitting(_) => is_visit = true,
    }
    let mut batch = Batch::new().map_err(|_| FaultError::NoMemory)?;
    let mut copies = CopyContext::new(true).map_err(|_| FaultError::NoMemory)?;
    let moved = attempt(pages, fault, &mut batch, &mut copies, PMD_SIZE)?;
    if moved != 0 {
        return Ok(moved);
    }
    if is_last {
        // A work item has tried the split and given up.
        return Err(FaultError::NoMemory);
    }
    if is_visit {
        // Do not begin another work item: if this one has given up by now, the next fault must see
        // that, and is the last one.
        return Err(FaultError::Retry);
    }
    match splits.begin(number, can_sleep) {
        Ok(completion) => put_off(fault, completion),
        Err(ENOMEM) => Err(FaultError::NoMemory),
        Err(_) => Err(FaultError::Retry),
    }
}

/// Ends the fault so that the access is repeated: after the completion `completion` if the task can
/// sleep before it returns to user mode, else at once.
fn put_off(fault: &CpuFault<'_>, completion: Arc<TimedCompletion>) -> Result<usize, FaultError> {
    // Not VM_FAULT_RETRY: with that the fault is repeated before the task returns to user mode.
    if fault.is_user() && sleep_before_return(completion) {
        Ok(0)
    } else {
        Err(FaultError::Retry)
    }
}

/// Operations of the migration of a CPU fault, and its results.
struct FaultMigration<'a, M: MemoryOps> {
    _departure: StepGuard<'a>,
    state: &'a MemoryState<M>,
    vma: Vma<'a>,
    range: PageRange,
    /// Index of the faulting page in `range`.
    target: usize,
    /// No small page could be allocated for the faulting page.
    no_memory: bool,
    /// No huge page could be allocated for the faulting page.
    no_huge: bool,
    /// The copy of the faulting page failed.
    lost: bool,
    /// Number of pages that moved.
    moved: usize,
}

impl<M: MemoryOps> FaultMigration<'_, M> {
    /// Returns whether `entry` has the faulting page.
    fn is_needed(&self, entry: &MigrateEntry) -> bool {
        (entry.index..entry.index + entry.pages).contains(&self.target)
    }
}

impl<'p, M: MemoryOps> MigrationOps<Readers<'p>> for FaultMigration<'_, M> {
    fn fill(&mut self, isolated: &mut Isolated<'_, Readers<'p>>) -> bool {
        fill_from_system(
            isolated,
            Some(self.vma),
            |_| true,
            |entry| {
                let needed = self.is_needed(entry);
                let order = entry.order();
                let effort = if needed && order == 0 {
                    Effort::Must
                } else {
                    Effort::Try
                };
                let folio = if order == PMD_ORDER && self.state.faults.fails_allocation() {
                    Err(ENOMEM)
                } else {
                    let addr = self.range.address(entry.index);
                    LockedFolio::alloc_system(Some(self.vma), addr, order, effort)
                };
                if folio.is_err() && needed {
                    self.no_huge |= order == PMD_ORDER;
                    self.no_memory |= order == 0;
                }
                folio.ok()
            },
        );
        true
    }

    fn copied(&mut self, isolated: &Isolated<'_, Readers<'p>>, _failed: &PageSet) {
        // The entry is a hole if the page was freed after the fault had begun. Then no data is
        // lost.
        let faulting = isolated
            .entry_with(self.target)
            .filter(|entry| entry.source != Source::Hole);
        // The page was isolated and got a destination, which was removed because the copy failed.
        let failed = faulting.is_some_and(|entry| entry.destination == 0);
        self.lost = failed && !self.no_memory && !self.no_huge;
    }

    fn moved(&mut self, moved: &Moved<'_>) {
        self.moved = moved.pages();
    }

    fn switch(&mut self, readers: Readers<'p>, moved: &Moved<'_>) -> FlushedReaders<'p> {
        readers.switch(moved)
    }
}

/// Migrates the device pages within `window` bytes around the fault to system memory. Returns the
/// number of pages that moved. If the faulting page could not be isolated now, it is not among
/// them.
///
/// # Errors
///
/// - `NoMemory` if no small page could be allocated for the faulting page.
/// - `Lost` if the copy of the faulting page failed, or if nothing could be isolated.
fn attempt<M: MemoryOps>(
    pages: &DevicePages<MemoryState<M>>,
    fault: &CpuFault<'_>,
    batch: &mut Batch,
    copies: &mut CopyContext,
    window: usize,
) -> Result<usize, FaultError> {
    let vma = fault.vma();
    let start = fault.address() & !(window - 1);
    let range = PageRange::new(
        start.max(vma.start()),
        start.saturating_add(window).min(vma.end()),
    )
    .map_err(|_| FaultError::Lost)?;
    // The device PTEs of other pages stay, and so do the marks of a concurrent migration that moves
    // them to the device.
    let run = vma.device_run(range, fault.address(), pages.tile());
    let range = run.unwrap_or(range);
    let target = range.index_of(fault.address()).ok_or(FaultError::Lost)?;

    // Before the mirrors join, and thus before the first page is isolated.
    let departure = pages.data().departures.begin();
    // Mirrors that can join without waiting keep their device PTEs until the pages have moved.
    let request = MigrationDesc {
        // Unique until the request ends: no other object has this address.
        name: MigrationId::of(&*batch),
        identity: EventMatch::current(pages.owner()),
        range,
        faultless: true,
        destination: Destination::CpuFault,
    };
    let mut joined = JoinedMirrors::new();
    let migration = Migration {
        copier: Copier::new(pages, None),
        copies,
        readers: joined.join(vma.space(), request, None),
        ops: FaultMigration {
            _departure: departure,
            state: pages.data(),
            vma,
            range,
            target,
            no_memory: false,
            no_huge: false,
            lost: false,
            moved: 0,
        },
        stopwatch: Stopwatch::start(),
    };
    let origin = pages.origin();
    let huge = fault.is_huge();
    match migration.run(|| Isolated::new(vma, range, origin, huge, Some(fault), batch)) {
        Ok(Some(done)) if done.no_memory => Err(FaultError::NoMemory),
        Ok(Some(done)) if !done.lost => Ok(done.moved),
        _ => Err(FaultError::Lost),
    }
}
