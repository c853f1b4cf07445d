// SPDX-License-Identifier: GPL-2.0
//! Counters reported by devices: they never decrease and are consistent with each other.

use super::{
    fail,
    Effect,
    Fail,
    Lane, //
};
use crate::torture::op::Span;
use hmm::counters::EngineCounters;
use hmm::placement::Placement;
use hmm::{
    Command,
    Connection,
    EngineOp,
    PAGE_SIZE, //
};
use std::collections::HashMap;
use std::time::Duration;

/// Attempts to read a connection that other lanes may change concurrently.
const LOOKS: usize = 100;

/// Last counter values that a lane has read.
#[derive(Debug, Default)]
pub struct Seen {
    engines: HashMap<(usize, u32), EngineCounters>,
    placements: HashMap<usize, Placement>,
}

impl Seen {
    /// Forgets counters of the open file, which restart at 0 when the device is closed.
    pub fn forget(&mut self, dev: usize) {
        self.placements.remove(&dev);
    }
}

/// Name of the first counter that has decreased.
fn decreased(before: &EngineCounters, now: &EngineCounters) -> Option<&'static str> {
    let mut pairs = before.fields().into_iter().zip(now.fields());
    pairs.find_map(|((name, before), (_, now))| (now < before).then_some(name))
}

/// Whether the placement counters of a file are consistent with those read before.
fn follows(before: &Placement, now: &Placement) -> bool {
    let growing = |found: &Placement| {
        let Placement { faults, moved, in_place, evicted_for_room, .. } = *found;
        [faults, moved, in_place, evicted_for_room, found.chosen]
    };
    // The counters are not read atomically: compare parts with a total that was read later.
    growing(before).iter().zip(growing(now)).all(|(before, now)| *before <= now)
        && before.in_place <= now.faults
        && now.pieces_idle <= now.pieces
}

impl Lane<'_> {
    fn engine_counters(&mut self, dev: usize, engine: u32) -> Result<EngineCounters, Fail> {
        let now = self.devices[dev].engine_counters(engine);
        let now = now.map_err(|error| format!("counters of an engine: {error}"))?;
        if let Some(before) = self.seen.engines.insert((dev, engine), now) {
            if let Some(name) = decreased(&before, &now) {
                return fail("counters of an engine", format!("{name}: {before:?}, then {now:?}"));
            }
            if before.tlb_hits + before.tlb_misses > now.accesses {
                return fail("TLB of an engine", format!("{before:?}, then {now:?}"));
            }
        }
        match now.stale_hits {
            0 => Ok(now),
            stale => fail("engine", format!("{stale} stale hits")),
        }
    }

    /// Reads the counters of an engine before and after a command whose effect on them is known.
    pub(super) fn engine_status(&mut self, dev: usize, engine: u32, at: Span) -> Result<(), Fail> {
        let info = self.devices[dev].info().map_err(|error| format!("device: {error}"))?;
        let engine = engine % info.engines.max(1);
        let at = Span { n: 1, ..at };
        let before = self.engine_counters(dev, engine)?;
        if self.allowed(at, false).is_err() || self.may_miss(at) {
            return Ok(());
        }
        self.quiesce(at, Effect::Looks)?;
        self.settle(at)?;
        let words = self.regions[at.r].shadow(at.page);
        let expected = words.iter().fold(0u64, |sum, word| sum.wrapping_add(*word));
        let command = Command::new(EngineOp::Read, self.addr(at), PAGE_SIZE).engine(engine);
        let found = self.patiently(|lane| {
            let ended = lane.run(dev, command)?;
            ended.error.map_or(Ok(ended.status.result), Err)
        });
        let found = found.map_err(|error| format!("read of a page: {error}"))?;
        let now = self.engine_counters(dev, engine)?;
        let counted = now.commands > before.commands
            && now.accesses > before.accesses
            && now.bytes_read >= before.bytes_read + PAGE_SIZE as u64;
        match (found == expected, counted) {
            (true, true) => Ok(()),
            (false, _) => fail("read of a page", format!("{found:#x}, expected {expected:#x}")),
            (_, false) => fail("counters of an engine", format!("{before:?}, then {now:?}")),
        }
    }

    pub(super) fn placement(&mut self, dev: usize) -> Result<(), Fail> {
        for _ in 0..2 {
            let now = self.devices[dev].placement();
            let now = now.map_err(|error| format!("placement: {error}"))?;
            if let Some(before) = self.seen.placements.insert(dev, now) {
                if !follows(&before, &now) {
                    return fail("placement", format!("{before:?}, then {now:?}"));
                }
            }
        }
        Ok(())
    }

    /// Reads the connection of two devices, which must be the same in both directions.
    pub(super) fn ask_pull(&mut self, dev: usize, other: usize) -> Result<(), Fail> {
        let text = |error| format!("connection: {error}");
        let one = &self.devices[dev];
        let two = &self.devices[other];
        let mut coherent = true;
        for device in [one, two] {
            coherent &= device.info().map_err(text)?.coherent != 0;
        }
        for look in 0..LOOKS {
            let found = [one.connection(two).map_err(text)?, two.connection(one).map_err(text)?];
            if found.contains(&Connection::Unified) && !coherent && dev != other {
                return fail("connection", "memory that a CPU cannot address is used in place");
            }
            if found[0] == found[1] {
                return Ok(());
            }
            // Another lane may have changed it in between.
            std::thread::sleep(Duration::from_millis(look as u64 / 10));
        }
        fail("connection", "is another one in the other direction")
    }
}
