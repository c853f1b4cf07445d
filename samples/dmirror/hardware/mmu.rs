// SPDX-License-Identifier: GPL-2.0

//! One access of an engine: TLB, walk of the page table, memory; or a fault.

use super::{
    counters::{Count, Counted},
    port::{Access, Action, Answer, Lane, Port},
    walk::{Bus, Format, Miss, Translation},
};
use kernel::{
    prelude::*,
    time::{delay::fsleep, Delta},
};

/// Looks at a translation that changes meanwhile, before the engine lets go of the bus.
const LOOKS: usize = 16;

/// Longest time for which a change is waited for before it is a fault: so many pauses.
const PAUSES: usize = 10_000;
const PAUSE: Delta = Delta::from_micros(100);

/// Registers of an address space, which the driver writes.
pub(crate) struct Context {
    /// Name of the address space in TLBs, not 0.
    tag: u64,
    /// Format of the table, and bus address of its root. Without, the driver is asked for each
    /// translation.
    table: Option<(Format, u64)>,
}

impl Context {
    pub(crate) fn new(tag: u64, table: Option<(Format, u64)>) -> Self {
        Self { tag, table }
    }
}

/// What a walk for `addr` reads.
struct Tables<'l, L> {
    lane: &'l L,
    addr: usize,
}

impl<L: Lane> Bus for Tables<'_, L> {
    fn read(&self, address: u64) -> Result<u64, Miss> {
        self.lane.table_word(self.addr, address)
    }
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
    let mut walked = false;
    let mut result = Access::Fault;
    for _ in 0..PAUSES {
        let mut attempt = Attempt {
            lane: port.enter(index)?,
            context: port.context(),
            counted,
            addr,
        };
        if let Some(ended) = attempt.run(&mut action, &mut walked)? {
            result = ended;
            break;
        }
        // The table of the device follows the tree of the library after a moment, in which the bus
        // answers nothing.
        drop(attempt);
        fsleep(PAUSE);
    }
    let count = if walked {
        Count::TlbMisses
    } else {
        Count::TlbHits
    };
    counted.add(count, 1);
    Ok(result)
}

/// An access, as long as it has the bus.
struct Attempt<'a, L> {
    lane: L,
    context: &'a Context,
    counted: Counted<'a>,
    addr: usize,
}

impl<L: Lane> Attempt<'_, L> {
    /// `None` if the page is being changed. Says by `walked` whether the TLB was not enough.
    fn run(&mut self, action: &mut Action<'_>, walked: &mut bool) -> Result<Option<Access>> {
        let (tag, addr) = (self.context.tag, self.addr);
        let mut changing = false;
        for _ in 0..LOOKS {
            let found = match self.translate(walked) {
                Ok(found) => found,
                Err(Miss::NotPresent) => return Ok(Some(Access::Fault)),
                Err(Miss::Changing) => {
                    changing = true;
                    core::hint::spin_loop();
                    continue;
                }
                Err(why) => {
                    self.lane.alarm(addr, Some(why));
                    return Ok(Some(Access::Fault));
                }
            };
            let answer = self.lane.access(addr, found, action)?;
            if !matches!(answer, Answer::Done) {
                self.lane.tlb().forget(tag, addr);
            }
            changing = match answer {
                Answer::Done => {
                    let count = if action.writes() {
                        Count::BytesWritten
                    } else {
                        Count::BytesRead
                    };
                    self.counted.add(count, action.bytes() as u64);
                    return Ok(Some(Access::Done));
                }
                Answer::ReadOnly => return Ok(Some(Access::Fault)),
                Answer::Changing => {
                    core::hint::spin_loop();
                    true
                }
                Answer::Stale => {
                    self.counted.add(Count::StaleHits, 1);
                    self.lane.alarm(addr, None);
                    false
                }
            };
        }
        Ok((!changing).then_some(Access::Fault))
    }

    /// Looks into the TLB, then into the page table.
    fn translate(&mut self, walked: &mut bool) -> Result<Translation, Miss> {
        let (tag, addr) = (self.context.tag, self.addr);
        if let Some(found) = self.lane.tlb().lookup(tag, addr) {
            return Ok(found);
        }
        *walked = true;
        let found = match self.context.table {
            Some((format, root)) => {
                let lane = &self.lane;
                // CAST: Both have 64 bits.
                format.walk(&Tables { lane, addr }, root, addr as u64)?
            }
            None => self.lane.ask(addr).ok_or(Miss::NotPresent)?,
        };
        self.lane.tlb().fill(tag, addr, found);
        Ok(found)
    }
}
