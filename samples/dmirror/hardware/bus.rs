// SPDX-License-Identifier: GPL-2.0

//! The bus between an engine and memory.

use super::{
    tlb::Tlb,
    walk::{Miss, Translation},
};
use kernel::prelude::*;

/// What to do at an address; within one page.
pub(crate) enum Action<'b> {
    /// Fill the buffer.
    Read(&'b mut [u8]),
    /// Write the buffer.
    Write(&'b [u8]),
    /// Add to the word; it becomes what was there before.
    Add(&'b mut u64),
}

impl Action<'_> {
    /// Whether it writes.
    pub(crate) fn writes(&self) -> bool {
        !matches!(self, Self::Read(_))
    }

    /// Bytes that it reads or writes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Read(buffer) => buffer.len(),
            Self::Write(buffer) => buffer.len(),
            Self::Add(_) => size_of::<u64>(),
        }
    }
}

/// How an access ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Done,
    /// The device has no translation that allows it.
    Fault,
}

/// What the bus says of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Done,
    /// The page is not what the translation says, because it was replaced or protected, and the
    /// flush of that change is not over. See [`Lane::access_now`].
    Superseded,
    /// The page is not what the translation says, and no change is under way.
    Stale,
    /// The page cannot be written.
    ReadOnly,
}

/// The bus, for one access of an engine. What was translated stays where it is until it is dropped.
pub(crate) trait Lane {
    /// The TLB of the engine.
    fn tlb(&mut self) -> &mut Tlb;

    /// Reads the word at `address` of a table that is on the way to `addr`.
    ///
    /// # Errors
    ///
    /// As [`super::walk::Bus::read`].
    fn table_word(&self, addr: usize, address: u64) -> Result<u64, Miss>;

    /// Has the driver walk, for hardware without a table.
    fn ask(&self, addr: usize) -> Option<Translation>;

    /// Carries out `action` at `addr`, which is at `found`.
    ///
    /// # Errors
    ///
    /// What ends the command: the memory has lost its contents.
    fn access(&self, addr: usize, found: Translation, action: &mut Action<'_>) -> Result<Answer>;

    /// Carries out `action` on the page that is at `addr` now, after the change that has superseded
    /// what the hardware has found. Hardware would use the old page, which stays until the flush has
    /// ended; the bus cannot, because it does not trust the table of the device. It waits for
    /// nothing.
    ///
    /// # Errors
    ///
    /// As [`Self::access`].
    fn access_now(&self, addr: usize, action: &mut Action<'_>) -> Result<Access>;

    /// Reports a bug: a translation of `addr` outlived its flush, or its table cannot be walked.
    fn alarm(&self, addr: usize, why: Option<Miss>);
}
