// SPDX-License-Identifier: GPL-2.0

//! The fault buffer: packets of engines that found no translation, until the driver replies.

use super::engine::Engine;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc,
        Mutex,
        SetOnce, //
    },
};

/// Packets that wait at most. An engine that finds no room tries again.
const DEPTH: usize = 256;

/// Commands that wait for one packet at most.
const WAITERS: usize = 8;

/// What a command waits for.
pub(crate) struct Wait<P> {
    result: SetOnce<Result>,
    engine: Arc<Engine<P>>,
}

impl<P> Wait<P> {
    /// How the fault was served, if it was.
    pub(crate) fn result(&self) -> Option<Result> {
        self.result.copy()
    }
}

/// A fault, as the driver reads it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packet {
    /// Name of the address space.
    pub(crate) tag: u64,
    /// Number of the page of 4 KiB.
    pub(crate) page: usize,
    pub(crate) write: bool,
}

impl Packet {
    /// For an access at `addr`.
    pub(crate) fn new(tag: u64, addr: usize, write: bool) -> Self {
        Self {
            tag,
            page: addr / PAGE_SIZE,
            write,
        }
    }
}

/// A packet, and the commands that wait for a reply.
pub(crate) struct Fault<P> {
    pub(crate) packet: Packet,
    waiters: KVec<Arc<Wait<P>>>,
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

/// The buffer.
#[pin_data]
pub(crate) struct Buffer<P> {
    /// The oldest first.
    #[pin]
    faults: Mutex<KVec<Fault<P>>>,
    coalesced: Atomic<u64>,
}

impl<P> Buffer<P> {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let faults = KVec::with_capacity(DEPTH, GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                faults <- kernel::new_mutex!(faults, "dmirror::fault_buffer"),
                coalesced: Atomic::new(0),
            }),
            GFP_KERNEL,
        )
    }

    /// Puts a packet of `engine` into the buffer. `None` if there is no room now.
    pub(crate) fn put(&self, engine: &Arc<Engine<P>>, packet: Packet) -> Option<Arc<Wait<P>>> {
        let wait = Wait {
            result: SetOnce::new(),
            engine: engine.clone(),
        };
        let wait = Arc::new(wait, GFP_KERNEL).ok()?;
        let mut waiters = KVec::with_capacity(WAITERS, GFP_KERNEL).ok()?;
        let mut faults = self.faults.lock();
        let same = faults
            .iter_mut()
            .find(|fault| fault.packet == packet && fault.waiters.len() < WAITERS);
        if let Some(fault) = same {
            fault.waiters.push_within_capacity(wait.clone()).ok()?;
            self.coalesced.add(1, Relaxed);
            return Some(wait);
        }
        if faults.len() >= DEPTH {
            return None;
        }
        waiters.push_within_capacity(wait.clone()).ok()?;
        faults
            .push_within_capacity(Fault { packet, waiters })
            .ok()?;
        Some(wait)
    }

    /// Takes the oldest fault for which `which` says so.
    pub(crate) fn take(&self, which: impl FnMut(&Packet) -> bool) -> Option<Fault<P>> {
        let mut which = which;
        let mut faults = self.faults.lock();
        let at = faults.iter().position(|fault| which(&fault.packet))?;
        faults.remove(at).ok()
    }

    /// Whether there is no packet.
    pub(crate) fn is_empty(&self) -> bool {
        self.faults.lock().is_empty()
    }

    /// Faults of pages of which there was a packet already.
    pub(crate) fn coalesced(&self) -> u64 {
        self.coalesced.load(Relaxed)
    }
}
