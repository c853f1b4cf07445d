// SPDX-License-Identifier: GPL-2.0
//! Queues, host locks and migrations between devices. None of these changes contents, only their
//! location.

use super::{
    fail,
    Effect,
    Fail,
    Lane, //
};
use crate::torture::op::Span;
use hmm::engine::{
    checksum,
    Way, //
};
use hmm::{
    Command,
    EngineOp,
    Errno,
    Fence,
    Locked,
    QueueOp,
    State,
    PAGE_SIZE, //
};

fn end(what: &str, fence: &Fence<'_>) -> Result<Option<Errno>, Fail> {
    match fence.sync(None) {
        Ok(checked) => Ok(match checked.state {
            State::Failed(error) => Some(error),
            _ => None,
        }),
        Err(error) => fail(what, error).map(|()| None),
    }
}

impl Lane<'_> {
    /// Queues a migration to one device and, depending on it, a prefetch and an eviction by another
    /// one.
    pub(super) fn queued(&mut self, dev: usize, other: usize, at: Span) -> Result<(), Fail> {
        self.quiesce(at, Effect::Looks)?;
        let addr = self.addr(at);
        let len = at.n * PAGE_SIZE;
        let result = (|| -> Result<Vec<Option<Errno>>, Fail> {
            let here = &self.devices[dev];
            let there = &self.devices[other];
            let open = |error| format!("queue: {error}");
            let one = here.queue().map_err(open)?;
            let two = there.queue().map_err(open)?;
            let moved = one.submit(QueueOp::migrate(addr, len), &[]).map_err(open)?;
            let known = there.share(&moved).map_err(open)?;
            two.wait(&known).map_err(open)?;
            let next = two.submit(QueueOp::prefetch(addr, len), &[]).map_err(open)?;
            let back = two.submit(QueueOp::evict(addr, len), &[&next]).map_err(open)?;
            let all = two.record().map_err(open)?;
            let ends = [&moved, &next, &back, &all].map(|fence| end("queued operation", fence));
            let mut errors = Vec::new();
            for one in ends {
                errors.push(one?);
            }
            // Dependencies: an operation that depends on a failed one fails with the same error.
            let [first, second, third, record] = errors[..] else { return Ok(errors) };
            if let Some(error) = first {
                if (second, third, record) != (Some(error), Some(error), Some(error)) {
                    return fail("queued operations", format!("{errors:?}")).map(|()| errors);
                }
            } else if second.is_some() && (third != second || record != second) {
                return fail("queued operations", format!("{errors:?}")).map(|()| errors);
            }
            Ok(errors)
        })();
        let errors = result?;
        if errors.first() == Some(&None) {
            self.moved_rightly("queued migration", at)?;
        }
        // All errors are those of the first failure: checked above.
        match errors.into_iter().flatten().next() {
            Some(error) => self.expect_move("queued operation", error, at),
            None => Ok(()),
        }
    }

    /// Migrates from one device to another.
    pub(super) fn pull(&mut self, dev: usize, other: usize, at: Span) -> Result<(), Fail> {
        // With a single device there is no source.
        let other = if dev == other { (dev + 1) % self.devices.len() } else { other };
        if dev == other {
            self.note("  nothing to do: pull");
            return Ok(());
        }
        let addr = self.addr(at);
        match self.devices[dev].pull(addr, at.n, &self.devices[other]) {
            Ok(done) if done.moved > at.n as u64 => {
                fail("pull", format!("{} of {} pages moved", done.moved, at.n))
            }
            Ok(done) => {
                *self.counts.entry("  pages pulled".to_string()).or_default() += done.moved;
                self.moved_rightly("pull", at)
            }
            Err(error) => self.expect_move("pull", error, at),
        }
    }

    /// Locks memory, checks that it does not migrate and that the device can read it, and unlocks
    /// it.
    pub(super) fn host_lock(&mut self, dev: usize, at: Span, fine: bool) -> Result<(), Fail> {
        self.quiesce(at, Effect::Looks)?;
        // A lock faults pages in for writing.
        self.settle(at)?;
        let at = Span { n: at.n.min(64), ..at };
        let Some(locked) = self.lock_own(dev, at, fine)? else { return Ok(()) };
        if self.env.hardware {
            return self.locked_by_dma(dev, at, locked);
        }
        let addr = self.addr(at);
        let len = at.n * PAGE_SIZE;
        let moved = self.devices[dev].migrate(addr, at.n, Way::ToDevice).map(|done| done.moved);
        let by_device = self.checksum(dev, locked.device_addr, len);
        let by_host = self.checksum(dev, addr, len);
        self.unlock(dev, locked)?;
        match moved {
            Ok(0) => {}
            Ok(moved) => return fail("migration", format!("{moved} locked pages moved")),
            Err(error) => self.expect_move("migration of locked memory", error, at)?,
        }
        let model = at.pages().flat_map(|page| self.regions[at.r].shadow(page).iter().copied());
        let expected = checksum(model);
        // A device read of locked memory copies nothing, so that an injected copy failure is no
        // excuse.
        match (by_device, by_host) {
            (Ok(one), Ok(two)) if (one, two) == (expected, expected) => Ok(()),
            found => fail("locked memory", format!("{found:x?}, expected {expected:#x}")),
        }
    }

    /// Computes the checksum of memory with an engine.
    fn checksum(&mut self, dev: usize, addr: usize, len: usize) -> Result<u64, Errno> {
        self.patiently(|lane| {
            let ended = lane.run(dev, Command::new(EngineOp::Checksum, addr, len))?;
            ended.error.map_or(Ok(ended.status.result), Err)
        })
    }

    /// Reads locked memory by its device address after an attempt to migrate it, and unlocks it.
    fn locked_by_dma(&mut self, dev: usize, at: Span, locked: Locked) -> Result<(), Fail> {
        let mut buffer = vec![0; at.n * PAGE_SIZE];
        let addr = self.addr(at);
        let mut copy = buffer.clone();
        // May fail. If pages did migrate, the device would read stale contents at its DMA address.
        let _ = self.devices[dev].migrate_to_device(addr, &mut copy);
        let read = self.patiently(|lane| lane.devices[dev].read(locked.device_addr, &mut buffer));
        self.unlock(dev, locked)?;
        if let Err(error) = read {
            return fail("read of locked memory", error);
        }
        match self.regions[at.r].compare_bytes(at.page, &buffer) {
            Ok(()) => Ok(()),
            Err(mismatch) => fail("read of locked memory", mismatch),
        }
    }
}
