// SPDX-License-Identifier: GPL-2.0

//! The bus between an engine and memory.

use super::{
    tlb::Tlb,
    walk::{
        Miss,
        Translation, //
    }, //
};
use kernel::prelude::*;

/// An operation at an address, within one page.
pub(crate) enum Action<'b> {
    /// Fill the buffer.
    Read(&'b mut [u8]),
    /// Write the buffer.
    Write(&'b [u8]),
    /// Add atomically to the 64-bit word. The previous value is returned in place.
    Add(&'b mut u64),
}

impl Action<'_> {
    /// Whether it writes.
    pub(crate) fn writes(&self) -> bool {
        !matches!(self, Self::Read(_))
    }

    /// Number of bytes read or written.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Read(buffer) => buffer.len(),
            Self::Write(buffer) => buffer.len(),
            Self::Add(_) => size_of::<u64>(),
        }
    }
}

/// Outcome of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Done,
    /// No translation permits the access.
    Fault,
}

/// Outcome of an access by a translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Done,
    /// The translation was replaced or write-protected, and the flush of that change has not ended.
    /// See [`Lane::access_now`].
    Superseded,
    /// The translation is stale: the table has changed, and no flush is pending.
    Stale,
    /// The page is write-protected.
    ReadOnly,
}

/// The bus during one access of an engine. Translated pages remain valid until it is dropped.
pub(crate) trait Lane {
    /// Returns the TLB of the engine.
    fn tlb(&mut self) -> &mut Tlb;

    /// Reads the word at `address` of a page table on the walk to `addr`.
    fn table_word(&self, addr: usize, address: u64) -> Result<u64, Miss>;

    /// Looks `addr` up in the driver's table, for hardware without a page table.
    fn request_translation(&self, addr: usize) -> Option<Translation>;

    /// Performs `action` at `addr`, which the engine has translated to `found`.
    ///
    /// # Errors
    ///
    /// Errors that end the command: device memory has lost its contents.
    fn access(&self, addr: usize, found: Translation, action: &mut Action<'_>) -> Result<Answer>;

    /// Performs `action` on the current page at `addr`, after [`Answer::Superseded`].
    ///
    /// Hardware would use the old page, which is not freed before the flush has ended. The bus
    /// resolves the address again instead, because it does not trust the contents of the device
    /// page table. Does not wait for the flush.
    ///
    /// # Errors
    ///
    /// As [`Self::access`].
    fn access_now(&self, addr: usize, action: &mut Action<'_>) -> Result<Access>;

    /// Reports a bug: a translation of `addr` was used after its flush, or the walk of its table
    /// failed.
    fn alarm(&self, addr: usize, why: Option<Miss>);
}
