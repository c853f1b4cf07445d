// SPDX-License-Identifier: GPL-2.0

//! The mirror's part in a migration: announce it, and keep the device reading. `switch.rs` switches
//! its entries.
//!
//! What makes it right is described in `Documentation/faultless.rst`.

use super::{transaction::Room, Announced, Device, Inner, Mirror, State};
use crate::{
    mm::{
        addr::PageRange,
        notifier::Seq,
        page::DirtyBatch,
        range_fault::AddressSpace,
        space::{fatal_signal_pending, MmapGuard},
    },
    pgtable::{Flushing, Table},
    phases::{Lap, Phase},
    space::{Request, Space, WindowUser},
};
use kernel::{
    prelude::*,
    time::{delay::fsleep, Delta}, //
};

/// Times that a step may be announced anew; each costs one collision with an invalidation.
const TRIES: usize = 1024;

/// Pauses in which faults that had to try again may go first.
const GIVE_WAY: usize = 8;

/// Time of one.
const PAUSE: Delta = Delta::from_millis(1);

impl<D: Device> Inner<D> {
    /// Makes the entries of `range` read-only, so that nothing can be written to a page while it is
    /// copied. To be flushed before the pages are isolated.
    fn protect(
        &self,
        table: &mut Table<D::Format>,
        range: PageRange,
    ) -> Option<super::invalidate::Flush<D>> {
        if self.device().test_keep_write() {
            return None;
        }
        self.change(table, None, |table, batch| {
            let mut dirty = DirtyBatch::new();
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

/// Tries to announce a step. There are [`TRIES`].
pub(crate) struct Tries {
    left: usize,
    lap: Lap,
}

impl Tries {
    /// All of them.
    pub(crate) fn new() -> Self {
        Self {
            left: TRIES,
            lap: Lap::start(),
        }
    }

    /// Begins a try, with no lock held. [`Mirror::announce`] ends it, with the mmap lock held.
    ///
    /// The first one lets faults go first that had to try again: migrations in a row would starve
    /// them, as each undoes what a fault has just collected.
    ///
    /// Waits for the invalidations that began before: they may still remove what the step is
    /// about to isolate, and would not be told that it has begun (H4).
    ///
    /// # Errors
    ///
    /// `EINTR`: killed. `EBUSY`: there is no try left.
    pub(crate) fn next<D: Device>(
        &mut self,
        mirror: &Mirror<D>,
        window: &WindowUser,
    ) -> Result<Seq> {
        if self.left == TRIES {
            for _ in 0..GIVE_WAY {
                if !mirror.inner().space.has_retries() {
                    break;
                }
                fsleep(PAUSE);
            }
        }
        self.left = self.left.checked_sub(1).ok_or(EBUSY)?;
        if fatal_signal_pending() {
            return Err(EINTR);
        }
        Ok(window.read_begin())
    }
}

impl<D: Device> Mirror<D> {
    /// Announces a step, unless an invalidation began after `seq`, from [`Tries::next`] with `window`: then the window
    /// is given back, and all that was found out since then is to be found out again. The mmap lock must have been
    /// taken after that, and be held; the range must be in one mapping, and in the window.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; those of [`Transactions::begin`](super::transaction::Transactions::begin).
    pub(crate) fn announce(
        &self,
        window: WindowUser,
        seq: Seq,
        tries: &mut Tries,
        request: Request,
    ) -> Result<Result<Announced<'_, D>, WindowUser>> {
        if window.range().intersect(&request.range) != Some(request.range) {
            return Err(EINVAL);
        }
        let room = Room::new()?;
        let Ok(mut guard) = window.lock_if_valid(self.inner(), seq) else {
            return Ok(Err(window));
        };
        tries.lap.end(Phase::Wait);
        let State {
            table,
            transactions,
            ..
        } = &mut *guard;
        let begun = transactions.begin(request, room);
        let flush = match begun {
            Ok(()) if request.faultless => self.inner().protect(table, request.range),
            _ => None,
        };
        drop(guard);
        tries.lap.end(Phase::Collect);
        if flush.is_some() {
            Flushing::end(flush, self.inner());
            tries.lap.end(Phase::Flush);
        }
        begun.map(|()| Ok(Announced::new(self, window, request.name, request.range)))
    }

    /// The window with `addr`, to be used. `ENOMEM`; `EINTR`: killed. Context: may sleep; the mmap lock must not be held.
    pub(crate) fn window(&self, space: &AddressSpace, addr: usize) -> Result<WindowUser> {
        Space::window(&self.inner().space, space, addr)
    }

    /// Announces a step and returns with the mmap lock held. The step is about the part of the
    /// range that lies in the mapping and the block of 2 MiB at its start.
    ///
    /// # Errors
    ///
    /// `EINVAL` if nothing is mapped there. `EINTR`: killed. `EFAULT`: the process is gone.
    /// `EBUSY`.
    pub(crate) fn begin<'a>(
        &self,
        space: &'a AddressSpace,
        mut request: Request,
    ) -> Result<(MmapGuard<'a>, Announced<'_, D>)> {
        let asked = request.range;
        let asked = asked.pmd_pieces().next().unwrap_or(asked);
        let mut tries = Tries::new();
        let mut window = self.window(space, asked.start())?;
        loop {
            let seq = tries.next(self, &window)?;
            let mmap = space.mmap_lock_here()?;
            let end = mmap.vma_lookup(asked.start()).ok_or(EINVAL)?.end();
            request.range = PageRange::new(asked.start(), asked.end().min(end))?;
            match self.announce(window, seq, &mut tries, request)? {
                Ok(announced) => return Ok((mmap, announced)),
                Err(again) => window = again,
            }
        }
    }
}
