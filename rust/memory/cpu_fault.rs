// SPDX-License-Identifier: GPL-2.0

//! A CPU touches a page that is in device memory.
//!
//! Nothing here waits for invalidations: a folio lock is held that an invalidation may wait for
//! (H14). The device goes on reading through mirrors that can be had without waiting; others' entries
//! are removed the ordinary way, by the notifier calls of the migration itself.

use super::{
    splits::{sleep_before_return, Met},
    Copies,
    MemoryOps,
    Ops, //
};
use crate::{
    mm::{
        addr::{PageRange, PMD_ORDER, PMD_SIZE},
        bell::Bell,
        device_pages::{CpuFault, DevicePages, FaultError},
        migrate::{Batch, Isolated, Pages, Source},
        notifier::Cookie,
        page::{Effort, LockedFolio},
        space::Vma,
    },
    phases::{Lap, Phase},
    space::{Destination, Identity, Joined, Request},
};
use kernel::{page::PAGE_SIZE, prelude::*, sync::Arc};

/// Brings the faulting page back, and best effort the window around it. Returns the pages moved.
pub(super) fn serve<M: MemoryOps>(
    pages: &DevicePages<Ops<M>>,
    fault: &CpuFault<'_>,
) -> Result<usize, FaultError> {
    if fault.is_huge() {
        return serve_huge(pages, fault);
    }
    // Bytes around the faulting page that are brought back with it.
    let space = fault.vma().space().number();
    let window = pages.data().windows.touch(space, fault.address());
    let mut batch = Batch::with_room(window / PAGE_SIZE).map_err(|_| FaultError::NoMemory)?;
    let mut copies = Copies::new(true).map_err(|_| FaultError::NoMemory)?;
    if fault.is_part_of_large() {
        // Isolating the page splits the folio; it then comes back only if it is the first one. What
        // could not be split now is tried again by the CPU.
        let moved = attempt(pages, fault, &mut batch, &mut copies, PAGE_SIZE)?;
        if moved != 0 || fault.is_part_of_large() {
            return Ok(moved);
        }
    }
    attempt(pages, fault, &mut batch, &mut copies, window)
}

/// Brings a huge page back whole. If others map it too, or if there is no huge page of system
/// memory, it has to be split first, which is not possible here: see [`splits`](super::splits). A
/// task that faults in user mode sleeps meanwhile.
fn serve_huge<M: MemoryOps>(
    pages: &DevicePages<Ops<M>>,
    fault: &CpuFault<'_>,
) -> Result<usize, FaultError> {
    let number = pages.lookup(fault.pfn()).ok_or(FaultError::Lost)?;
    let splits = &pages.data().splits;
    let can_sleep = fault.is_user();
    let (mut is_last, mut is_visit) = (false, false);
    match splits.meet(number, can_sleep) {
        Met::Nothing => {}
        Met::GaveUp => is_last = true,
        Met::Splitting(bell) if can_sleep => return put_off(fault, bell),
        Met::Splitting(_) if splits.returns_at_once(fault.can_retry()) => {
            return Err(FaultError::Again);
        }
        Met::Splitting(_) => is_visit = true,
    }
    let mut batch = Batch::new().map_err(|_| FaultError::NoMemory)?;
    let mut copies = Copies::new(true).map_err(|_| FaultError::NoMemory)?;
    let moved = attempt(pages, fault, &mut batch, &mut copies, PMD_SIZE)?;
    if moved != 0 {
        return Ok(moved);
    }
    if is_last {
        // Its caller has tried for long enough.
        return Err(FaultError::NoMemory);
    }
    if is_visit {
        // Not begun anew: if the work item has given up meanwhile, the next fault is the last one.
        return Err(FaultError::Again);
    }
    match splits.begin(number, can_sleep) {
        Ok(bell) => put_off(fault, bell),
        Err(ENOMEM) => Err(FaultError::NoMemory),
        Err(_) => Err(FaultError::Again),
    }
}

/// Ends the fault so that it is repeated: after `bell` has rung if the task can sleep for that, else
/// at once.
fn put_off(fault: &CpuFault<'_>, bell: Arc<Bell>) -> Result<usize, FaultError> {
    // Not VM_FAULT_RETRY: with that the fault is repeated before the task returns to user mode.
    match fault.is_user() && sleep_before_return(bell) {
        true => Ok(0),
        false => Err(FaultError::Again),
    }
}

