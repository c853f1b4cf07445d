// SPDX-License-Identifier: GPL-2.0

//! Announcement of a migration to a mirror, which makes the entries of its pages read-only.
//! `commit.rs` replaces the entries after the copy.
//!
//! `Documentation/faultless.rst` describes why this is correct.

use super::{
    in_flight::InFlightNode,
    Announced,
    Device,
    Mirror,
    MirrorShared,
    MirrorState, //
};
use crate::{
    debug::timing::{
        Phase,
        Stopwatch, //
    },
    mm::{
        addr::PageRange,
        folio::DirtyBatch,
        notifier::Seq,
        range_fault::AddressSpace,
        vma::{
            fatal_signal_pending,
            MmapGuard, //
        }, //
    },
    pgtable::{
        Flushing,
        Table, //
    },
    space::{
        MigrationDesc,
        Space,
        WindowUser, //
    }, //
};
use kernel::{
    prelude::*,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

/// Maximum number of announcements of a step. Each retry is caused by a concurrent invalidation.
const ANNOUNCE_MAX_TRIES: usize = 1024;

/// Maximum number of pauses before a step, for faults that had to retry.
const ANNOUNCE_MAX_PAUSES: usize = 8;

/// Duration of a pause.
const ANNOUNCE_PAUSE: Delta = Delta::from_millis(1);

impl<D: Device> MirrorShared<D> {
    /// Returns whether a test makes migrations leave entries writable.
    pub(super) fn keeps_write(&self) -> bool {
        let memory = self.device().memory();
        memory.is_some_and(|memory| memory.faults().keeps_write())
    }

    /// Makes the entries of `range` read-only, so that no page is written while it is copied. The
    /// caller must complete the flush before the pages are isolated.
    fn protect(
        &self,
        table: &mut Table<D::Format>,
        range: PageRange,
    ) -> Option<super::flushes::Flush<D>> {
        if self.keeps_write() {
            return None;
        }
        self.change(table, None, |table, batch| {
            let mut dirty = DirtyBatch::empty();
            table.for_each(range, batch, |span, entry| {
                if entry.is_writable() {
                    Self::retire(&mut dirty, span.pages(), *entry);
                    *entry = entry.write_protected();
                }
            });
        })
        .1
    }
}

/// Remaining attempts to announce a step.
pub(crate) struct AnnounceTries {
    left: usize,
    stopwatch: Stopwatch,
}

impl AnnounceTries {
    /// Starts with [`ANNOUNCE_MAX_TRIES`] attempts.
    pub(crate) fn new() -> Self {
        Self {
            left: ANNOUNCE_MAX_TRIES,
            stopwatch: Stopwatch::start(),
        }
    }

    /// Begins an attempt. [`Mirror::announce`] ends it.
    ///
    /// The first attempt pauses while faults have to retry. Otherwise consecutive migrations could
    /// starve faults, because each migration invalidates the result of a fault's collection.
    ///
    /// Waits for invalidations that began earlier. They may still remove entries that the step is
    /// about to isolate, and would not notice that the step has begun (H4 in
    /// `Documentation/faultless.rst`).
    ///
    /// # Errors
    ///
    /// - `EINTR` if a fatal signal is pending.
    /// - `EBUSY` if no attempt is left.
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    pub(crate) fn next<D: Device>(
        &mut self,
        mirror: &Mirror<D>,
        window: &WindowUser,
    ) -> Result<Seq> {
        if self.left == ANNOUNCE_MAX_TRIES {
            for _ in 0..ANNOUNCE_MAX_PAUSES {
                if !mirror.inner().space.has_retries() {
                    break;
                }
                fsleep(ANNOUNCE_PAUSE);
            }
        }
        self.left = self.left.checked_sub(1).ok_or(EBUSY)?;
        if fatal_signal_pending() {
            return Err(EINTR);
        }
        window.read_begin()
    }
}

/// Permission to announce a step, in one attempt of [`Mirror::announce_with_retries`].
pub(crate) struct Ticket<'t> {
    // Owned by the caller, which drops it after the attempt has released the mmap lock.
    window: &'t mut Option<WindowUser>,
    seq: Seq,
    tries: &'t mut AnnounceTries,
}

impl Ticket<'_> {
    /// Announces a step as [`Mirror::announce`]. Returns `None` if an invalidation has begun. The
    /// attempt must then return [`Attempt::Again`].
    pub(crate) fn announce<D: Device>(
        self,
        mirror: &Mirror<D>,
        request: MigrationDesc,
    ) -> Result<Option<Announced<'_, D>>> {
        let window = self.window.take().ok_or(EINVAL)?;
        match mirror.announce(window, self.seq, self.tries, request)? {
            Ok(announced) => Ok(Some(announced)),
            Err(window) => {
                *self.window = Some(window);
                Ok(None)
            }
        }
    }
}

