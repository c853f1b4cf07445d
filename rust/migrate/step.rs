// SPDX-License-Identifier: GPL-2.0

//! The steps of a migration: at most 2 MiB each, with room made before and more tries after.

use super::{
    ahead::Room,
    overlap::Chain,
    survey::{Survey, Surveyor},
    work::{Attempt, Work},
    PageOutcome, Tally, Target,
};
use crate::{
    memory::Turn,
    mirror::{Device, Mirror, Present, Tries},
    mm::{
        addr::{PageRange, PMD_PAGES},
        notifier::Cookie,
        range_fault::AddressSpace,
    },
    queue::Stop,
    space::{Destination, Identity, Request},
    stats::Counter,
};
use kernel::{
    prelude::*,
    time::{delay::fsleep, Delta}, //
};

/// More passes, each after a pause, of a step towards the device that left pages behind, though there
/// was memory.
const RETRIES: usize = 3;

/// More tries of a step for pages that others have taken the memory of.
const ROUNDS: usize = 3;

/// Time before another pass.
const PAUSE: Delta = Delta::from_millis(1);

/// What the steps of one migration share.
pub(super) struct Step<'m, D: Device> {
    pub(super) mirror: &'m Mirror<D>,
    pub(super) space: AddressSpace,
    pub(super) target: Target,
    pub(super) faultless: bool,
    /// Device memory that was used after this does not go: what a migration brings does not make
    /// room for more of it.
    pub(super) before: Turn,
    pub(super) evict: bool,
    /// Whether it waits a little for pages that somebody holds.
    pub(super) patient: bool,
    /// Set when the caller wants the migration to end early.
    pub(super) stop: Option<Stop>,
    pub(super) work: KBox<Work<D::Format>>,
    /// Blocks that may overlap. `None` before the first one.
    pub(super) room: Option<KBox<Room<D::Format>>>,
    /// Whether they may follow the next attempt.
    pub(super) armed: bool,
    pub(super) tally: Tally<'m>,
}

impl<'m, D: Device> Step<'m, D> {
    /// For parts of the range of `tally`.
    #[inline(never)]
    pub(super) fn new(
        mirror: &'m Mirror<D>,
        target: Target,
        faultless: bool,
        evict: bool,
        stop: Option<Stop>,
        tally: Tally<'m>,
    ) -> Result<Self> {
        let room = tally.range.pages();
        let memory = mirror.device().memory().ok_or(ENODEV)?;
        Ok(Self {
            mirror,
            space: mirror.space()?,
            target,
            faultless,
            before: memory.turn(),
            evict,
            patient: true,
            work: Work::new(room.min(PMD_PAGES), mirror.spares(), stop.clone())?,
            stop,
            room: None,
            armed: false,
            tally,
        })
    }

    /// Migrates the first part of `range`, within 2 MiB and one mapping. Returns the end of the pages
    /// whose outcomes are known, and how it ended: after an error these have moved, or not, too.
    ///
    /// Pages that cannot move are reported before anything is announced, evicted or unmapped for
    /// them.
    pub(super) fn run(&mut self, range: PageRange) -> (usize, Result) {
        let pages = self.work.pages.iter_mut().take(range.pages());
        pages.for_each(|page| *page = PageOutcome::None);
        self.run_again(range)
    }

    /// As [`Self::run`], where some outcomes are known.
    pub(super) fn run_again(&mut self, range: PageRange) -> (usize, Result) {
        let mut done = range.start();
        let result = self.run_part(range, &mut done);
        (done, result)
    }

    fn run_part(&mut self, range: PageRange, done: &mut usize) -> Result {
        let piece = range.pmd_pieces().next().ok_or(EINVAL)?;
        let piece = match self.target {
            Target::Device => {
                self.mirror.check_reach(&self.space, piece)?;
                match self.mirror.movable(&self.space, piece)? {
                    (part, true) => part,
                    (part, false) => {
                        let pages = self.work.pages.iter_mut().take(part.pages());
                        pages.for_each(|page| *page = PageOutcome::Skipped);
                        *done = part.end();
                        return Ok(());
                    }
                }
            }
            Target::System => piece,
        };
        let mut again = self.pass(piece, done)?;
        let Ok(part) = PageRange::new(piece.start(), *done) else {
            return Ok(());
        };
        // A pause is shared by all held pages of the 2 MiB. One for each run would take 0.8 s.
        for _ in 0..RETRIES {
            let explained = |outcome| self.count(0, part.pages(), outcome) != 0;
            let others = [PageOutcome::NoMemory, PageOutcome::CopyFailed];
            if !again || self.is_stopped() || others.into_iter().any(explained) {
                break;
            }
            // Somebody may hold a page for a moment: compaction, reclaim, a look at its contents.
            self.mirror.stats().add(Counter::Pauses, 1);
            fsleep(PAUSE);
            again = self.pass(part, &mut part.start())?;
        }
        Ok(())
    }

