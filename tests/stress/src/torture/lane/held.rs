// SPDX-License-Identifier: GPL-2.0
//! Memory that a lane keeps locked for a device while other operations follow. These operations may
//! write the locked range but not migrate it. Operations that remove its mapping unlock it first.

use super::{
    fail,
    Effect,
    Fail,
    Lane, //
};
use crate::torture::op::Span;
use hmm::engine::{
    checksum,
    Way, //
};
use hmm::{
    Command,
    EngineOp,
    Errno,
    Locked,
    PageState,
    PAGE_SIZE, //
};
use std::sync::atomic::Ordering::SeqCst;

/// Maximum number of locks of a lane.
const MOST: usize = 4;
/// Maximum number of pages of a lock.
const PAGES: usize = 32;

/// Memory that a lock covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Memory of the lane.
    Own(Span),
    /// Common pages, starting at `page`.
    Common { wide: bool, page: usize },
}

/// A lock.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// Device that the range is locked for.
    pub dev: usize,
    place: Place,
    addr: usize,
    len: usize,
    /// Start and end of the driver's locked range, which all locks within it share. The first lock
    /// defines it.
    range: (usize, usize),
    locked: Locked,
}

impl Held {
    fn contains(&self, addr: usize, len: usize) -> bool {
        self.range.0 <= addr && addr + len <= self.range.1
    }

    /// Whether the locked range overlaps `len` bytes from `addr`.
    fn overlaps(&self, addr: usize, len: usize) -> bool {
        self.range.0 < addr + len && addr < self.range.1
    }
}

fn bytes(pages: usize) -> usize {
    pages * PAGE_SIZE
}

