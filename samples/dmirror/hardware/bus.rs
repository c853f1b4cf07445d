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

/// Outcome of an access to a bus address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Done,
    /// The engine must translate again: the translation was replaced or write-protected, and the
    /// flush of that change has not ended, or the bus no longer has it. Not given to an
    /// engine that has translated in the same access.
    Retry,
    /// The translation is stale: the table has changed, and no flush is pending.
    Stale,
    /// The page is not present or write-protected.
    Denied,
}

/// The bus during one access of an engine. Translated pages remain valid until it is dropped.
pub(crate) trait Lane {
    /// Returns the TLB of the engine.
    fn tlb(&mut self) -> &mut Tlb;

    /// Reads the word at bus address `address` of a page table.
    fn table_word(&self, address: u64) -> Result<u64, Miss>;

    /// Requests the translation of `addr` from the host, as by Address Translation Services (ATS)
    /// of PCIe. For an engine without a page table, and if a table was replaced during the walk.
    fn request_translation(&self, addr: usize) -> Option<Translation>;

    /// Performs `action` at the bus address of `place`, the byte's own, by the translation that the
    /// engine has: from its TLB, from a walk or by a request.
    ///
    /// If the engine has translated in this access, and the translation was replaced since, the bus
    /// performs the action on the current page. Hardware would use the old page, which is not freed
    /// before the flush of the change has ended. The bus does not trust the contents of the
    /// device's table, so that it cannot. It does not wait for the flush.
    ///
    /// # Errors
    ///
    /// Errors that end the command: device memory has lost its contents.
    fn access(&mut self, place: Translation, action: &mut Action<'_>) -> Result<Answer>;

    /// Reports an error of the hardware: a translation of `addr` was used after its flush, or the
    /// walk of its table failed.
    fn alarm(&self, addr: usize, why: Option<Miss>);
}