    /// Attempts to move all pages of `piece` that can move now, as far as the mapping at its start
    /// goes. Sets `done` to the end of the pages whose outcomes are known. Returns whether another
    /// pass towards the device may do more.
    fn pass(&mut self, piece: PageRange, done: &mut usize) -> Result<bool> {
        let mut again = false;
        let mut rest = Some(piece);
        while let Some(left) = rest.filter(|_| !self.is_stopped()) {
            let first = piece.index_of(left.start()).ok_or(EINVAL)?;
            let (survey, more) = self.first_run(left, first)?;
            again |= more;
            let end = survey.found.map_or(survey.end, |run| run.end());
            *done = end;
            rest = PageRange::new(end, survey.end).ok();
        }
        Ok(again && self.target == Target::Device)
    }

    /// Attempts to move the first pages of `piece` that can move. The outcomes of `piece` are those
    /// from `first` on. Returns whether another pass may do more.
    fn first_run(&mut self, piece: PageRange, first: usize) -> Result<(Survey, bool)> {
        let mut needs_room = self.target == Target::Device;
        let mut full = false;
        let survey = loop {
            let (survey, attempt) = self.attempt_sizes(piece, first, needs_room, !full)?;
            match survey.found {
                // Only room was missing.
                Some(run) if needs_room && attempt.is_none() => {
                    full = !self.make_room(run.pages())?;
                    needs_room = false;
                }
                _ => break survey,
            }
        };
        if let Some((resident, pages)) = survey.resident {
            if self.mirror.on_device(resident) < pages {
                // Another mirror brought pages, or an invalidation took their entries.
                self.install(resident, Present::Own)?;
            }
        }
        let mut more = survey.held;
        if let (Some(run), Target::Device) = (survey.found, self.target) {
            let first = first + piece.index_of(run.start()).ok_or(EINVAL)?;
            for _ in 0..ROUNDS {
                let missing = self.count(first, run.pages(), PageOutcome::NoMemory);
                if full || missing == 0 {
                    break;
                }
                // Others were faster. If there is room, it is not that.
                if self.has_room(missing) || !self.make_room(missing)? {
                    break;
                }
                self.attempt_rest(run, first)?;
            }
            more |= self.count(first, run.pages(), PageOutcome::Skipped) != 0;
        }
        Ok((survey, more))
    }

    /// Attempts once more to move what has not moved of `part`, whose outcomes are those from
    /// `first` on.
    fn attempt_rest(&mut self, part: PageRange, first: usize) -> Result {
        let mut rest = Some(part);
        while let Some(left) = rest {
            let index = first + part.index_of(left.start()).ok_or(EINVAL)?;
            let (survey, _) = self.attempt_sizes(left, index, false, true)?;
            rest = survey.found.and_then(|run| left.from_address(run.end()));
        }
        Ok(())
    }

