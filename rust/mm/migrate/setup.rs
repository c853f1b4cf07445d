// SPDX-License-Identifier: GPL-2.0

//! Isolation of pages by `migrate_vma_setup()`, with which each migration begins.

use super::{
    Batch,
    Isolated,
    MigrateState,
    Origin,
    Restored,
    Select,
    ThpIsolation,
    ThpLookup, //
};
use crate::{
    bindings,
    inject::{
        fails,
        FailPoint, //
    },
    kernel::identity::EventOwner,
    mm::{
        addr::{
            PageRange,
            PMD_PAGES, //
        },
        cpu_fault::CpuFault,
        vma::Vma, //
    }, //
};
use core::ptr;
use kernel::{
    error::to_result,
    prelude::*, //
};

impl<'a> Isolated<'a> {
    /// Isolates the pages of `range` that are in a device's memory, best effort.
    ///
    /// `range` must lie in `vma` and in one block. With `compound` a huge page of private memory is
    /// isolated as one entry; otherwise it is split. The core does not collect huge pages of
    /// coherent memory. `fault` is the CPU fault being handled, if any. Small pages of other
    /// memories of the owner are isolated, too.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: `range` is not within `vma` and one block, or the VMA is special or hugetlb.
    ///
    /// # Context
    ///
    /// May sleep. Calls notifiers: no lock that a notifier takes may be held.
    ///
    /// # Examples
    ///
    /// ```
    /// # use kernel::prelude::*;
    /// use rust_hmm::mm::addr::PageRange;
    /// use rust_hmm::mm::migrate::Batch;
    /// use rust_hmm::mm::migrate::Isolated;
    /// use rust_hmm::mm::migrate::Origin;
    /// use rust_hmm::mm::vma::Vma;
    ///
    /// /// Returns the number of pages of `range` that are in the memory of `origin` and can move.
    /// fn movable(vma: Vma<'_>, range: PageRange, origin: Origin) -> Result<usize> {
    ///     let mut batch = Batch::new()?;
    ///     let isolated = Isolated::new(vma, range, origin, true, None, &mut batch)?;
    ///     // The drop of `isolated` puts the pages back.
    ///     Ok(isolated.entries().map(|entry| entry.pages).sum())
    /// }
    /// ```
    pub fn new(
        vma: Vma<'a>,
        range: PageRange,
        origin: Origin,
        compound: bool,
        fault: Option<&CpuFault<'a>>,
        batch: &'a mut Batch,
    ) -> Result<Self> {
        Self::check(vma, range)?;
        let huge = compound && range.is_pmd() && origin.select == Select::Private;
        let select = match origin.select {
            Select::Private => bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_DEVICE_PRIVATE,
            Select::Coherent => bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_DEVICE_COHERENT,
        };
        let in_one = bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_COMPOUND;
        let (flags, whole) = if huge {
            // If none is found, a huge page may still be mapped before the core walks the page
            // table. Such a page must not be isolated as a whole.
            match ThpIsolation::find(vma, range, origin.tile, fault) {
                ThpLookup::Nothing => (in_one, None),
                ThpLookup::Whole(whole) => (select | in_one, Some(whole)),
                ThpLookup::Other => (select, None),
            }
        } else {
            (select, None)
        };
        Self::set_up(vma, range, flags, origin.owner.into(), fault, whole, batch)
    }

    pub(super) fn check(vma: Vma<'a>, range: PageRange) -> Result {
        if range.pages() > PMD_PAGES || range.start() < vma.start() || range.end() > vma.end() {
            return Err(EINVAL);
        }
        if fails(FailPoint::Isolate) {
            return Err(ENOMEM);
        }
        Ok(())
    }

    pub(super) fn set_up(
        vma: Vma<'a>,
        range: PageRange,
        flags: u32,
        owner: EventOwner,
        fault: Option<&CpuFault<'a>>,
        whole: Option<ThpIsolation<'a>>,
        batch: &'a mut Batch,
    ) -> Result<Self> {
        let of_cpu = bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_SYSTEM
            | bindings::migrate_vma_direction_MIGRATE_VMA_SELECT_DEVICE_COHERENT;
        let pages = range.pages();
        batch.clear(pages)?;
        let held = || whole.as_ref().map_or(ptr::null_mut(), ThpIsolation::page);
        let mut raw = bindings::migrate_vma {
            vma: vma.as_ptr(),
            src: batch.src.as_mut_ptr(),
            dst: batch.dst.as_mut_ptr(),
            start: range.start(),
            end: range.end(),
            pgmap_owner: owner.as_ptr(),
            flags: flags as usize,
            fault_page: fault.map_or_else(held, CpuFault::page),
            ..Default::default()
        };
        // SAFETY: The mmap lock is held for `'a`, the arrays are as long as the range.
        to_result(unsafe { bindings::migrate_vma_setup(&mut raw) })?;
        // INVARIANT: Just set up.
        let pages = Restored(MigrateState {
            raw,
            range,
            cpu_sources: flags & of_cpu != 0,
            chosen: false,
            batch,
            pages,
            whole,
        });
        Ok(Self { pages, readers: () })
    }

    /// Calls `isolate` to isolate pages that `readers` keep reading. The readers are passed before
    /// the isolation, so that they are owned on each return path.
    ///
    /// # Errors
    ///
    /// - Those of `isolate`; the readers are then dropped.
    ///
    /// # Context
    ///
    /// As for `isolate`.
    pub fn read_by<R>(
        readers: R,
        isolate: impl FnOnce() -> Result<Self>,
    ) -> Result<Isolated<'a, R>> {
        let Self { pages, readers: () } = isolate()?;
        Ok(Isolated { pages, readers })
    }
}
