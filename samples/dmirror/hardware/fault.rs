// SPDX-License-Identifier: GPL-2.0

//! The fault buffer: packets about accesses without a translation, until the driver replies to
//! them.

use super::engine::Engine;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        Arc,
        Mutex,
        SetOnce, //
    }, //
};

/// Capacity of the buffer. An engine that finds it full retries later.
const BUFFER_DEPTH: usize = 256;

/// Maximum number of commands that wait for one packet.
const PACKET_MAX_WAITERS: usize = 8;

/// The reply to a fault, for which a command waits.
pub(crate) struct FaultTicket<P> {
    result: SetOnce<Result>,
    engine: Arc<Engine<P>>,
}

impl<P> FaultTicket<P> {
    /// Returns the reply, or `None` before it was given.
    pub(crate) fn result(&self) -> Option<Result> {
        self.result.copy()
    }
}

/// Description of a fault, as the driver reads it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packet {
    /// Identifier of the address space.
    pub(crate) tag: u64,
    /// Page number of the address, in pages of the CPU.
    pub(crate) page: usize,
    pub(crate) write: bool,
}

impl Packet {
    /// Describes a fault of an access at `addr`.
    pub(crate) fn new(tag: u64, addr: usize, write: bool) -> Self {
        Self {
            tag,
            page: addr / PAGE_SIZE,
            write,
        }
    }
}

/// A packet, and the commands that wait for its reply.
pub(crate) struct Fault<P> {
    pub(crate) packet: Packet,
    waiters: KVec<Arc<FaultTicket<P>>>,
}

impl<P> Fault<P> {
    /// Replies to the fault and wakes the engines.
    pub(crate) fn reply(self, result: Result) {
        for wait in self.waiters {
            wait.result.populate(result);
            wait.engine.wake();
        }
    }
}

/// The fault buffer of a device.
#[pin_data]
pub(crate) struct Buffer<P> {
    /// Packets, oldest first.
    #[pin]
    faults: Mutex<KVec<Fault<P>>>,
    coalesced: Atomic<u64>,
}

impl<P> Buffer<P> {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let faults = KVec::with_capacity(BUFFER_DEPTH, GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                faults <- kernel::new_mutex!(faults, "dmirror::fault_buffer"),
                coalesced: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Adds a packet of `engine`, or joins an equal packet. Returns `None` if the buffer is full.
    pub(crate) fn put(
        &self,
        engine: &Arc<Engine<P>>,
        packet: Packet,
    ) -> Option<Arc<FaultTicket<P>>> {
        let wait = FaultTicket {
            result: SetOnce::new(),
            engine: engine.clone(),
        };
        let wait = Arc::new(wait, GFP_KERNEL).ok()?;
        let mut waiters = KVec::with_capacity(PACKET_MAX_WAITERS, GFP_KERNEL).ok()?;
        let mut faults = self.faults.lock();
        let same = faults
            .iter_mut()
            .find(|fault| fault.packet == packet && fault.waiters.len() < PACKET_MAX_WAITERS);
        if let Some(fault) = same {
            fault.waiters.push_within_capacity(wait.clone()).ok()?;
            self.coalesced.add(1, Relaxed);
            return Some(wait);
        }
        if faults.len() >= BUFFER_DEPTH {
            return None;
        }
        waiters.push_within_capacity(wait.clone()).ok()?;
        faults
            .push_within_capacity(Fault { packet, waiters })
            .ok()?;
        Some(wait)
    }

    /// Removes the oldest fault for which `which` returns true.
    pub(crate) fn take(&self, which: impl FnMut(&Packet) -> bool) -> Option<Fault<P>> {
        let mut which = which;
        let mut faults = self.faults.lock();
        let at = faults.iter().position(|fault| which(&fault.packet))?;
        faults.remove(at).ok()
    }

    /// Whether the buffer is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.faults.lock().is_empty()
    }

    /// Number of faults that joined an existing packet.
    pub(crate) fn coalesced(&self) -> u64 {
        self.coalesced.load(Relaxed)
    }
}
