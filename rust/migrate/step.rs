// SPDX-License-Identifier: GPL-2.0

//! The steps of a migration: at most 2 MiB each, with room made before and more tries after.

use super::{
    survey::{Survey, Surveyor},
    work::{Attempt, Work},
    PageOutcome, Target,
};
use crate::{
    memory::{Copies, Turn},
    mirror::{
        transaction::{Identity, Request},
        Device, Inner, Mirror, Present, Tries,
    },
    mm::{
        addr::{PageRange, PMD_PAGES},
        migrate::Batch,
        notifier::Cookie,
        range_fault::AddressSpace,
    },
};
use kernel::{
    prelude::*,
    time::{delay::fsleep, Delta}, //
};

/// More tries, after a pause, of a step towards the device that left pages behind, though there was
/// memory.
const RETRIES: usize = 3;

/// More tries of a step for pages that others have taken the memory of.
const ROUNDS: usize = 3;

/// Time before another try.
const PAUSE: Delta = Delta::from_millis(1);

/// What the steps of one migration share.
pub(super) struct Step<'m, D: Device> {
    pub(super) mirror: &'m Mirror<D>,
    pub(super) space: AddressSpace<'m, Inner<D>>,
    pub(super) target: Target,
    pub(super) faultless: bool,
    /// Device memory that was used after this does not go: what a migration brings does not make
    /// room for more of it.
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

    /// Migrates the first part of `range`, within 2 MiB and one mapping: up to the first pages that
    /// can move, and these. Returns its end.
    ///
    /// Pages that cannot move are reported before anything is announced, evicted or unmapped for
    /// them.
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
            let (inner, notifier) = (self.mirror.inner(), self.mirror.notifier());
            inner.collapse(notifier, Some(piece), None);
        }
        let mut needs_room = self.target == Target::Device;
        let mut full = false;
        let (survey, attempt) = loop {
            let (survey, attempt) = self.attempt_sizes(piece, 0, needs_room, !full)?;
            match survey.found {
                // Only room was missing.
                Some((part, true)) if needs_room && attempt.is_none() => {
                    full = !self.make_room(part.pages())?;
                    needs_room = false;
                }
                _ => break (survey, attempt),
            }
        };
        self.work.immovable += survey.immovable;
        if let Some(resident) = survey.resident {
            if self.mirror.on_device(resident) < resident.pages() {
                // Another mirror brought pages, or an invalidation took their entries.
                self.install(resident, Present::Own)?;
            }
        }
        let Some((part, _)) = survey.found else {
            return Ok(survey.end);
        };
        if self.target == Target::Device {
            let first = piece.index_of(part.start()).ok_or(EINVAL)?;
            self.attempt_again(part, first, attempt.is_some(), full)?;
        }
        Ok(part.end())
    }

    /// More attempts to move what has not moved of `part`, whose outcomes are those from `first`
    /// on. `attempted`: there was one. `full`: the device's memory had no room for it.
    fn attempt_again(
        &mut self,
        part: PageRange,
        first: usize,
        attempted: bool,
        full: bool,
    ) -> Result {
        let mut again = true;
        if attempted {
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
        Ok(())
    }

    /// Attempts once more to move what has not moved of `part`, whose outcomes are those from
    /// `first` on. Returns whether another attempt may do more.
    fn attempt_rest(&mut self, part: PageRange, first: usize, small: bool) -> Result<bool> {
        let mut again = false;
        let mut rest = Some(part);
        while let Some(left) = rest {
            let index = first + part.index_of(left.start()).ok_or(EINVAL)?;
            let (survey, attempt) = self.attempt_sizes(left, index, false, small)?;
            let Some((run, _)) = survey.found else {
                break;
            };
            again |= match attempt {
                None => true,
                Some(Attempt::NoHuge) => false,
                Some(Attempt::Done { .. }) => {
                    let index = first + part.index_of(run.start()).ok_or(EINVAL)?;
                    self.count(index, run.pages(), PageOutcome::Skipped) != 0
                }
            };
            rest = left.from_address(run.end());
        }
        Ok(again)
    }

    /// [`Self::attempt`] with huge pages, and if there is none at the destination and `small` says
    /// so, with small ones.
    fn attempt_sizes(
        &mut self,
        piece: PageRange,
        first: usize,
        needs_room: bool,
        small: bool,
    ) -> Result<(Survey, Option<Attempt>)> {
        let (mut survey, attempt) = self.attempt(piece, first, needs_room, true)?;
        let (Some((part, _)), Some(Attempt::NoHuge), true) = (survey.found, &attempt, small) else {
            return Ok((survey, attempt));
        };
        let first = first + piece.index_of(part.start()).ok_or(EINVAL)?;
        let pages = self.work.pages.iter_mut().skip(first).take(part.pages());
        pages.for_each(|page| *page = PageOutcome::None);
        // Without COMPOUND the core splits a huge page before it isolates it, also when others map
        // it.
        let (again, attempt) = self.attempt(part, first, false, false)?;
        // From where the first look found some to where the second one has come.
        let end = again.found.map_or(part.end(), |(run, _)| run.end());
        survey.found = Some((PageRange::new(part.start(), end)?, true));
        Ok((survey, attempt))
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

    /// Makes room in the device's memory, before any lock is taken. Returns whether there is some;
    /// what is missing then shows in the outcome.
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

    /// One attempt, about the first pages of `piece` that can move. The outcomes of `piece` are
    /// those from `first` on. Pages that cannot move are noted, before anything is announced,
    /// evicted or unmapped for them. Without an attempt there are no pages that can move, or there
    /// is no room for them and `needs_room` asks for that.
    fn attempt(
        &mut self,
        piece: PageRange,
        first: usize,
        needs_room: bool,
        compound: bool,
    ) -> Result<(Survey, Option<Attempt>)> {
        self.work.spares.refill()?;
        let mirror = self.mirror;
        if self.target == Target::Device {
            // For the way back, where nobody can wait. Without it the device faults then, which is
            // no error.
            let _ = mirror.inner().prepare(piece);
        }
        let memory = mirror.device().memory().ok_or(ENODEV)?;
        // Nothing else has this address while the step runs.
        let name = Cookie::of(&*self.work.pages);
        let identity = match self.target {
            Target::Device => Identity::Name,
            // The kernel compares the owner with that of the pages.
            Target::System => Identity::current(memory.owner()),
        };
        let surveyor = Surveyor {
            target: self.target,
            owner: memory.owner(),
            patient: self.patient,
        };
        let mut tries = Tries::new();
        // Pages that are in the device's memory already need no announcement, so that nothing is
        // waited for.
        let mut waits = self.target == Target::System || !mirror.has_device_entry(piece.start());
        let (survey, part, result) = loop {
            let seq = match waits {
                true => Some(tries.next(mirror)?),
                false => None,
            };
            let mmap = self.space.mmap_lock_here()?;
            let pages = self.work.pages.get_mut(first..).ok_or(EINVAL)?;
            let (survey, movable) = surveyor.look(&mmap, piece, pages)?;
            let (Some((part, _)), Some(movable)) = (survey.found, movable) else {
                return Ok((survey, None));
            };
            if needs_room && !memory.has_room(part.pages()) {
                return Ok((survey, None));
            }
            let Some(seq) = seq else {
                waits = true;
                continue;
            };
            let request = Request {
                name,
                identity,
                range: part,
                faultless: self.faultless,
            };
            // The look counts as long as the lock is held.
            if let Some(announced) = mirror.announce(seq, &mut tries, request)? {
                self.work.first = first + piece.index_of(part.start()).ok_or(EINVAL)?;
                let work = &mut self.work;
                break (
                    survey,
                    part,
                    work.isolate_and_move(mirror, movable, announced, compound),
                );
            }
        };
        if self.target == Target::Device && matches!(result, Ok(Attempt::Done { lost: true })) {
            // Somebody else's event, or the split of a huge page, took the marks: ask what is there
            // now.
            self.install(part, Present::All)?;
        }
        Ok((survey, Some(result?)))
    }
}