    /// Counts the outcomes of the pages from `start` to `end`, of the step that has just run.
    pub(super) fn tell(&mut self, start: usize, end: usize) {
        // Nothing is known where the first look has failed, or it was stopped before that.
        if let Ok(part) = PageRange::new(start, end) {
            let pages = self.work.pages.get(..part.pages());
            self.tally.add(part, pages.unwrap_or_default());
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(Stop::is_set)
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
        let (Some(part), Some(Attempt::NoHuge), true) = (survey.found, &attempt, small) else {
            return Ok((survey, attempt));
        };
        let first = first + piece.index_of(part.start()).ok_or(EINVAL)?;
        let pages = self.work.pages.iter_mut().skip(first).take(part.pages());
        pages.for_each(|page| *page = PageOutcome::None);
        // Without COMPOUND the core splits a huge page before it isolates it, also when others map
        // it.
        let (again, attempt) = self.attempt(part, first, false, false)?;
        // From where the first look found some to where the second one has come.
        let end = again.found.map_or(part.end(), |run| run.end());
        survey.found = Some(PageRange::new(part.start(), end)?);
        survey.held |= again.held;
        Ok((survey, attempt))
    }

    pub(super) fn install(&mut self, piece: PageRange, which: Present) -> Result {
        let inner = self.mirror.inner();
        inner.try_install_present(&self.space, piece, which, &mut self.work.slot.spares)
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
        self.work.slot.spares.refill()?;
        let mirror = self.mirror;
        if self.target == Target::Device {
            // For the way back, where nobody can wait. Without it the device faults then, which is
            // no error.
            let _ = mirror.inner().prepare(piece);
        }
        let memory = mirror.device().memory().ok_or(ENODEV)?;
        // Nothing else has this address while the step runs.
        let name = Cookie::of(&self.work.pages);
        let identity = match self.target {
            Target::Device => Identity::Name,
            // The kernel compares the owner with that of the pages.
            Target::System => Identity::current(memory.owner()),
        };
        let destination = match self.target {
            Target::System => Destination::Any,
            Target::Device if memory.is_private() => Destination::Private(memory.tile()),
            Target::Device => Destination::Coherent(memory.tile()),
        };
        let surveyor = Surveyor {
            target: self.target,
            tile: memory.tile(),
            patient: self.patient,
        };
        let mut tries = Tries::new();
        // Pages that are in the device's memory already need no announcement, so that nothing is
        // waited for.
        let mut waits = self.target == Target::System || !mirror.has_device_entry(piece.start());
        let mut window = None;
        let (survey, part, result) = loop {
            let begun = match (waits, window.take()) {
                (false, _) => None,
                (true, Some(window)) => Some(window),
                (true, None) => Some(mirror.window(&self.space, piece.start())?),
            };
            let begun = match begun {
                Some(window) => Some((tries.next(mirror, &window)?, window)),
                None => None,
            };
            let mmap = self.space.mmap_lock_here()?;
            let pages = self.work.pages.get_mut(first..).ok_or(EINVAL)?;
            let (survey, movable) = surveyor.look(&mmap, piece, pages)?;
            let (Some(part), Some(movable)) = (survey.found, movable) else {
                if survey.immovable && !self.patient {
                    mirror.learn(piece, |all, each| {
                        surveyor.immovable(&mmap, all, piece.start(), each)
                    })?;
                }
                return Ok((survey, None));
            };
            if needs_room && !memory.has_room(part.pages()) {
                return Ok((survey, None));
            }
            let Some((seq, used)) = begun else {
                waits = true;
                continue;
            };
            let request = Request {
                name,
                identity,
                range: part,
                faultless: self.faultless,
                destination,
            };
            // The look counts as long as the lock is held.
            let announced = match mirror.announce(used, seq, &mut tries, request)? {
                Ok(announced) => announced,
                Err(again) => {
                    window = Some(again);
                    continue;
                }
            };
            self.work.first = first + piece.index_of(part.start()).ok_or(EINVAL)?;
            let announced = (announced, request);
            let armed = core::mem::take(&mut self.armed) && first == 0 && part == piece;
            let work = &mut *self.work;
            let result = match &mut self.room {
                Some(room) if armed => {
                    let chain = Chain {
                        mirror,
                        memory,
                        mmap: &mmap,
                        surveyor,
                        destination,
                        faultless: self.faultless,
                        stop: self.stop.as_ref(),
                        entries: &mut work.entries,
                        tally: &mut self.tally,
                    };
                    let first = (movable, announced, compound);
                    chain.run(first, &mut work.slot, &mut work.pages[..], room)
                }
                _ => work.isolate_and_move((mirror, memory), movable, announced, compound),
            };
            break (survey, part, result);
        };
        if self.target == Target::Device && matches!(result, Ok(Attempt::Done { lost: true })) {
            // Somebody else's event, or the split of a huge page, took the marks: ask what is there
            // now.
            self.install(part, Present::All)?;
        }
        Ok((survey, Some(result?)))
    }
}
