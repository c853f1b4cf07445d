// SPDX-License-Identifier: GPL-2.0

//! Reading and writing through the mirror.
//!
//! Contents pass through a bounce buffer of bounded size: user memory cannot be touched while the
//! table lock is held, for that could fault, and the fault could invalidate.

use crate::{client::Client, device::View, uapi::Command};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    uaccess::{UserSlice, UserSliceReader, UserSliceWriter},
};
use rust_hmm::{
    mirror::{Device, Mirror, Place, PlaceMut, TableGuard},
    mm::{addr::PageRange, range_fault::Access, space::fatal_signal_pending},
};

/// Device faults in a row that bring no progress before a command gives up with `EBUSY`.
const FAULT_ROUNDS: usize = 10_000;

/// Pages that pass through the bounce buffer at once.
const BOUNCE_PAGES: usize = 32;

/// What to do about a page that the device has no entry for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Fault it in, with all that follow.
    Fault(Access),
    /// Give up with `ENOENT`.
    Fail,
}

struct Bounce(KVVec<u8>);

impl Bounce {
    fn new(pages: usize) -> Result<Self> {
        // No array of a page: it would be on the stack first.
        let bytes = pages.min(BOUNCE_PAGES) * PAGE_SIZE;
        Ok(Self(KVVec::from_elem(0, bytes, GFP_KERNEL)?))
    }

    fn pages(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.0.chunks_exact_mut(PAGE_SIZE)
    }

    fn bytes(&mut self, pages: usize) -> Result<&mut [u8]> {
        self.0.get_mut(..pages * PAGE_SIZE).ok_or(EINVAL)
    }
}

/// `EINTR` if the task was killed: a range may be as large as the address space.
pub(crate) fn check_alive() -> Result {
    if fatal_signal_pending() {
        return Err(EINTR);
    }
    Ok(())
}

fn user_slice(command: &Command) -> Result<UserSlice> {
    let bytes = command.range.pages().checked_mul(PAGE_SIZE).ok_or(EINVAL)?;
    Ok(UserSlice::new(UserPtr::from_addr(command.ptr), bytes))
}

/// Reads one page through the table. `false` if there is no entry.
fn read_page(
    table: &TableGuard<'_, View>,
    engine: &View,
    addr: usize,
    to: &mut [u8],
) -> Result<bool> {
    match table.readable(addr) {
        None => return Ok(false),
        Some(Place::Cpu(pages)) => pages.read(0, to)?,
        Some(Place::Device(range)) => match engine.memory() {
            Some(memory) => memory.driver().read(range, 0, to)?,
            None => return Ok(false),
        },
    }
    Ok(true)
}

/// Writes one page through the table. `false` if there is no writable entry.
fn write_page(
    table: &TableGuard<'_, View>,
    engine: &View,
    addr: usize,
    from: &[u8],
) -> Result<bool> {
    match table.writable(addr) {
        None => return Ok(false),
        Some(PlaceMut::Cpu(pages)) => pages.write(0, from)?,
        Some(PlaceMut::Device(range)) => match engine.memory() {
            Some(memory) => memory.driver().write(range, 0, from)?,
            None => return Ok(false),
        },
    }
    Ok(true)
}

/// Reads `command.range` into the user's buffer.
pub(crate) fn read(client: &Client, command: &mut Command, missing: Missing) -> Result {
    let mirror = client.mirror();
    let total = command.range.pages();
    if missing == Missing::Fail {
        // Piece by piece, so that the lock is never held for long.
        for piece in command.range.pmd_pieces() {
            check_alive()?;
            if mirror.lock_table()?.present(piece) < piece.pages() {
                return Err(ENOENT);
            }
        }
    }
    let mut bounce = Bounce::new(total)?;
    let mut user: UserSliceWriter = user_slice(command)?.writer();
    let mut done = 0;
    let mut rounds = 0;
    while done < total {
        check_alive()?;
        let rest = PageRange::new(command.range.address(done), command.range.end())?;
        let got = read_some(mirror, rest, &mut bounce)?;
        if got == 0 {
            rounds = next_round(rounds)?;
            match missing {
                Missing::Fail => return Err(ENOENT),
                Missing::Fault(access) => client.decider().serve(client, rest, access)?,
            }
            command.faults += 1;
            continue;
        }
        user.write_slice(bounce.bytes(got)?)?;
        done += got;
        rounds = 0;
    }
    command.cpages = done as u64;
    Ok(())
}

/// Counts a device fault. Somebody may take the page away again before it is used, each time.
fn next_round(rounds: usize) -> Result<usize> {
    if rounds >= FAULT_ROUNDS {
        return Err(EBUSY);
    }
    Ok(rounds + 1)
}

fn read_some(mirror: &Mirror<View>, range: PageRange, bounce: &mut Bounce) -> Result<usize> {
    let table = mirror.lock_table()?;
    let mut got = 0;
    for page in bounce.pages().take(range.pages()) {
        if !read_page(&table, mirror.device(), range.address(got), page)? {
            break;
        }
        got += 1;
    }
    Ok(got)
}

/// Writes the user's buffer to `command.range`.
pub(crate) fn write(client: &Client, command: &mut Command) -> Result {
    let mirror = client.mirror();
    let total = command.range.pages();
    let mut bounce = Bounce::new(total)?;
    let mut user: UserSliceReader = user_slice(command)?.reader();
    let mut done = 0;
    while done < total {
        let filled = (total - done).min(BOUNCE_PAGES);
        user.read_slice(bounce.bytes(filled)?)?;
        let mut written = 0;
        let mut rounds = 0;
        while written < filled {
            check_alive()?;
            let start = command.range.address(done + written);
            let rest = PageRange::new(start, command.range.end())?;
            let got = write_some(mirror, rest, &mut bounce, written, filled)?;
            if got == 0 {
                rounds = next_round(rounds)?;
                client.decider().serve(client, rest, Access::Write)?;
                command.faults += 1;
            }
            written += got;
        }
        done += filled;
    }
    command.cpages = done as u64;
    Ok(())
}

fn write_some(
    mirror: &Mirror<View>,
    range: PageRange,
    bounce: &mut Bounce,
    from: usize,
    to: usize,
) -> Result<usize> {
    let table = mirror.lock_table()?;
    let mut done = 0;
    for page in bounce.pages().take(to).skip(from) {
        if !write_page(&table, mirror.device(), range.address(done), page)? {
            break;
        }
        done += 1;
    }
    Ok(done)
}
