// SPDX-License-Identifier: GPL-2.0

//! What engines are connected to: the address space of a command, which the driver attaches.

use super::{
    counters::Counters,
    engine::Engine,
    fault::Wait,
    mmu::Context,
    tlb::Tlb,
    walk::{Miss, Translation},
};
use kernel::{prelude::*, sync::Arc};

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

/// How it ended.
pub(crate) enum Access {
    Done,
    /// The device has no translation that allows it.
    Fault,
}

/// What the bus says of an access.
pub(crate) enum Answer {
    Done,
    /// The page is not what the translation says, and is being changed.
    Changing,
    /// The page is not what the translation says.
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

    /// Reports a bug: a translation of `addr` outlived its flush, or its table cannot be walked.
    fn alarm(&self, addr: usize, why: Option<Miss>);
}

/// The address space that commands run in, as their engine reaches it.
pub(crate) trait Port: Sized + Send + Sync {
    /// Its bus.
    type Lane<'p>: Lane
    where
        Self: 'p;

    /// Called before a command is queued: it is to see what the host has written.
    fn begin(&self);

    /// Called when a command has ended: the host is to see what the command has written.
    fn end(&self);

    /// Counters of all commands of this address space.
    fn counters(&self) -> &Counters;

    /// Registers of this address space.
    fn context(&self) -> &Context;

    /// Begins an access of engine `index`.
    ///
    /// # Errors
    ///
    /// What ends the command: the device was unplugged.
    fn enter(&self, index: usize) -> Result<Self::Lane<'_>>;

    /// Whether `addr` is one of locked memory, which has no translation.
    fn is_locked(addr: usize) -> bool;

    /// Carries out `action` at `addr`, which is one of locked memory.
    ///
    /// # Errors
    ///
    /// What ends the command: the memory is not locked, or the device was unplugged.
    fn access_locked(&self, addr: usize, action: Action<'_>) -> Result;

    /// Reports that `engine` faulted at `addr`. `None` if the fault buffer is full.
    fn report(
        self: &Arc<Self>,
        engine: &Arc<Engine<Self>>,
        addr: usize,
        write: bool,
    ) -> Option<Arc<Wait<Self>>>;
}
