// SPDX-License-Identifier: GPL-2.0

//! Reading and writing through the mirror.
//!
//! Contents go straight between a page and user memory, under the table lock. A page fault on user
//! memory could invalidate, which takes that lock: so what is missing there is brought in without it.

use crate::{client::Client, device::View, uapi::Command};
use kernel::{page::PAGE_SIZE, prelude::*};
use rust_hmm::{
    mirror::{Mirror, Place, PlaceMut, TableGuard},
    mm::{
        addr::PageRange,
        range_fault::Access,
        space::fatal_signal_pending,
        user::UserSpan, //
    },
};

/// Device faults in a row that bring no progress before a command gives up with `EBUSY`.
const FAULT_ROUNDS: usize = 10_000;

/// Pages that are copied under the lock at once.
const AT_ONCE: usize = 64;

/// Pages of user memory that are brought in at once.
const USER_PAGES: usize = 64;

/// What to do about a page that the device has no entry for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Fault it in, with those that follow.
    Fault(Access),
    /// Give up with `ENOENT`.
    Fail,
}

/// Why copying has stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stopped {
    /// For others to have the lock, or at the end.
    Break,
    /// There is no entry for the next page.
    NoEntry,
    /// User memory is missing.
    NoUser,
}

/// `EINTR` if the task was killed: a range may be as large as the address space.
pub(crate) fn check_alive() -> Result {
    if fatal_signal_pending() {
        return Err(EINTR);
    }
    Ok(())
}

/// The whole user buffer of a command.
fn user_of(command: &Command) -> Result<UserSpan> {
    let bytes = command.range.pages().checked_mul(PAGE_SIZE).ok_or(EINVAL)?;
    Ok(UserSpan::new(command.ptr, bytes))
}

/// The part of `user` for `pages` pages from page `first` on.
fn part(user: UserSpan, first: usize, pages: usize) -> Result<UserSpan> {
    user.part(first * PAGE_SIZE, pages * PAGE_SIZE)
}

/// Reads one page through the table. Returns the bytes read, `None` if there is no entry.
fn read_page(
    table: &TableGuard<'_, View>,
    engine: &View,
    addr: usize,
    to: UserSpan,
) -> Result<Option<usize>> {
    Ok(match table.readable(addr) {
        None => None,
        Some(Place::Cpu(pages)) => Some(pages.read_to_user(0, to)?),
        Some(Place::Device(range)) => {
            let (vram, range) = engine.vram(range)?;
            Some(vram.read_to_user(range, to)?)
        }
    })
}

/// Writes one page through the table. Returns the bytes written, `None` if there is no writable entry.
fn write_page(
    table: &TableGuard<'_, View>,
    engine: &View,
    addr: usize,
    from: UserSpan,
) -> Result<Option<usize>> {
    Ok(match table.writable(addr) {
        None => None,
        Some(PlaceMut::Cpu(pages)) => Some(pages.write_from_user(0, from)?),
        Some(PlaceMut::Device(range)) => {
            let (vram, range) = engine.vram(range)?;
            Some(vram.write_from_user(range, from)?)
        }
    })
}

/// Copies pages of `range` until one is missing or it was enough. `first` is the first one's page of
/// `user`. Returns the number of pages copied.
fn copy_some(
    mirror: &Mirror<View>,
    range: PageRange,
    user: UserSpan,
    first: usize,
    copy: impl Fn(&TableGuard<'_, View>, &View, usize, UserSpan) -> Result<Option<usize>>,
) -> Result<(usize, Stopped)> {
    let table = mirror.lock_table()?;
    let count = range.pages().min(AT_ONCE);
    for index in 0..count {
        let place = part(user, first + index, 1)?;
        match copy(&table, mirror.device(), range.address(index), place)? {
            None => return Ok((index, Stopped::NoEntry)),
            Some(PAGE_SIZE) => {}
            Some(_) => return Ok((index, Stopped::NoUser)),
        }
    }
    Ok((count, Stopped::Break))
}

/// How many pages are brought in at once.
///
/// That takes the longer the more they are, and others take pages away meanwhile, as KSM does each time it comes by.
/// So if few of them were still there when they were to be copied, it is fewer the next time.
struct Ahead {
    pages: usize,
    /// Where they began the last time.
    at: Option<usize>,
}

impl Ahead {
    fn new() -> Self {
        Self {
            pages: usize::MAX,
            at: None,
        }
    }

    /// For page `done`, which is missing, with `left` pages to go.
    fn next(&mut self, done: usize, left: usize) -> usize {
        if let Some(at) = self.at.replace(done) {
            self.pages = match done.saturating_sub(at) < self.pages.div_ceil(2) {
                true => self.pages / 2,
                false => self.pages.saturating_mul(2),
            };
        }
        self.pages = self.pages.clamp(1, left.max(1));
        self.pages
    }
}

/// Copies all of a command's range. `write_user` says whether user memory is written, `missing` what to do
/// about pages without an entry.
fn copy_all(
    client: &Client,
    command: &mut Command,
    missing: Missing,
    write_user: bool,
    copy: impl Fn(&TableGuard<'_, View>, &View, usize, UserSpan) -> Result<Option<usize>>,
) -> Result {
    let total = command.range.pages();
    let user = user_of(command)?;
    let mut done = 0;
    let mut rounds = 0;
    let mut ahead = Ahead::new();
    while done < total {
        check_alive()?;
        let rest = PageRange::new(command.range.address(done), command.range.end())?;
        let (got, stopped) = copy_some(client.mirror(), rest, user, done, &copy)?;
        done += got;
        rounds = if got == 0 { next_round(rounds)? } else { 0 };
        match (stopped, missing) {
            (Stopped::Break, _) => {}
            (Stopped::NoUser, _) => {
                part(user, done, USER_PAGES.min(total - done))?.fault_in(write_user)?;
            }
            (Stopped::NoEntry, Missing::Fail) => return Err(ENOENT),
            (Stopped::NoEntry, Missing::Fault(access)) => {
                let pages = ahead.next(done, total - done);
                let next = PageRange::from_pages(command.range.address(done), pages)?;
                client.decider().serve(client, next, access)?;
                command.faults += 1;
            }
        }
    }
    command.cpages = done as u64;
    Ok(())
}

/// Counts a round without progress. Somebody may take the page away again before it is used, each time.
fn next_round(rounds: usize) -> Result<usize> {
    if rounds >= FAULT_ROUNDS {
        return Err(EBUSY);
    }
    Ok(rounds + 1)
}

/// Reads `command.range` into the user's buffer.
pub(crate) fn read(client: &Client, command: &mut Command, missing: Missing) -> Result {
    if missing == Missing::Fail {
        // Piece by piece, so that the lock is never held for long.
        for piece in command.range.pmd_pieces() {
            check_alive()?;
            if client.mirror().lock_table()?.present(piece) < piece.pages() {
                return Err(ENOENT);
            }
        }
    }
    copy_all(client, command, missing, true, read_page)
}

/// Writes the user's buffer to `command.range`.
pub(crate) fn write(client: &Client, command: &mut Command) -> Result {
    let missing = Missing::Fault(Access::Write);
    copy_all(client, command, missing, false, write_page)
}
