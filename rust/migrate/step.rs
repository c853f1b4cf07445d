// SPDX-License-Identifier: GPL-2.0

//! The steps of a migration: at most 2 MiB each, with room made before and more tries after.

use super::{
    work::{Attempt, Work},
    PageOutcome, Target,
};
use crate::{
    memory::{Copies, Turn},
    mirror::{
        transaction::{Identity, Request},
        Device, Inner, Mirror, Present,
    },
    mm::{
        addr::{PageRange, PMD_PAGES},
        migrate::{Batch, Pages},
        notifier::Cookie,
        range_fault::AddressSpace,
    },
};
use kernel::{
    mm::virt::flags,
    prelude::*,
    time::{delay::fsleep, Delta}, //
};

/// More tries, after a pause, of a step towards the device that left pages behind, though there was memory.
const RETRIES: usize = 3;

/// More tries of a step for pages that others have taken the memory of.
const ROUNDS: usize = 3;

/// Time before another try.
const PAUSE: Delta = Delta::from_millis(1);

/// What a look at the CPU's page table has found.
struct Survey {
    /// Its end, within one mapping.
    end: usize,
    /// Where pages are in the device's memory already, if the step is one towards it.
    resident: Option<PageRange>,
    /// Pages that cannot move.
    immovable: usize,
    /// The first pages that can move, or, if the second says no, may be able to soon.
    found: Option<(PageRange, bool)>,
}

/// What the steps of one migration share.
pub(super) struct Step<'m, D: Device> {
    pub(super) mirror: &'m Mirror<D>,
    pub(super) space: AddressSpace<'m, Inner<D>>,
    pub(super) target: Target,
    pub(super) faultless: bool,
    /// Device memory that was used after this does not go: what a migration brings does not make room for
    /// more of it.
    pub(super) before: Turn,
    pub(super) evict: bool,
    /// Whether it waits a little for pages that somebody holds.
    pub(super) patient: bool,
    pub(super) work: Work<D::Format>,
}

impl<'m, D: Device> Step<'m, D> {
    pub(super) fn new(
        mirror: &'m Mirror<D>,
        target: Target,
        faultless: bool,
        evict: bool,
    ) -> Result<Self> {
        let memory = mirror.device().memory().ok_or(ENODEV)?;
        Ok(Self {
            mirror,
            space: mirror.space()?,
            target,
            faultless,
            before: memory.turn(),
            evict,
            patient: true,
            work: Work {
                batch: Batch::new()?,
                copies: Copies::new(true)?,
                spares: mirror.spares(),
                pages: KBox::new([PageOutcome::None; PMD_PAGES], GFP_KERNEL)?,
                first: 0,
                immovable: 0,
                entries: 0,
            },
        })
    }

    /// Migrates the first part of `range`, within 2 MiB and one mapping: up to the first pages that can move, and these.
    /// Returns its end.
    ///
    /// Pages that cannot move are reported before anything is announced, evicted or unmapped for them.
    pub(super) fn run(&mut self, range: PageRange) -> Result<usize> {
        let piece = range.pmd_pieces().next().ok_or(EINVAL)?;
        self.work.pages.fill(PageOutcome::None);
        let piece = match self.target {
            Target::Device => match self.mirror.movable(&self.space, piece)? {
                (part, true) => part,
                (part, false) => return self.leave(part),
            },
            Target::System => piece,
        };
        if self.target == Target::Device {
            // What is to move there is not copied there.
            let (inner, notifier) = (self.mirror.inner(), &self.mirror.notifier);
            inner.collapse(notifier, Some(piece), None);
        }
        let survey = self.survey(piece, 0)?;
        self.work.immovable += survey.immovable;
        if let Some(resident) = survey.resident {
            if self.mirror.on_device(resident) < resident.pages() {
                // Another mirror brought pages, or an invalidation took their entries.
                self.install(resident, Present::Own)?;
            }
        }
        match survey.found {
            None => Ok(survey.end),
            Some((part, moves)) => {
                let first = piece.index_of(part.start()).ok_or(EINVAL)?;
                self.run_part(part, first, moves)
            }
        }
    }

