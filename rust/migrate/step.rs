// SPDX-License-Identifier: GPL-2.0

//! Steps of a migration. Each handles at most a block. It first evicts if device memory is short,
//! and retries pages with temporary references.

use super::{
    ahead::AheadBuffers,
    attempt::{
        AttemptResult,
        MigrateBuffers, //
    },
    overlap::BlockChain,
    survey::{
        Survey,
        Surveyor, //
    },
    OutcomeTally,
    PageOutcome,
    Target, //
};
use crate::{
    debug::stats::Counter,
    kernel::{
        cancel::CancelToken,
        identity::MigrationId, //
    },
    memory::LruStamp,
    mirror::{
        Attempt,
        Device,
        InstallFilter,
        Mirror, //
    },
    mm::{
        addr::{
            PageRange,
            PMD_PAGES, //
        },
        range_fault::AddressSpace, //
    },
    space::{
        Destination,
        EventMatch,
        MigrationDesc, //
    }, //
};
use kernel::{
    prelude::*,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

/// Maximum number of further passes of a step to the device, each after a pause. Made if pages were
/// left behind although there was memory.
const STEP_MAX_RETRIES: usize = 3;

/// Maximum number of retries of a step for pages whose memory was taken by concurrent allocations.
const STEP_MAX_ALLOC_RETRIES: usize = 3;

/// Pause before a further pass.
const STEP_RETRY_INTERVAL: Delta = Delta::from_millis(1);

/// State that the steps of one migration share.
pub(super) struct MigrateStep<'m, D: Device> {
    pub(super) mirror: &'m Mirror<D>,
    pub(super) space: AddressSpace,
    pub(super) target: Target,
    pub(super) faultless: bool,
    /// Turn when the migration began. Device memory that was used later is not evicted, so that a
    /// migration does not evict pages that it has brought itself.
    pub(super) before: LruStamp,
    pub(super) evict: bool,
    /// Whether the step retries after a pause if pages have extra references.
    pub(super) patient: bool,
    /// Set when the caller cancels the migration.
    pub(super) stop: Option<CancelToken>,
    pub(super) work: KBox<MigrateBuffers<D::Format>>,
    /// Buffers of blocks that may overlap. `None` before the first one.
    pub(super) ahead_buffers: Option<KBox<AheadBuffers<D::Format>>>,
    /// Whether blocks may overlap in the next attempt.
    pub(super) armed: bool,
    pub(super) tally: OutcomeTally<'m>,
}

impl<'m, D: Device> MigrateStep<'m, D> {
    /// Prepares steps for parts of the range of `tally`.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the device has no memory.
    /// - `ENOMEM`
    /// - Those of [`Mirror::space`].
    #[inline(never)]
    pub(super) fn new(
        mirror: &'m Mirror<D>,
        target: Target,
        faultless: bool,
        evict: bool,
        stop: Option<CancelToken>,
        tally: OutcomeTally<'m>,
    ) -> Result<Self> {
        let pages = tally.range.pages();
        let memory = mirror.device().memory().ok_or(ENODEV)?;
        Ok(Self {
            mirror,
            space: mirror.space()?,
            target,
            faultless,
            before: memory.turn(),
            evict,
            patient: true,
            work: MigrateBuffers::new(pages.min(PMD_PAGES), mirror.prealloc(), stop.clone())?,
            stop,
            ahead_buffers: None,
            armed: false,
            tally,
        })
    }

    /// Migrates the first part of `range`, which ends with its block or its VMA. Returns the end of
    /// the pages whose outcomes were recorded, and the result. Outcomes before that end are valid
    /// even if the result is an error.
    ///
    /// Pages that cannot move are reported before anything is announced, evicted or unmapped for
    /// them.
    pub(super) fn run(&mut self, range: PageRange) -> (usize, Result) {
        let pages = self.work.pages.iter_mut().take(range.pages());
        pages.for_each(|page| *page = PageOutcome::None);
        self.run_again(range)
    }