/// Result of an attempt that did not fail.
pub(crate) enum Attempt<T> {
    /// The step has ended, or no page was announced.
    Done(T),
    /// There are pages to announce, but no ticket, or an invalidation has begun since its sequence
    /// was read.
    Again,
}

impl<D: Device> Mirror<D> {
    /// Announces a step, unless an invalidation began after `seq`. `seq` was returned by
    /// [`AnnounceTries::next`] for `window`. If one did, returns the window, and the caller must
    /// repeat its survey.
    ///
    /// The range of `request` must lie in one VMA and in the window.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the range is not in the window.
    /// - `ENOMEM`
    /// - Those of [`InFlightMigrations::begin`](super::in_flight::InFlightMigrations::begin).
    ///
    /// # Context
    ///
    /// May sleep. The mmap lock must be held, and must have been taken after
    /// [`AnnounceTries::next`].
    pub(crate) fn announce(
        &self,
        window: WindowUser,
        seq: Seq,
        tries: &mut AnnounceTries,
        request: MigrationDesc,
    ) -> Result<Result<Announced<'_, D>, WindowUser>> {
        if window.range().intersect(&request.range) != Some(request.range) {
            return Err(EINVAL);
        }
        let node = InFlightNode::new()?;
        let Ok(mut guard) = window.lock_if_valid(self.inner(), seq) else {
            return Ok(Err(window));
        };
        tries.stopwatch.end(Phase::Wait);
        let MirrorState {
            table, in_flight, ..
        } = &mut *guard;
        let begun = in_flight.begin(request, node);
        let flush = match begun {
            Ok(()) if request.faultless => self.inner().protect(table, request.range),
            _ => None,
        };
        drop(guard);
        tries.stopwatch.end(Phase::Collect);
        if flush.is_some() {
            Flushing::end(flush, self.inner());
            tries.stopwatch.end(Phase::Flush);
        }
        begun.map(|()| Ok(Announced::new(self, window, request)))
    }

    /// Returns a use of the window that contains `addr`.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    /// - `EINTR` if a fatal signal is pending.
    ///
    /// # Context
    ///
    /// May sleep. The mmap lock must not be held.
    pub(crate) fn window(&self, space: &AddressSpace, addr: usize) -> Result<WindowUser> {
        Space::window(&self.inner().space, space, addr)
    }

    /// Calls `attempt` with the mmap lock held until it returns a result. It finds the pages of the
    /// step, announces them with its [`Ticket`], and migrates them.
    ///
    /// An attempt has a ticket after the wait of [`AnnounceTries::next`], in the window that
    /// contains `addr`. If `waits` is not set, the first attempt does not wait and has none.
    ///
    /// # Errors
    ///
    /// - `EINTR` if a fatal signal is pending.
    /// - `EBUSY` if invalidations made too many attempts fail.
    /// - `EFAULT` if the address space was torn down.
    /// - Those of [`Self::window`] and of `attempt`.
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    #[inline]
    pub(crate) fn announce_with_retries<'s, T>(
        &self,
        space: &'s AddressSpace,
        addr: usize,
        mut waits: bool,
        mut attempt: impl FnMut(MmapGuard<'s>, Option<Ticket<'_>>) -> Result<Attempt<T>>,
    ) -> Result<T> {
        let mut tries = AnnounceTries::new();
        let mut window = None;
        loop {
            if waits && window.is_none() {
                window = Some(self.window(space, addr)?);
            }
            let seq = match &window {
                Some(window) => Some(tries.next(self, window)?),
                None => None,
            };
            let ticket = seq.map(|seq| Ticket {
                window: &mut window,
                seq,
                tries: &mut tries,
            });
            if let Attempt::Done(result) = attempt(space.mmap_lock_here()?, ticket)? {
                return Ok(result);
            }
            waits = true;
        }
    }

    /// Announces a step and returns with the mmap lock held. The step covers the first part of the
    /// range, which ends with its block or its VMA.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if nothing is mapped there.
    /// - Those of [`Self::announce_with_retries`].
    pub(crate) fn begin<'a>(
        &self,
        space: &'a AddressSpace,
        mut request: MigrationDesc,
    ) -> Result<(MmapGuard<'a>, Announced<'_, D>)> {
        let requested = request.range;
        let requested = requested.pmd_pieces().next().unwrap_or(requested);
        let start = requested.start();
        self.announce_with_retries(space, start, true, |mmap, ticket| {
            let end = mmap.vma_lookup(start).ok_or(EINVAL)?.end();
            request.range = PageRange::new(start, requested.end().min(end))?;
            let announced = match ticket {
                Some(ticket) => ticket.announce(self, request)?,
                None => None,
            };
            Ok(match announced {
                Some(announced) => Attempt::Done((mmap, announced)),
                None => Attempt::Again,
            })
        })
    }
}