impl Lane<'_> {
    /// Number of pages of the range that are locked.
    pub(super) fn held_pages(&self, at: Span) -> usize {
        at.pages().filter(|page| self.is_held(Span { page: *page, n: 1, ..at })).count()
    }

    fn is_held(&self, at: Span) -> bool {
        let addr = self.addr(at);
        let len = bytes(at.n);
        self.held.iter().any(|held| held.overlaps(addr, len))
    }

    /// The first page of the range that is in device memory although it is locked.
    pub(super) fn stray(&self, at: Span, states: &[PageState]) -> Option<usize> {
        let mut pages = at.pages().zip(states);
        let wrong = |page: usize| self.is_held(Span { page, n: 1, ..at });
        pages.find(|(page, state)| state.is_local() && wrong(*page)).map(|(page, _)| page)
    }

    /// A lock of `dev` whose range contains these addresses.
    fn range_of(&self, dev: usize, addr: usize, len: usize) -> Option<&Held> {
        self.held.iter().find(|held| held.dev == dev && held.contains(addr, len))
    }

    /// Records a lock, with the range of an existing lock that contains it, or else its own.
    fn keep(&mut self, dev: usize, place: Place, (addr, len): (usize, usize), locked: Locked) {
        let range = self.range_of(dev, addr, len).map_or((addr, addr + len), |held| held.range);
        self.held.push(Held { dev, place, addr, len, range, locked });
    }

    /// Expected result of a lock: whether it is fine-grained, or the error.
    fn lock_result(&self, dev: usize, addr: usize, len: usize, fine: bool) -> Result<bool, Errno> {
        match self.range_of(dev, addr, len) {
            Some(held) if fine && !held.locked.fine => Err(Errno::EOPNOTSUPP),
            Some(held) => Ok(held.locked.fine),
            None if self.held.iter().any(|held| held.dev == dev && held.overlaps(addr, len)) => {
                Err(Errno::EEXIST)
            }
            None => Ok(fine),
        }
    }

    /// Locks memory of the lane, and compares the result with the model. `None` if it failed with
    /// an expected error.
    pub(super) fn lock_own(
        &mut self,
        dev: usize,
        at: Span,
        fine: bool,
    ) -> Result<Option<Locked>, Fail> {
        let addr = self.addr(at);
        let len = bytes(at.n);
        let expected = match (self.lock_result(dev, addr, len, fine), self.allowed(at, true)) {
            (Ok(_), Err(_)) => Err(Errno::EFAULT),
            (expected, _) => expected,
        };
        let result = self.patiently(|lane| lane.devices[dev].lock(addr, len, 1 << dev, fine));
        let error = match (result, expected) {
            (Ok(locked), Ok(fine)) if locked.fine == fine || self.env.hardware => {
                // The lock has faulted in missing pages.
                self.touched(at);
                return Ok(Some(locked));
            }
            (Ok(locked), expected) => {
                return fail("host lock", format!("{locked:?}, expected {expected:?}"))
            }
            (Err(error), Err(expected)) if error == expected => error,
            // A lock cannot wait for the userfaultfd handler.
            (Err(error @ Errno::EFAULT), Ok(_)) if self.may_miss(at) => error,
            (Err(error @ Errno::ENOMEM), _) => error,
            (Err(error), expected) => {
                return fail("host lock", format!("{error}, expected {expected:?}"))
            }
        };
        self.expect("host lock", error, &[error]).map(|()| None)
    }

    /// Locks memory, and keeps it locked.
    pub(super) fn hold(&mut self, dev: usize, at: Span, fine: bool) -> Result<(), Fail> {
        let at = Span { n: at.n.min(PAGES), ..at };
        self.quiesce(at, Effect::Looks)?;
        // A lock faults pages in for writing.
        self.settle(at)?;
        self.make_room()?;
        let Some(locked) = self.lock_own(dev, at, fine)? else { return Ok(()) };
        self.keep(dev, Place::Own(at), (self.addr(at), bytes(at.n)), locked);
        self.check_locked(self.held.len() - 1)
    }

    /// Locks common pages. Fine-grained, because other agents write them concurrently.
    pub(super) fn hold_common(
        &mut self,
        dev: usize,
        wide: bool,
        page: usize,
        n: usize,
    ) -> Result<(), Fail> {
        let Some(common) = self.env.common(wide) else { return Ok(()) };
        let addr = common.map.page_addr(page);
        let len = bytes(n);
        self.make_room()?;
        let expected = self.lock_result(dev, addr, len, true);
        let result = self.patiently(|lane| lane.devices[dev].lock(addr, len, 1 << dev, true));
        match (result, expected) {
            (Ok(locked), Ok(true)) if locked.fine => {
                self.keep(dev, Place::Common { wide, page }, (addr, len), locked);
                self.check_locked(self.held.len() - 1)
            }
            (Err(error), Err(expected)) if error == expected => {
                self.expect("lock of common memory", error, &[error])
            }
            (Err(error), Ok(_)) => self.expect("lock of common memory", error, &[Errno::ENOMEM]),
            (result, expected) => {
                fail("lock of common memory", format!("{result:?}, expected {expected:?}"))
            }
        }
    }

    fn make_room(&mut self) -> Result<(), Fail> {
        while self.held.len() >= MOST {
            self.unlock_held(0)?;
        }
        Ok(())
    }

    fn unlock_held(&mut self, index: usize) -> Result<(), Fail> {
        let held = self.held.remove(index);
        match self.devices[held.dev].unlock(held.locked.device_addr) {
            Ok(()) => Ok(()),
            Err(error) => fail("unlock of held memory", error),
        }
    }

    /// Unlocks one of the held locks.
    pub(super) fn unhold(&mut self, which: usize) -> Result<(), Fail> {
        match self.held.len() {
            0 => Ok(()),
            count => self.unlock_held(which % count),
        }
    }

    /// Unlocks all held locks.
    pub(super) fn unhold_all(&mut self) -> Result<(), Fail> {
        while !self.held.is_empty() {
            self.unlock_held(0)?;
        }
        Ok(())
    }

    /// Unlocks all locks that overlap the range, whose pages are about to be replaced.
    pub(super) fn release_held(&mut self, at: Span) -> Result<(), Fail> {
        let addr = self.addr(at);
        let len = bytes(at.n);
        while let Some(index) = self.held.iter().position(|held| held.overlaps(addr, len)) {
            self.unlock_held(index)?;
        }
        Ok(())
    }

    /// Compares the driver's report of a locked range with the model, by CPU address and by device
    /// address.
    fn check_locked(&self, index: usize) -> Result<(), Fail> {
        let held = self.held[index];
        let inside = |other: &&Held| other.dev == held.dev && other.range == held.range;
        let users = self.held.iter().filter(inside).count() as u64;
        let expected = (held.range.0, held.range.1 - held.range.0, users, held.locked.fine);
        for addr in [held.addr, held.locked.device_addr] {
            match self.devices[held.dev].locked(addr, 1) {
                Ok(found) if (found.addr, found.bytes, found.users, found.fine) == expected => {}
                other => {
                    let why = format!("{other:x?}, expected {expected:x?}");
                    return fail("locked range", why);
                }
            }
        }
        Ok(())
    }

    /// Executes an engine command, which must not fail on locked memory.
    fn run_held(&mut self, dev: usize, command: Command) -> Result<u64, Fail> {
        let ended = self.patiently(|lane| {
            let ended = lane.run(dev, command)?;
            ended.error.map_or(Ok(ended.status.result), Err)
        });
        ended.map_err(|error| format!("access to locked memory: {error}"))
    }

    /// Accesses locked memory by its device address, and compares the values that the device reads.
    pub(super) fn use_held(&mut self, which: usize, write: bool, value: u64) -> Result<(), Fail> {
        if self.held.is_empty() {
            return Ok(());
        }
        let index = which % self.held.len();
        self.check_locked(index)?;
        let held = self.held[index];
        match held.place {
            Place::Own(at) => self.use_own(held, at, write, value),
            Place::Common { wide, page } => self.use_common(held, wide, page, value),
        }
    }

    fn use_own(&mut self, held: Held, at: Span, write: bool, value: u64) -> Result<(), Fail> {
        self.quiesce(at, if write { Effect::Changes } else { Effect::Looks })?;
        self.settle(at)?;
        let to = held.locked.device_addr;
        if write && self.allowed(at, true).is_ok() {
            self.run_held(held.dev, Command::new(EngineOp::Fill, to, held.len).value(value))?;
            for page in at.pages() {
                let region = &mut self.regions[at.r];
                region.set_shadow(page, &[value; hmm::pattern::WORDS]);
                if let Err(mismatch) = region.check(page) {
                    return fail(
                        "CPU read of words that a device wrote to locked memory",
                        mismatch,
                    );
                }
            }
        }
        let model = at.pages().flat_map(|page| self.regions[at.r].shadow(page).iter().copied());
        let expected = checksum(model);
        let found = self.run_held(held.dev, Command::new(EngineOp::Checksum, to, held.len))?;
        if found != expected {
            let why = self.explain(at);
            return fail("locked memory", format!("{found:#x}, expected {expected:#x}{why}"));
        }
        // Locked memory must not migrate.
        let moved = self.devices[held.dev].migrate(held.addr, at.n, Way::ToDevice);
        match moved.map(|done| done.moved) {
            Ok(0) => Ok(()),
            Ok(moved) => fail("migration", format!("{moved} locked pages moved")),
            Err(error) => self.expect_move("migration of locked memory", error, at),
        }
    }

    /// Adds to a common word and reads the lane's own word, both by device address.
    fn use_common(&mut self, held: Held, wide: bool, page: usize, value: u64) -> Result<(), Fail> {
        let Some(common) = self.env.common(wide) else { return Ok(()) };
        let to = held.locked.device_addr;
        let add = Command::new(EngineOp::AtomicAdd, to, 8).stride(8).value(value);
        self.run_held(held.dev, add)?;
        common.sums.atomic(0, page).fetch_add(value, SeqCst);
        let own = self.own.get(&(wide, page)).copied().unwrap_or(0);
        let read = Command::new(EngineOp::Read, to + self.own_word() * 8, 8);
        let found = self.run_held(held.dev, read)?;
        if found == own {
            Ok(())
        } else {
            fail("own word in a locked common page", format!("{found:#x}, not {own:#x}"))
        }
    }
}
