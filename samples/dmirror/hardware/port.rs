// SPDX-License-Identifier: GPL-2.0

//! The connection of engines to the address space of a command, attached by the driver.

use super::{
    bus::{
        Access,
        Action,
        Lane, //
    },
    counters::{
        Count,
        Counted,
        Counters, //
    },
    engine::Engine,
    fault::FaultTicket,
    mmu::{
        self,
        Context, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The address space of a command, as its engine accesses it.
pub(crate) trait Port: Sized + Send + Sync {
    /// The bus of this address space.
    type Lane<'p>: Lane
    where
        Self: 'p;

    /// Called before a command is queued, to make writes of the host visible to it.
    fn begin(&self);

    /// Called when a command has ended, to make its writes visible to the host.
    fn end(&self);

    /// Returns the counters of all commands of this address space.
    fn counters(&self) -> &Counters;

    /// Returns the registers of this address space.
    fn context(&self) -> &Context;

    /// Begins an access of engine `index`.
    ///
    /// # Errors
    ///
    /// Errors that end the command: the device was unplugged.
    fn enter(&self, index: usize) -> Result<Self::Lane<'_>>;

    /// Whether `addr` is a device address of locked memory, which is not translated.
    fn is_locked(addr: usize) -> bool;

    /// Performs `action` at `addr`, an address of locked memory.
    ///
    /// # Errors
    ///
    /// Errors that end the command: the memory is not locked, or the device was unplugged.
    fn access_locked(&self, addr: usize, action: Action<'_>) -> Result;

    /// Reports a fault of `engine` at `addr`. Returns `None` if the fault buffer is full.
    fn report(
        self: &Arc<Self>,
        engine: &Arc<Engine<Self>>,
        addr: usize,
        write: bool,
    ) -> Option<Arc<FaultTicket<Self>>>;
}

/// Performs `action` at `addr` by engine `index`.
///
/// Context: may sleep.
///
/// # Errors
///
/// Errors that end the command: see [`Port`].
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