    /// Migrates `part`, pages that can move, or, if `moves` says no, may be able to soon. Their outcomes are those from
    /// `first` on. Returns the end of what it was about.
    fn run_part(&mut self, part: PageRange, first: usize, moves: bool) -> Result<usize> {
        let mut part = part;
        let mut again = true;
        let mut full = false;
        if moves {
            full = self.target == Target::Device && !self.make_room_for(part)?;
            self.work.first = first;
            let (end, _) = self.attempt_sizes(part, !full)?;
            part = PageRange::new(part.start(), end)?;
            if self.target != Target::Device {
                return Ok(end);
            }
            for _ in 0..ROUNDS {
                let missing = self.count(first, part.pages(), PageOutcome::NoMemory);
                if full || missing == 0 {
                    break;
                }
                // Others were faster. If there is room, it is not that.
                if self.has_room(missing) || !self.make_room(missing)? {
                    break;
                }
                self.attempt_rest(part, first, true)?;
            }
            again = self.count(first, part.pages(), PageOutcome::Skipped) != 0;
        }
        let others = [PageOutcome::NoMemory, PageOutcome::CopyFailed];
        for _ in 0..RETRIES {
            let explained = |outcome| self.count(first, part.pages(), outcome) != 0;
            if !again || others.into_iter().any(explained) {
                break;
            }
            // Somebody may hold a page for a moment: compaction, reclaim, a look at its contents.
            fsleep(PAUSE);
            again = self.attempt_rest(part, first, !full)?;
        }
        Ok(part.end())
    }

    /// Attempts once more to move what has not moved of `part`, whose outcomes are those from `first` on. Returns whether
    /// another attempt may do more.
    fn attempt_rest(&mut self, part: PageRange, first: usize, small: bool) -> Result<bool> {
        let mut again = false;
        let mut rest = Some(part);
        while let Some(left) = rest {
            let at = |addr| part.index_of(addr).map(|index| first + index).ok_or(EINVAL);
            let Some((run, moves)) = self.survey(left, at(left.start())?)?.found else {
                break;
            };
            let mut end = run.end();
            if moves {
                let index = at(run.start())?;
                self.work.first = index;
                let attempt;
                (end, attempt) = self.attempt_sizes(run, small)?;
                let pages = PageRange::new(run.start(), end)?.pages();
                again |= matches!(attempt, Attempt::Done { .. })
                    && self.count(index, pages, PageOutcome::Skipped) != 0;
            } else {
                again = true;
            }
            rest = left.from_address(end);
        }
        Ok(again)
    }

    /// Looks for the first pages of `piece` that can move, and notes the outcome of those before them, from `first` on.
    fn survey(&mut self, piece: PageRange, first: usize) -> Result<Survey> {
        let memory = self.mirror.device().memory().ok_or(ENODEV)?;
        let mmap = self.space.mmap_lock()?;
        let vma = mmap
            .vma_lookup(piece.start())
            .filter(|vma| vma.flags() & flags::READ != 0)
            .ok_or(EINVAL)?;
        let piece = PageRange::new(piece.start(), piece.end().min(vma.end()))?;
        let to_device = self.target == Target::Device;
        let mut survey = Survey {
            end: piece.end(),
            resident: None,
            immovable: 0,
            found: None,
        };
        let mut rest = Some(piece);
        while let Some(left) = rest {
            let (kind, part) = vma.alike(left, memory.owner(), to_device)?;
            let (outcome, moves) = match (kind, to_device) {
                (Pages::System, true) | (Pages::Device, false) => {
                    survey.found = Some((part, true));
                    break;
                }
                (Pages::Device, true) => {
                    let resident = survey.resident.map_or(part, |all| all.hull(&part));
                    survey.resident = Some(resident);
                    (PageOutcome::None, None)
                }
                (Pages::Busy, true) => (PageOutcome::Skipped, Some(false)),
                // A fault does not wait for it: the pages are used where they are.
                (Pages::Held, true) if self.patient => (PageOutcome::Skipped, Some(false)),
                (Pages::Held | Pages::Stay, true) => {
                    survey.immovable += part.pages();
                    (PageOutcome::Skipped, None)
                }
                (Pages::Busy, false) => (PageOutcome::Skipped, None),
                (Pages::System | Pages::Held | Pages::Stay, false) => (PageOutcome::None, None),
            };
            let index = first + piece.index_of(part.start()).ok_or(EINVAL)?;
            let pages = self.work.pages.iter_mut().skip(index).take(part.pages());
            for page in pages.filter(|page| page.may_still_move()) {
                *page = outcome;
            }
            survey.found = moves.map(|moves| (part, moves));
            if survey.found.is_some() {
                break;
            }
            rest = left.from_address(part.end());
        }
        Ok(survey)
    }

