// SPDX-License-Identifier: GPL-2.0
//! Queues, locks, managed memory and several devices. None of these changes contents, but where these are.

use super::{fail, Effect, Fail, Lane};
use crate::op::Span;
use hmm::engine::{checksum, Way};
use hmm::{Command, EngineOp, Errno, Fence, Locked, ManagedFlags, QueueOp, State, PAGE_SIZE};

/// What is said of memory that is not there, cannot be accessed or cannot move.
const NO_MOVE: [Errno; 6] =
    [Errno::EINVAL, Errno::EFAULT, Errno::EPERM, Errno::EBUSY, Errno::ENOMEM, Errno::EIO];

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
    /// There by one device, and after that there by another one or back, in order.
    pub(super) fn queued(&mut self, dev: usize, other: usize, at: Span) -> Result<(), Fail> {
        self.quiesce(at, Effect::Looks)?;
        let (addr, len) = (self.addr(at), at.n * PAGE_SIZE);
        let result = (|| -> Result<Vec<Option<Errno>>, Fail> {
            let (here, there) = (&self.devices[dev], &self.devices[other]);
            let open = |error| format!("queue: {error}");
            let (one, two) = (here.queue().map_err(open)?, there.queue().map_err(open)?);
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
            // Edges: what depends on a failure fails with it, and is told once.
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
        for error in result?.into_iter().flatten() {
            self.expect("queued operation", error, &NO_MOVE)?;
        }
        Ok(())
    }

    /// From one device to another.
    pub(super) fn pull(&mut self, dev: usize, other: usize, at: Span) -> Result<(), Fail> {
        // With a single device there is nothing to pull from.
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
                Ok(())
            }
            Err(error) => self.expect("pull", error, &NO_MOVE),
        }
    }

    /// Locks memory, sees that it stays and that the device reads it, and unlocks it.
    pub(super) fn host_lock(&mut self, dev: usize, at: Span, fine: bool) -> Result<(), Fail> {
        self.quiesce(at, Effect::Looks)?;
        // It makes the pages present, for writing.
        self.settle(at)?;
        let at = Span { n: at.n.min(64), ..at };
        let (addr, len) = (self.addr(at), at.n * PAGE_SIZE);
        let locked = match self.devices[dev].lock(addr, len, 1 << dev, fine) {
            Ok(locked) => locked,
            Err(error) => return self.expect("host lock", error, &NO_MOVE),
        };
        if self.env.hardware {
            return self.locked_by_dma(dev, at, locked);
        }
        let model = at.pages().flat_map(|page| self.regions[at.r].shadow(page).iter().copied());
        let expected = checksum(model);
        let moved = self.devices[dev].migrate(addr, at.n, Way::ToDevice).map(|done| done.moved);
        let read = Command::new(EngineOp::Checksum, locked.device_addr, len);
        let by_device = self.run(dev, read);
        let by_host = self.run(dev, Command::new(EngineOp::Checksum, addr, len));
        if let Err(error) = self.devices[dev].unlock(locked.device_addr) {
            return fail("unlock", error);
        }
        match moved {
            Ok(0) | Err(_) => {}
            Ok(moved) => return fail("migration", format!("{moved} locked pages moved")),
        }
        match (by_device, by_host) {
            (Ok(one), Ok(two)) if two.error.is_none() => {
                let found = (one.error, one.status.result, two.status.result);
                if found != (None, expected, expected) {
                    let why = format!("{one:?}, by its address {two:?}, expected {expected:#x}");
                    return fail("locked memory", why);
                }
                Ok(())
            }
            (Ok(_), Ok(two)) => {
                let error = two.error.unwrap_or(Errno::EIO);
                self.expect("checksum of locked memory", error, &NO_MOVE)
            }
            (Err(error), _) | (_, Err(error)) => fail("checksum of locked memory", error),
        }
    }

    /// What is locked is read at the address that the device was given, and does not move. Then it is unlocked.
    fn locked_by_dma(&mut self, dev: usize, at: Span, locked: Locked) -> Result<(), Fail> {
        let mut buffer = vec![0; at.n * PAGE_SIZE];
        let addr = self.addr(at);
        let mut copy = buffer.clone();
        // Best effort; what moved would be elsewhere than the device reads.
        let _ = self.devices[dev].migrate_to_device(addr, &mut copy);
        let read = self.patiently(|lane| lane.devices[dev].read(locked.device_addr, &mut buffer));
        if let Err(error) = self.devices[dev].unlock(locked.device_addr) {
            return fail("unlock", error);
        }
        if let Err(error) = read {
            return fail("read of locked memory", error);
        }
        match self.regions[at.r].compare_bytes(at.page, &buffer) {
            Ok(()) => Ok(()),
            Err(mismatch) => fail("read of locked memory", mismatch),
        }
    }

    /// Managed memory from beginning to end.
    pub(super) fn managed(
        &mut self,
        dev: usize,
        pages: usize,
        populate: bool,
        seed: u64,
    ) -> Result<(), Fail> {
        let flags = ManagedFlags { populate, ..ManagedFlags::default() };
        let memory = match self.devices[dev].alloc(pages * PAGE_SIZE, flags) {
            Ok(memory) => memory,
            // Device memory is used up, or a copy was made to fail.
            Err(error) => return self.expect("allocation", error, &[Errno::ENOMEM, Errno::EBUSY]),
        };
        memory.fill(seed);
        let add = Command::new(EngineOp::AtomicAdd, memory.addr(), memory.len());
        let ended = self.run(dev, add.value(1).stride(PAGE_SIZE));
        match ended.map(|ended| ended.error) {
            Ok(None) => {}
            Ok(Some(error)) | Err(error) => {
                return self.expect("device write to managed memory", error, &NO_MOVE)
            }
        }
        if seed % 4 == 0 {
            self.evict(dev, memory.addr(), pages)?;
        }
        for page in 0..pages {
            memory.set(page, 0, memory.get(page, 0).wrapping_sub(1));
        }
        match memory.check(seed) {
            Ok(()) => Ok(()),
            Err(mismatch) => fail("managed memory", mismatch),
        }
    }
}
