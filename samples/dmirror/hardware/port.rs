// SPDX-License-Identifier: GPL-2.0

//! What engines are connected to: the address space of a command, which the driver attaches.

use super::{
    bus::{Access, Action, Lane},
    counters::{Count, Counted, Counters},
    engine::Engine,
    fault::Wait,
    mmu::{self, Context},
};
use kernel::{prelude::*, sync::Arc};

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

/// Does `action` at `addr` by engine `index`. Context: may sleep.
///
/// # Errors
///
/// What ends the command: see [`Port`].
pub(crate) fn access<P: Port>(
    port: &P,
    index: usize,
    counted: Counted<'_>,
    addr: usize,
    mut action: Action<'_>,
) -> Result<Access> {
    counted.add(Count::Accesses, 1);
    if P::is_locked(addr) {
        port.access_locked(addr, action)?;
        return Ok(Access::Done);
    }
    let mut lane = port.enter(index)?;
    mmu::access(&mut lane, port.context(), counted, addr, &mut action)
}
