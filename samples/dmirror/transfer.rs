// SPDX-License-Identifier: GPL-2.0

//! Implements READ and WRITE of `test_hmm`: copies data between the mirror and user memory.
//!
//! Data is copied directly between a page and user memory, with the table lock held and page faults
//! disabled: a fault on user memory could invalidate a range, which takes the table lock. Missing
//! user pages are therefore faulted in without the lock.

use crate::{
    client::Client,
    device::View,
    uapi::Command, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};
use rust_hmm::{
    mirror::{
        Mirror,
        PageMemory,
        PageMemoryMut,
        TableGuard, //
    },
    mm::{
        addr::PageRange,
        range_fault::Access,
        user::UserSpan,
        vma::fatal_signal_pending, //
    }, //
};

/// Maximum number of consecutive device faults without progress, after which a command fails with
/// `EBUSY`.
const FAULT_ROUNDS: usize = 10_000;

/// Number of pages that are copied under one table lock.
const LOCKED_BATCH_PAGES: usize = 64;

/// Number of user pages that are faulted in at once.
const USER_PAGES: usize = 64;

/// Handling of a page without a device entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Fault it in, together with the pages that follow.
    Fault(Access),
    /// Fail with `ENOENT`.
    Fail,
}

/// Reason why a copy has stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stopped {
    /// The batch or the whole range was copied.
    Break,
    /// The next page has no entry.
    NoEntry,
    /// User memory is not present.
    NoUser,
}

/// Returns `EINTR` if the task was killed. Loops call this because a range may be as large as the
/// address space.
pub(crate) fn check_alive() -> Result {
    if fatal_signal_pending() {
        return Err(EINTR);
    }
    Ok(())
}

/// Returns the user buffer of a command.
fn user_of(command: &Command) -> Result<UserSpan> {
    let bytes = command.range.pages().checked_mul(PAGE_SIZE).ok_or(EINVAL)?;
    Ok(UserSpan::new(command.ptr, bytes))
}

/// Returns the part of `user` for `pages` pages from page `first` on.
fn part(user: UserSpan, first: usize, pages: usize) -> Result<UserSpan> {
    user.part(first * PAGE_SIZE, pages * PAGE_SIZE)
}

/// Reads one page through the device page table. Returns the number of bytes read, `None` if there
/// is no entry.
fn read_page(
    table: &TableGuard<'_, View>,
    engine: &View,
    addr: usize,
    to: UserSpan,
) -> Result<Option<usize>> {
    Ok(match table.readable(addr) {
        None => None,
        Some(PageMemory::Cpu(pages)) => Some(pages.read_to_user(0, to)?),
        Some(PageMemory::Device(range)) => {
            let (vram, range) = engine.vram(range)?;
            Some(vram.read_to_user(range, to)?)
        }
    })
}

/// Writes one page through the device page table. Returns the number of bytes written, `None` if
/// there is no writable entry.
fn write_page(
    table: &TableGuard<'_, View>,
    engine: &View,
    addr: usize,
    from: UserSpan,
) -> Result<Option<usize>> {
    Ok(match table.writable(addr) {
        None => None,
        Some(PageMemoryMut::Cpu(pages)) => Some(pages.write_from_user(0, from)?),
        Some(PageMemoryMut::Device(range)) => {
            let (vram, range) = engine.vram(range)?;
            Some(vram.write_from_user(range, from)?)
        }
    })
}

/// Copies up to [`LOCKED_BATCH_PAGES`] pages of `range` from page `first` on under the table lock,
/// until a page is missing. `user` is the buffer for the whole range. Returns the index of the page
/// at which the copy has stopped.
// Inlined, because most calls copy one page.
#[inline(always)]
fn copy_some(
    mirror: &Mirror<View>,
    range: PageRange,
    user: UserSpan,
    first: usize,
    copy: impl Fn(&TableGuard<'_, View>, &View, usize, UserSpan) -> Result<Option<usize>>,
) -> Result<(usize, Stopped)> {
    let table = mirror.lock_table()?;
    let end = range.pages().min(first + LOCKED_BATCH_PAGES);
    for index in first..end {
        let place = part(user, index, 1)?;
        match copy(&table, mirror.device(), range.address(index), place)? {
            None => return Ok((index, Stopped::NoEntry)),
            Some(PAGE_SIZE) => {}
            Some(_) => return Ok((index, Stopped::NoUser)),
        }
    }
    Ok((end, Stopped::Break))
}

/// Adapts the number of pages that one device fault requests.
///
/// The more pages a fault brings in, the longer it takes, and the more likely a concurrent
/// invalidation (for example by KSM) has removed entries before the pages are copied. The number is
/// halved if fewer than half of the pages could be copied, and doubled otherwise.
struct Ahead {
    pages: usize,
    /// First page of the previous fault.
    at: Option<usize>,
}

impl Ahead {
    fn new() -> Self {
        Self {
            pages: usize::MAX,
            at: None,
        }
    }

    /// Returns the number of pages to fault in from the missing page `done` on. `left` pages
    /// remain.
    fn next(&mut self, done: usize, left: usize) -> usize {
        if let Some(at) = self.at.replace(done) {
            self.pages = if done.saturating_sub(at) < self.pages.div_ceil(2) {
                self.pages / 2
            } else {
                self.pages.saturating_mul(2)
            };
        }
        self.pages = self.pages.clamp(1, left.max(1));
        self.pages
    }
}

/// Copies the whole range of a command. `write_user` is whether user memory is written, `missing`
/// how to handle pages without an entry.
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
        let (end, stopped) = copy_some(client.mirror(), command.range, user, done, &copy)?;
        rounds = if end == done { next_round(rounds)? } else { 0 };
        done = end;
        match (stopped, missing) {
            (Stopped::Break, _) => {}
            (Stopped::NoUser, _) => {
                part(user, done, USER_PAGES.min(total - done))?.fault_in(write_user)?;
            }
            (Stopped::NoEntry, Missing::Fail) => return Err(ENOENT),
            (Stopped::NoEntry, Missing::Fault(access)) => {
                let pages = ahead.next(done, total - done);
                let next = PageRange::from_pages(command.range.address(done), pages)?;
                client.fault_policy().serve(client, next, access)?;
                command.faults += 1;
            }
        }
        if done < total {
            check_alive()?;
        }
    }
    command.cpages = done as u64;
    Ok(())
}

/// Counts a round without progress. A concurrent invalidation may remove each entry before it is
/// used.
fn next_round(rounds: usize) -> Result<usize> {
    if rounds >= FAULT_ROUNDS {
        return Err(EBUSY);
    }
    Ok(rounds + 1)
}

/// Reads `command.range` into the user's buffer.
pub(crate) fn read(client: &Client, command: &mut Command, missing: Missing) -> Result {
    if missing == Missing::Fail {
        check_present(client, command.range)?;
    }
    copy_all(client, command, missing, true, read_page)
}

/// Returns `ENOENT` if a page of `range` has no entry.
// Not inlined, because most calls of `read` do not need it.
#[inline(never)]
fn check_present(client: &Client, range: PageRange) -> Result {
    // In pieces, so that the table lock is held only briefly.
    for piece in range.pmd_pieces() {
        check_alive()?;
        if client.mirror().lock_table()?.present(piece) < piece.pages() {
            return Err(ENOENT);
        }
    }
    Ok(())
}

/// Writes the user's buffer to `command.range`.
pub(crate) fn write(client: &Client, command: &mut Command) -> Result {
    let missing = Missing::Fault(Access::Write);
    copy_all(client, command, missing, false, write_page)
}