/// The pages of `range` around `addr` that are in device memory `tile`, without a gap. Others
/// cannot come back: they keep their entries, and a migration that moves them to the device
/// meanwhile keeps its marks.
fn device_run(vma: Vma<'_>, range: PageRange, addr: usize, tile: Cookie) -> Option<PageRange> {
    let mut rest = Some(range);
    let mut run: Option<PageRange> = None;
    while let Some(left) = rest {
        let (kind, part) = vma.alike(left, tile).ok()?;
        rest = left.from_address(part.end());
        run = match (kind, run) {
            (Pages::Device, None) => Some(part),
            (Pages::Device, Some(run)) => Some(run.hull(&part)),
            (_, Some(run)) if run.index_of(addr).is_some() => return Some(run),
            _ => None,
        };
    }
    run.filter(|run| run.index_of(addr).is_some())
}

/// Brings back what there is within `window` bytes around the fault. Returns the pages moved; if the faulting one is
/// not among them, it was not to be had now.
fn attempt<M: MemoryOps>(
    pages: &DevicePages<Ops<M>>,
    fault: &CpuFault<'_>,
    batch: &mut Batch,
    copies: &mut Copies,
    window: usize,
) -> Result<usize, FaultError> {
    let ops = pages.data();
    let vma = fault.vma();
    let start = fault.address() & !(window - 1);
    let range = PageRange::new(
        start.max(vma.start()),
        start.saturating_add(window).min(vma.end()),
    )
    .map_err(|_| FaultError::Lost)?;
    let range = device_run(vma, range, fault.address(), pages.tile()).unwrap_or(range);
    let target = range.index_of(fault.address()).ok_or(FaultError::Lost)?;

    let covers = |index: usize, pages: usize| (index..index + pages).contains(&target);
    let mut no_memory = false;
    let mut no_huge = false;
    let _departure = ops.departures.begin();
    // Mirrors that can be had at once keep their entries until the pages have moved.
    let request = Request {
        // Any address that nothing else has meanwhile.
        name: Cookie::of(&*batch),
        identity: Identity::current(pages.owner()),
        range,
        faultless: true,
        destination: Destination::Any,
    };
    let mut joined = Joined::new();
    let readers = joined.join(vma.space(), request, None);
    let mut lap = Lap::start();
    let origin = pages.origin();
    let mut isolated = Isolated::read_by(readers, || {
        Isolated::new(vma, range, origin, fault.is_huge(), Some(fault), batch)
    })
    .map_err(|_| FaultError::Lost)?;
    lap.end(Phase::Unmap);
    if isolated.fill_small(Some(vma), |_| true) {
        isolated.fill(|entry| {
            if entry.source == Source::Hole {
                // The core offers these, too, but there is nothing to bring back.
                return None;
            }
            let needed = covers(entry.index, entry.pages);
            let order = entry.order();
            let effort = if needed && order == 0 {
                Effort::Must
            } else {
                Effort::Try
            };
            let folio = if order == PMD_ORDER && ops.fails(order) {
                Err(ENOMEM)
            } else {
                LockedFolio::alloc_system(Some(vma), range.address(entry.index), order, effort)
            };
            if folio.is_err() && needed {
                no_huge |= order == PMD_ORDER;
                no_memory |= order == 0;
            }
            folio.ok()
        });
    }
    lap.end(Phase::Allocate);
    ops.copy_all(pages, &mut isolated, copies);
    lap.end(Phase::Copy);
    // A hole if the page was dropped since the fault has looked: then nothing is lost.
    let wanted = isolated
        .entries()
        .find(|entry| covers(entry.index, entry.pages) && entry.source != Source::Hole);
    // Isolated, given memory, but its destination was taken back: the copy failed.
    let lost = wanted.is_some_and(|entry| entry.destination == 0) && !no_memory && !no_huge;

    let migrated = isolated.migrate();
    let moved = migrated.moved().pages();
    lap.end(Phase::Switch);
    migrated.finalize(|readers, moved| {
        let settled = readers.switch(moved);
        lap = Lap::start();
        settled
    });
    // Now CPUs have the pages.
    lap.end(Phase::Finalize);

    if no_memory {
        return Err(FaultError::NoMemory);
    }
    if lost {
        return Err(FaultError::Lost);
    }
    Ok(moved)
}