    /// [`Self::attempt`] with huge pages, and if there is none at the destination and `small` says so, with small ones.
    fn attempt_sizes(&mut self, piece: PageRange, small: bool) -> Result<(usize, Attempt)> {
        let (end, attempt) = self.attempt(piece, true)?;
        if !small || !matches!(attempt, Attempt::NoHuge) {
            return Ok((end, attempt));
        }
        // Without COMPOUND the core splits a huge page before it isolates it, also when others map it.
        let first = self.work.first;
        let pages = self.work.pages.iter_mut().skip(first).take(piece.pages());
        pages.for_each(|page| *page = PageOutcome::None);
        self.attempt(PageRange::new(piece.start(), end)?, false)
    }

    fn install(&mut self, piece: PageRange, which: Present) -> Result {
        let inner = self.mirror.inner();
        inner.try_install_present(&self.space, piece, which, &mut self.work.spares)
    }

    /// Nothing of `piece` may move.
    fn leave(&mut self, piece: PageRange) -> Result<usize> {
        for page in self.work.pages.iter_mut().take(piece.pages()) {
            *page = PageOutcome::Skipped;
        }
        self.work.immovable += piece.pages();
        Ok(piece.end())
    }

    /// As [`Self::make_room`], for `piece`.
    fn make_room_for(&self, piece: PageRange) -> Result<bool> {
        Ok(self.has_room(piece.pages()) || self.make_room(piece.pages())?)
    }

    /// Makes room in the device's memory, before any lock is taken. Returns whether there is some; what
    /// is missing then shows in the outcome.
    fn make_room(&self, pages: usize) -> Result<bool> {
        let Some(memory) = self.mirror.device().memory() else {
            return Ok(false);
        };
        match memory.grow(pages) {
            Err(error) if error != ENOMEM => return Err(error),
            _ => {}
        }
        if !self.evict {
            return Ok(memory.has_any());
        }
        match memory.make_room(pages, self.before) {
            Err(error) if error != ENOMEM => Err(error),
            _ => Ok(memory.has_any()),
        }
    }

    /// Whether so many pages are free.
    fn has_room(&self, pages: usize) -> bool {
        let memory = self.mirror.device().memory();
        memory.is_some_and(|memory| memory.has_room(pages))
    }

    /// How many of `pages` pages from `first` on have that outcome.
    fn count(&self, first: usize, pages: usize, outcome: PageOutcome) -> usize {
        let pages = self.work.pages.iter().skip(first).take(pages);
        pages.filter(|page| **page == outcome).count()
    }

    /// One attempt. Returns the end of what it was about.
    fn attempt(&mut self, piece: PageRange, compound: bool) -> Result<(usize, Attempt)> {
        self.work.spares.refill()?;
        if self.target == Target::Device {
            // For the way back, where nobody can wait. Without it the device faults then, which is no error.
            let _ = self.mirror.inner().prepare(piece);
        }
        let memory = self.mirror.device().memory().ok_or(ENODEV)?;
        // Nothing else has this address while the step runs.
        let name = Cookie::of(&*self.work.pages);
        let request = Request {
            name,
            identity: match self.target {
                Target::Device => Identity::Name,
                // The kernel compares the owner with that of the pages.
                Target::System => Identity::current(memory.owner()),
            },
            range: piece,
            faultless: self.faultless,
        };
        let (mmap, announced) = self.mirror.begin(&self.space, request)?;
        let piece = announced.range();
        let work = &mut self.work;
        let result = mmap
            .vma_lookup(piece.start())
            .filter(|vma| vma.flags() & flags::READ != 0)
            .ok_or(EINVAL)
            .and_then(|vma| {
                work.isolate_and_move(self.mirror, self.target, vma, announced, compound)
            });
        drop(mmap);
        let lost = matches!(result, Ok((_, Attempt::Done { lost: true })));
        if lost && self.target == Target::Device {
            // Somebody else's event, or the split of a huge page, took the marks: ask what is there now.
            self.install(piece, Present::All)?;
        }
        result
    }
}
