// SPDX-License-Identifier: GPL-2.0

//! Survey of the CPU page table before a step: finds the movable pages, and the outcomes of the
//! others.

use super::{
    PageOutcome,
    Target, //
};
use crate::{
    kernel::identity::MemoryId,
    mm::{
        addr::PageRange,
        migrate::{
            PageClass,
            SystemPages, //
        },
        vma::{
            MmapGuard,
            Vma, //
        }, //
    }, //
};
use kernel::prelude::*;

/// Movable pages. Valid as long as the mmap lock is held that was held for the survey.
pub(super) enum Movable<'a> {
    /// In system memory.
    System(SystemPages<'a>),
    /// In the device's memory: this range of the VMA.
    Device(Vma<'a>, PageRange),
}

impl<'a> Movable<'a> {
    /// Returns the direction of the move.
    pub(super) fn target(&self) -> Target {
        match self {
            Self::System(_) => Target::Device,
            Self::Device(..) => Target::System,
        }
    }

    /// Returns whether isolation may wait for a folio lock. With `compound`, a huge page can be
    /// isolated whole.
    pub(super) fn may_wait_for_folios(&self, compound: bool) -> bool {
        match self {
            Self::System(pages) => pages.may_split(compound),
            // Conservative: migrations to system memory do not overlap.
            Self::Device(..) => true,
        }
    }

    /// Returns the VMA of the pages.
    pub(super) fn vma(&self) -> Vma<'a> {
        match self {
            Self::System(pages) => pages.vma(),
            Self::Device(vma, _) => *vma,
        }
    }
}

/// Result of a survey.
pub(super) struct Survey {
    /// End of the surveyed range, within one VMA.
    pub(super) end: usize,
    /// Range of the pages that are in device memory already, and their number. For steps to the
    /// device only.
    pub(super) resident: Option<(PageRange, usize)>,
    /// Whether there are pages before [`Self::found`] that cannot move.
    pub(super) immovable: bool,
    /// Whether there are pages before [`Self::found`] that may become movable soon.
    pub(super) held: bool,
    /// The first run of movable pages.
    pub(super) found: Option<PageRange>,
}

/// Parameters of a survey.
#[derive(Clone, Copy)]
pub(super) struct Surveyor {
    pub(super) target: Target,
    /// The device memory.
    pub(super) tile: MemoryId,
    /// Whether the step retries after a pause if pages have extra references.
    pub(super) patient: bool,
}

impl Surveyor {
    /// Finds the first run of movable pages of `piece`. Records the outcomes of the pages before it
    /// in `pages`, which begins with the first page of `piece`. `piece` must lie within a block.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there is no VMA, or the VMA may not be read, is special, or is hugetlb.
    ///
    /// # Context
    ///
    /// May sleep. The mmap lock is held.
    pub(super) fn survey<'a>(
        self,
        mmap: &'a MmapGuard<'_>,
        piece: PageRange,
        pages: &mut [PageOutcome],
    ) -> Result<(Survey, Option<Movable<'a>>)> {
        let (vma, piece) = mmap.readable(piece)?;
        let mut survey = Survey {
            end: piece.end(),
            resident: None,
            immovable: false,
            held: false,
            found: None,
        };
        let mut rest = Some(piece);
        while let Some(left) = rest {
            let (part, outcome) = match self.target {
                Target::Device => {
                    let (kind, part, found) = vma.alike_system(left, self.tile)?;
                    if let Some(found) = found {
                        survey.found = Some(part);
                        return Ok((survey, Some(Movable::System(found))));
                    }
                    (part, self.outcome_to_device(kind, part, &mut survey))
                }
                Target::System => {
                    let (kind, part) = vma.uniform_prefix(left, self.tile)?;
                    let outcome = match kind {
                        PageClass::Device => {
                            survey.found = Some(part);
                            return Ok((survey, Some(Movable::Device(vma, part))));
                        }
                        PageClass::Busy => PageOutcome::Skipped,
                        PageClass::System | PageClass::Held | PageClass::Stay => PageOutcome::None,
                    };
                    (part, outcome)
                }
            };
            let index = piece.index_of(part.start()).ok_or(EINVAL)?;
            let pages = pages.iter_mut().skip(index).take(part.pages());
            for page in pages.filter(|page| page.may_still_move()) {
                *page = outcome;
            }
            rest = left.from_address(part.end());
        }
        Ok((survey, None))
    }

    /// Returns the outcome of `part`, which cannot move to the device now.
    fn outcome_to_device(
        self,
        kind: PageClass,
        part: PageRange,
        survey: &mut Survey,
    ) -> PageOutcome {
        match kind {
            PageClass::Device => {
                let (hull, count) = survey.resident.unwrap_or((part, 0));
                survey.resident = Some((hull.union(&part), count + part.pages()));
                return PageOutcome::None;
            }
            // A fault does not retry for pages with extra references. The device maps them in
            // place.
            PageClass::Busy => survey.held = true,
            PageClass::Held if self.patient => survey.held = true,
            PageClass::System | PageClass::Held | PageClass::Stay => survey.immovable = true,
        }
        PageOutcome::Skipped
    }

    /// Calls `each` for the runs of pages of which none can move to the device. Pages in device
    /// memory count as such pages.
    ///
    /// The runs are within `all` and within the VMA at `addr`. `all` must lie within a block and
    /// contain `addr`.
    ///
    /// # Errors
    ///
    /// Those of [`Self::survey`].
    ///
    /// # Context
    ///
    /// As for [`Self::survey`].
    pub(super) fn immovable(
        self,
        mmap: &MmapGuard<'_>,
        all: PageRange,
        addr: usize,
        mut each: impl FnMut(PageRange),
    ) -> Result {
        let vma = mmap.vma_lookup(addr).ok_or(EINVAL)?;
        let all = PageRange::new(all.start().max(vma.start()), all.end().min(vma.end()))?;
        let mut run: Option<PageRange> = None;
        let mut rest = Some(all);
        while let Some(left) = rest {
            let (kind, part, _) = vma.alike_system(left, self.tile)?;
            run = match kind {
                PageClass::Device | PageClass::Held | PageClass::Stay => {
                    Some(run.map_or(part, |run| run.union(&part)))
                }
                PageClass::System | PageClass::Busy => {
                    run.into_iter().for_each(&mut each);
                    None
                }
            };
            rest = left.from_address(part.end());
        }
        run.into_iter().for_each(each);
        Ok(())
    }
}
