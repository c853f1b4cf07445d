// SPDX-License-Identifier: GPL-2.0

//! One attempt of a step: isolate, allocate, copy, migrate, switch, finalize.

use super::{PageOutcome, Target};
use crate::{
    memory::Copies,
    mirror::{Device, Mirror, Switched},
    mm::{
        addr::{PageRange, PMD_ORDER, PMD_PAGES},
        migrate::{Batch, Entry, Isolated, Select, Source},
        notifier::Cookie,
        page::{Effort, LockedFolio},
        space::Vma,
    },
    pgtable::{Format, Spares},
    phases::{Lap, Phase},
};
use kernel::{mm::virt::flags, prelude::*};

/// Room that steps use again.
pub(super) struct Work<F: Format> {
    pub(super) batch: Batch,
    pub(super) copies: Copies,
    pub(super) spares: Spares<F>,
    /// Outcomes of the step.
    pub(super) pages: KBox<[PageOutcome; PMD_PAGES]>,
    /// Entries that moved, of all steps.
    pub(super) entries: usize,
}

/// How an attempt ended.
pub(super) enum Attempt {
    Done {
        /// The device lost entries of pages that moved.
        lost: bool,
    },
    /// A huge page could not be had. Nothing has moved.
    NoHuge,
}

/// Notes the outcome of the pages of `entry`.
fn set(pages: &mut [PageOutcome; PMD_PAGES], entry: &Entry, outcome: PageOutcome) {
    for page in pages.iter_mut().skip(entry.index).take(entry.pages) {
        *page = outcome;
    }
}

impl<F: Format> Work<F> {
    pub(super) fn isolate_and_move<D: Device<Format = F>>(
        &mut self,
        mirror: &Mirror<D>,
        target: Target,
        vma: Vma<'_>,
        piece: PageRange,
        compound: bool,
        name: Cookie,
    ) -> Result<Attempt> {
        let Self {
            batch,
            copies,
            spares,
            pages,
            entries,
        } = self;
        let memory = mirror.device().memory().ok_or(ENODEV)?;
        if target == Target::Device && vma.flags() & flags::MERGEABLE != 0 {
            // A page that KSM has just merged is not in its reverse mapping yet: the core would
            // isolate it and never find its way back (B7).
            for page in pages.iter_mut().take(piece.pages()) {
                *page = PageOutcome::Skipped;
            }
            return Ok(Attempt::Done { lost: false });
        }
        let huge = compound && piece.is_pmd();
        // Coherent folios stay small: the core never collects huge ones on the way back.
        let compound = huge && memory.select() == Select::Private;
        if huge && !compound && memory.driver_fails(PMD_ORDER) {
            return Ok(Attempt::NoHuge);
        }
        let (select, cookie) = match target {
            Target::Device => (Select::System, name),
            Target::System => (memory.select(), memory.owner()),
        };
        let mut lap = Lap::start();
        let mut isolated = Isolated::new(vma, piece, select, compound, cookie, None, batch)?;
        lap.end(Phase::Unmap);

        let mut no_huge = false;
        match target {
            Target::Device => {
                let allocator = memory.allocator();
                isolated.fill(|entry| {
                    let folio = allocator.alloc(entry.order());
                    if folio.is_none() {
                        no_huge |= entry.order() == PMD_ORDER;
                        set(pages, entry, PageOutcome::NoMemory);
                    }
                    folio
                });
            }
            Target::System => {
                let (asked, refused) = (memory.allocator(), &mut *pages);
                isolated.fill_small(Some(vma), move |entry| {
                    let fails = asked.driver_fails(0);
                    if fails {
                        set(refused, entry, PageOutcome::NoMemory);
                    }
                    !fails
                });
                isolated.fill(|entry| {
                    let order = entry.order();
                    let refused = pages.get(entry.index) == Some(&PageOutcome::NoMemory);
                    // The core offers holes, too, but there is nothing to bring back.
                    if entry.source == Source::Hole || refused {
                        return None;
                    }
                    let effort = match order {
                        0 => Effort::Must,
                        _ => Effort::Try,
                    };
                    let addr = piece.address(entry.index);
                    let folio = match memory.driver_fails(order) {
                        true => None,
                        false => LockedFolio::alloc_system(Some(vma), addr, order, effort).ok(),
                    };
                    if folio.is_none() {
                        no_huge |= order == PMD_ORDER;
                        set(pages, entry, PageOutcome::NoMemory);
                    }
                    folio
                });
            }
        }
        lap.end(Phase::Allocate);
        if no_huge {
            // Puts everything back.
            return Ok(Attempt::NoHuge);
        }
        let failed = memory.copy_all(&mut isolated, copies);
        lap.end(Phase::Copy);
        if failed.any() {
            for entry in isolated.entries() {
                if failed.is(entry.index) {
                    set(pages, &entry, PageOutcome::CopyFailed);
                }
            }
        }

        let migrated = isolated.migrate();
        lap.end(Phase::Switch);
        for entry in migrated.moved() {
            *entries += usize::from(entry.source != Source::Hole);
        }
        let mut lost = false;
        let mut each = |index: usize, what: Switched| {
            let Some(page) = pages.get_mut(index) else {
                return;
            };
            let explained = matches!(page, PageOutcome::NoMemory | PageOutcome::CopyFailed);
            *page = match what {
                Switched::Yes { was_valid: true } => PageOutcome::Switched,
                Switched::Yes { was_valid: false } | Switched::NoEntry => PageOutcome::Moved,
                Switched::Lost => {
                    lost = true;
                    PageOutcome::Lost
                }
                Switched::Stays { .. } if explained || page.has_moved() => *page,
                Switched::Stays { on_device } if on_device == (target == Target::Device) => {
                    PageOutcome::None
                }
                Switched::Stays { .. } => PageOutcome::Skipped,
            };
        };
        let (flushed, result) = match target {
            Target::Device => {
                let writable = vma.flags() & flags::WRITE != 0;
                let number = memory.numbers();
                mirror.switch_to_device(name, piece, &migrated, number, writable, spares, &mut each)
            }
            Target::System => (
                mirror.switch_to_system(name, piece, &migrated, &mut each),
                Ok(()),
            ),
        };
        // The time since then has been accounted for.
        let mut lap = Lap::start();
        migrated.finalize(&flushed);
        lap.end(Phase::Finalize);
        result.map(|()| Attempt::Done { lost })
    }
}
