// SPDX-License-Identifier: GPL-2.0

//! The look at the CPU's page table before a step: which pages can move, and what becomes of the
//! others.

use super::{PageOutcome, Target};
use crate::mm::{
    addr::PageRange,
    migrate::{Pages, SystemPages},
    notifier::Cookie,
    space::{MmapGuard, Vma},
};
use kernel::prelude::*;

/// Pages that can move, as long as the mmap lock is held that was held for the look.
pub(super) enum Movable<'a> {
    /// From system memory.
    System(SystemPages<'a>),
    /// From the device's memory: these pages of a mapping.
    Device(Vma<'a>, PageRange),
}

impl<'a> Movable<'a> {
    /// Where they move.
    pub(super) fn target(&self) -> Target {
        match self {
            Self::System(_) => Target::Device,
            Self::Device(..) => Target::System,
        }
    }

    /// Whether isolation may wait for a folio lock, if `compound` lets it take a huge page whole.
    pub(super) fn may_wait_for_folios(&self, compound: bool) -> bool {
        match self {
            Self::System(pages) => pages.may_split(compound),
            // The way back does not overlap: not known.
            Self::Device(..) => true,
        }
    }

    /// The mapping.
    pub(super) fn vma(&self) -> Vma<'a> {
        match self {
            Self::System(pages) => pages.vma(),
            Self::Device(vma, _) => *vma,
        }
    }
}

/// What the look has found.
pub(super) struct Survey {
    /// Its end, within one mapping.
    pub(super) end: usize,
    /// Where pages are in the device's memory already, if the step is one towards it, and how many.
    pub(super) resident: Option<(PageRange, usize)>,
    /// Whether there are pages that cannot move, of those before [`Self::found`].
    pub(super) immovable: bool,
    /// Whether there are, of those before [`Self::found`], pages that may be able to move soon.
    pub(super) held: bool,
    /// The first pages that can move.
    pub(super) found: Option<PageRange>,
}

/// What is to move.
#[derive(Clone, Copy)]
pub(super) struct Surveyor {
    pub(super) target: Target,
    /// Name of the device's memory.
    pub(super) tile: Cookie,
    /// Whether the step waits a little for pages to which somebody has a reference.
    pub(super) patient: bool,
}

impl Surveyor {
    /// Looks for the first pages of `piece` that can move, and notes the outcome of those before
    /// them in `pages`, which begins with the first page of `piece`. `piece` must lie within 2 MiB.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no mapping, or it may not be read, or it is special or hugetlb. Context:
    /// may sleep.
    pub(super) fn look<'a>(
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
                    let (kind, part) = vma.alike(left, self.tile)?;
                    let outcome = match kind {
                        Pages::Device => {
                            survey.found = Some(part);
                            return Ok((survey, Some(Movable::Device(vma, part))));
                        }
                        Pages::Busy => PageOutcome::Skipped,
                        Pages::System | Pages::Held | Pages::Stay => PageOutcome::None,
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

    /// The outcome of `part` of a step towards the device, which cannot move now.
    fn outcome_to_device(self, kind: Pages, part: PageRange, survey: &mut Survey) -> PageOutcome {
        match kind {
            Pages::Device => {
                let (hull, count) = survey.resident.unwrap_or((part, 0));
                survey.resident = Some((hull.hull(&part), count + part.pages()));
                return PageOutcome::None;
            }
            // A fault does not wait for pages that are held: they are used where they are.
            Pages::Busy => survey.held = true,
            Pages::Held if self.patient => survey.held = true,
            Pages::System | Pages::Held | Pages::Stay => survey.immovable = true,
        }
        PageOutcome::Skipped
    }

    /// Calls `each` for the runs of pages in `all`, within the mapping at `addr`, of which none can move to the
    /// device: what is there already counts, too. `all` must lie within 2 MiB and have `addr`.
    ///
    /// # Errors
    ///
    /// As [`Self::look`]. Context: as there.
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
                Pages::Device | Pages::Held | Pages::Stay => {
                    Some(run.map_or(part, |run| run.hull(&part)))
                }
                Pages::System | Pages::Busy => {
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
