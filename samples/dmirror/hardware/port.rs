// SPDX-License-Identifier: GPL-2.0

//! What engines are connected to: the address space of a command, which the driver attaches.

use super::{
    counters::{Counted, Counters},
    engine::Engine,
    fault::Wait,
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
}

/// How it ended.
pub(crate) enum Access {
    Done,
    /// The device has no translation that allows it.
    Fault,
}

/// The address space that commands run in, as their engine reaches it.
pub(crate) trait Port: Sized + Send + Sync {
    /// Called before a command is queued: it is to see what the host has written.
    fn begin(&self);

    /// Called when a command has ended: the host is to see what the command has written.
    fn end(&self);

    /// Counters of all commands of this address space.
    fn counters(&self) -> &Counters;

    /// Carries out `action` at `addr` for engine `index`.
    ///
    /// # Errors
    ///
    /// What ends the command: the device was unplugged, or the memory has lost its contents.
    fn access(
        &self,
        index: usize,
        counted: Counted<'_>,
        addr: usize,
        action: Action<'_>,
    ) -> Result<Access>;

    /// Reports that `engine` faulted at `addr`. `None` if the fault buffer is full.
    fn report(
        self: &Arc<Self>,
        engine: &Arc<Engine<Self>>,
        addr: usize,
        write: bool,
    ) -> Option<Arc<Wait<Self>>>;
}
