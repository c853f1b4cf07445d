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
        migrate::Batch,
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
            work: Work {
                batch: Batch::new()?,
                copies: Copies::new(true)?,
                spares: mirror.spares(),
                pages: KBox::new([PageOutcome::None; PMD_PAGES], GFP_KERNEL)?,
                entries: 0,
            },
        })
    }

    /// Migrates the first part of `range`, within 2 MiB and one mapping. Returns its end.
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
        let full = self.target == Target::Device && !self.make_room_for(piece)?;
        let (mut end, attempt) = self.attempt_sizes(piece, !full)?;
        let piece = PageRange::new(piece.start(), end)?;
        if matches!(attempt, Attempt::Merged) {
            return self.leave(piece);
        }
        for _ in 0..ROUNDS {
            let missing = self.missing(piece.pages());
            if self.target != Target::Device || full || missing == 0 {
                break;
            }
            // Others were faster. If there is room, it is not that.
            if self.has_room(missing) || !self.make_room(missing)? {
                break;
            }
            end = self.attempt(piece, missing == PMD_PAGES)?.0;
        }
        for tries in 0..=RETRIES {
            if self.target != Target::Device || !self.some_stay(piece.pages()) {
                break;
            }
            match tries {
                // What is there already stays, too, and without an entry of the device nothing tells.
                0 => self.install(piece, Present::Own)?,
                // Somebody may hold a page for a moment: compaction, reclaim, a look at its contents.
                _ => fsleep(PAUSE),
            }
            if !matches!(
                self.attempt_sizes(piece, !full),
                Ok((_, Attempt::Done { .. }))
            ) {
                break;
            }
        }
        Ok(end)
    }

    /// [`Self::attempt`] with huge pages, and if there is none at the destination and `small` says so, with small ones.
    fn attempt_sizes(&mut self, piece: PageRange, small: bool) -> Result<(usize, Attempt)> {
        let (end, attempt) = self.attempt(piece, true)?;
        if !small || !matches!(attempt, Attempt::NoHuge) {
            return Ok((end, attempt));
        }
        // Without COMPOUND the core splits a huge page before it isolates it, also when others map it.
        self.work.pages.fill(PageOutcome::None);
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
        Ok(piece.end())
    }

    /// As [`Self::make_room`], for the pages of `piece` that are not there yet.
    fn make_room_for(&self, piece: PageRange) -> Result<bool> {
        if self.has_room(piece.pages()) {
            return Ok(true);
        }
        self.make_room(piece.pages() - self.mirror.on_device(piece))
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

    /// Pages that had no memory at the destination.
    fn missing(&self, pages: usize) -> usize {
        let pages = self.work.pages.iter().take(pages);
        pages.filter(|page| **page == PageOutcome::NoMemory).count()
    }

    /// Whether pages were skipped, and none had another reason to stay.
    fn some_stay(&self, pages: usize) -> bool {
        let mut skipped = false;
        for page in self.work.pages.iter().take(pages) {
            match page {
                PageOutcome::Skipped => skipped = true,
                PageOutcome::NoMemory | PageOutcome::CopyFailed => return false,
                _ => {}
            }
        }
        skipped
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
        let (mmap, piece) = self.mirror.begin(&self.space, request)?;
        let work = &mut self.work;
        let result = mmap
            .vma_lookup(piece.start())
            .filter(|vma| vma.flags() & flags::READ != 0)
            .ok_or(EINVAL)
            .and_then(|vma| {
                work.isolate_and_move(self.mirror, self.target, vma, piece, compound, name)
            });
        self.mirror.end(name);
        drop(mmap);
        let lost = matches!(result, Ok((_, Attempt::Done { lost: true })));
        if lost && self.target == Target::Device {
            // Somebody else's event, or the split of a huge page, took the marks: ask what is there now.
            self.install(piece, Present::All)?;
        }
        result
    }
}