    /// Like [`Self::run`], but keeps the outcomes that are known already.
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
        // All pages of the block that have extra references share the pauses. Pauses for each run
        // of pages would add up to 0.8 s, or 3 s with pages of 16 KiB.
        for _ in 0..STEP_MAX_RETRIES {
            let explained = |outcome| self.count(0, part.pages(), outcome) != 0;
            let others = [PageOutcome::NoMemory, PageOutcome::CopyFailed];
            if !again || self.is_stopped() || others.into_iter().any(explained) {
                break;
            }
            // References can be temporary: by compaction, reclaim, or a reader of the page's
            // contents.
            self.mirror.stats().add(Counter::Pauses, 1);
            fsleep(STEP_RETRY_INTERVAL);
            again = self.pass(part, &mut part.start())?;
        }
        Ok(())
    }

    /// Attempts to move all movable pages of `piece`, up to the end of the VMA at its start. Sets
    /// `done` to the end of the pages whose outcomes are known. Returns whether another pass to the
    /// device may move more.
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

    /// Attempts to move the first run of movable pages of `piece`. The outcomes of `piece` begin at
    /// `first`. Returns whether another pass may move more.
    fn first_run(&mut self, piece: PageRange, first: usize) -> Result<(Survey, bool)> {
        let mut needs_room = self.target == Target::Device;
        let mut full = false;
        let survey = loop {
            let (survey, attempt) = self.attempt_sizes(piece, first, needs_room, !full)?;
            match survey.found {
                // There were movable pages, but not enough free device memory.
                Some(run) if needs_room && attempt.is_none() => {
                    full = !self.make_room(run.pages())?;
                    needs_room = false;
                }
                _ => break survey,
            }
        };
        if let Some((resident, pages)) = survey.resident {
            if self.mirror.on_device(resident) < pages {
                // Another mirror migrated the pages, or an invalidation removed their entries.
                self.install(resident, InstallFilter::Own)?;
            }
        }
        let mut more = survey.held;
        if let (Some(run), Target::Device) = (survey.found, self.target) {
            let first = first + piece.index_of(run.start()).ok_or(EINVAL)?;
            for _ in 0..STEP_MAX_ALLOC_RETRIES {
                let missing = self.count(first, run.pages(), PageOutcome::NoMemory);
                if full || missing == 0 {
                    break;
                }
                // Concurrent allocations took the memory. If there is room now, there was another
                // cause.
                if self.has_room(missing) || !self.make_room(missing)? {
                    break;
                }
                self.attempt_rest(run, first)?;
            }
            more |= self.count(first, run.pages(), PageOutcome::Skipped) != 0;
        }
        Ok((survey, more))
    }

    /// Attempts again to move the pages of `part` that have not moved. The outcomes of `part` begin
    /// at `first`.
    fn attempt_rest(&mut self, part: PageRange, first: usize) -> Result {
        let mut rest = Some(part);
        while let Some(left) = rest {
            let index = first + part.index_of(left.start()).ok_or(EINVAL)?;
            let (survey, _) = self.attempt_sizes(left, index, false, true)?;
            rest = survey.found.and_then(|run| left.from_address(run.end()));
        }
        Ok(())
    }

    /// Adds the outcomes of the pages from `start` to `end`, of the last step, to the tally.
    pub(super) fn add_outcomes(&mut self, start: usize, end: usize) {
        // There are no outcomes if the survey failed, or the step was cancelled before it.
        if let Ok(part) = PageRange::new(start, end) {
            let pages = self.work.pages.get(..part.pages());
            self.tally.add(part, pages.unwrap_or_default());
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(CancelToken::is_set)
    }

    /// Calls [`Self::attempt`] with huge pages. If there is no huge page at the destination and
    /// `small` is set, tries again with small ones.
    fn attempt_sizes(
        &mut self,
        piece: PageRange,
        first: usize,
        needs_room: bool,
        small: bool,
    ) -> Result<(Survey, Option<AttemptResult>)> {
        let (mut survey, attempt) = self.attempt(piece, first, needs_room, true)?;
        let (Some(part), Some(AttemptResult::NoHuge), true) = (survey.found, &attempt, small)
        else {
            return Ok((survey, attempt));
        };
        let first = first + piece.index_of(part.start()).ok_or(EINVAL)?;
        let pages = self.work.pages.iter_mut().skip(first).take(part.pages());
        pages.for_each(|page| *page = PageOutcome::None);
        // Without COMPOUND, the core splits a huge page before it isolates it, even if other
        // processes map it.
        let (again, attempt) = self.attempt(part, first, false, false)?;
        // From the start of the first survey's run to the end of the second survey's.
        let end = again.found.map_or(part.end(), |run| run.end());
        survey.found = Some(PageRange::new(part.start(), end)?);
        survey.held |= again.held;
        Ok((survey, attempt))
    }

    pub(super) fn install(&mut self, piece: PageRange, which: InstallFilter) -> Result {
        let inner = self.mirror.inner();
        inner.try_install_present(&self.space, piece, which, &mut self.work.slot.prealloc)
    }

    /// Adds chunks or evicts, so that `pages` pages can be allocated. Called before any lock is
    /// taken. Returns whether the device has memory. Pages that get none have the outcome
    /// [`PageOutcome::NoMemory`].
    fn make_room(&self, pages: usize) -> Result<bool> {
        let Some(memory) = self.mirror.device().memory() else {
            return Ok(false);
        };
        match memory.add_chunks(pages) {
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

    /// Returns whether `pages` pages are free.
    fn has_room(&self, pages: usize) -> bool {
        let memory = self.mirror.device().memory();
        memory.is_some_and(|memory| memory.has_room(pages))
    }

    /// Returns how many of `pages` pages from `first` on have the given outcome.
    fn count(&self, first: usize, pages: usize, outcome: PageOutcome) -> usize {
        let pages = self.work.pages.iter().skip(first).take(pages);
        pages.filter(|page| **page == outcome).count()
    }

    /// Attempts to move the first run of movable pages of `piece`. The outcomes of `piece` begin at
    /// `first`.
    ///
    /// Outcomes of pages that cannot move are recorded before anything is announced, evicted or
    /// unmapped for them. Returns no [`AttemptResult`] if no page is movable, or if `needs_room` is
    /// set and the device memory has not enough free pages for the run.
    fn attempt(
        &mut self,
        piece: PageRange,
        first: usize,
        needs_room: bool,
        compound: bool,
    ) -> Result<(Survey, Option<AttemptResult>)> {
        self.work.slot.prealloc.refill()?;
        let mirror = self.mirror;
        if self.target == Target::Device {
            // Preallocate for the migration back, which cannot wait for memory. If this fails, the
            // device will fault then, which is not an error.
            let _ = mirror.inner().prepare(piece);
        }
        let memory = mirror.device().memory().ok_or(ENODEV)?;
        // Unique: this address is not reused while the step runs.
        let name = MigrationId::of(&self.work.pages);
        let identity = match self.target {
            Target::Device => EventMatch::Name,
            // On the way back, the core compares the owner of the event with the owner of the
            // pages.
            Target::System => EventMatch::current(memory.owner()),
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
        // If the pages are in device memory already, nothing is announced. So do not wait for
        // invalidations before the survey.
        let waits = self.target == Target::System || !mirror.has_device_entry(piece.start());
        let start = piece.start();
        let run = mirror.announce_with_retries(&self.space, start, waits, |mmap, ticket| {
            let pages = self.work.pages.get_mut(first..).ok_or(EINVAL)?;
            let (survey, movable) = surveyor.survey(&mmap, piece, pages)?;
            let (Some(part), Some(movable)) = (survey.found, movable) else {
                if survey.immovable && !self.patient {
                    mirror.learn(piece, |all, each| {
                        surveyor.immovable(&mmap, all, piece.start(), each)
                    })?;
                }
                return Ok(Attempt::Done((survey, None)));
            };
            if needs_room && !memory.has_room(part.pages()) {
                return Ok(Attempt::Done((survey, None)));
            }
            let request = MigrationDesc {
                name,
                identity,
                range: part,
                faultless: self.faultless,
                destination,
            };
            let Some(ticket) = ticket else {
                return Ok(Attempt::Again);
            };
            // The survey is valid as long as the mmap lock is held.
            let Some(announced) = ticket.announce(mirror, request)? else {
                return Ok(Attempt::Again);
            };
            self.work.first = first + piece.index_of(part.start()).ok_or(EINVAL)?;
            let armed = core::mem::take(&mut self.armed) && first == 0 && part == piece;
            let work = &mut *self.work;
            let result = match &mut self.ahead_buffers {
                Some(buffers) if armed => {
                    let chain = BlockChain {
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
                    chain.run(first, &mut work.slot, &mut work.pages[..], buffers)
                }
                _ => work.isolate_and_move(memory, movable, announced, compound),
            };
            Ok(Attempt::Done((survey, Some((part, result)))))
        })?;
        let (survey, Some((part, result))) = run else {
            return Ok((run.0, None));
        };
        if self.target == Target::Device && matches!(result, Ok(AttemptResult::Done { lost: true }))
        {
            // A foreign event, or the split of a huge page, cleared marks. Map the pages at their
            // current places.
            self.install(part, InstallFilter::All)?;
        }
        Ok((survey, Some(result?)))
    }
}
