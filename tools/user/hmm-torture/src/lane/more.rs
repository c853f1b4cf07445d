// SPDX-License-Identifier: GPL-2.0
//! Operations that were added after the first ones: see [`crate::draw::Extra`].

use super::{fail, Effect, Fail, Lane};
use crate::op::Span;
use hmm::abi::HUGE_PAGES;
use hmm::{
    Command, Connection, EngineOp, Errno, Managed, ManagedFlags, QueueOp, Setting, State, PAGE_SIZE,
};

/// Pages that a queue copies or fills at once.
const QUEUED: usize = 32;
/// Device pages that are taken out of use at once.
const TAKEN: usize = 512;

/// What operations on managed memory may meet: no memory, or a copy that was made to fail.
const NO_ROOM: [Errno; 2] = [Errno::ENOMEM, Errno::EBUSY];

/// Flags of managed memory, from the low bits of a number.
fn managed_flags(bits: u64) -> ManagedFlags {
    ManagedFlags { host_shared: bits & 1 != 0, populate: bits & 2 != 0, huge: bits & 4 != 0 }
}

impl Lane<'_> {
    pub(super) fn connect(&mut self, dev: usize, which: usize) -> Result<(), Fail> {
        let best = [Connection::None, Connection::Migratable, Connection::Unified][which % 3];
        self.set(dev, Setting::Connection, best as u64)
    }

    /// `EPERM` says that an exclusive entry is in the way, which another thread may have made.
    pub(super) fn check_exclusive(&mut self, dev: usize, at: Span) -> Result<(), Fail> {
        let addr = self.addr(at);
        match self.patiently(|lane| lane.devices[dev].check_exclusive(addr, at.n)) {
            Ok(_) => Ok(()),
            Err(error) => self.expect("check of exclusive access", error, &[Errno::EPERM]),
        }
    }

    /// Takes a block of device pages out of use, or brings all back.
    pub(super) fn resize(&mut self, dev: usize, block: usize, restore: bool) -> Result<(), Fail> {
        let total = self.device_pages(dev)?;
        if restore {
            return self.restore_memory(dev);
        }
        let first = block * TAKEN % total.max(1);
        let count = TAKEN.min(total - first);
        match self.devices[dev].resize(first, count, false) {
            Ok(left) => {
                *self.counts.entry("  pages that stayed in use".into()).or_default() += left;
                Ok(())
            }
            Err(error) => self.expect("pages out of use", error, &[Errno::ENOMEM]),
        }
    }

    fn device_pages(&self, dev: usize) -> Result<usize, Fail> {
        match self.devices[dev].info() {
            Ok(info) => Ok(info.vram_bytes as usize / PAGE_SIZE),
            Err(error) => fail("size of a device", error),
        }
    }

    /// Brings all pages of a device back into use.
    pub(super) fn restore_memory(&mut self, dev: usize) -> Result<(), Fail> {
        let total = self.device_pages(dev)?;
        match self.devices[dev].resize(0, total, true) {
            Ok(_) => Ok(()),
            Err(error) => fail("pages back into use", error),
        }
    }

    /// Asks for other types of events, and reads the records so far: their numbers leave out what was
    /// lost, and nothing else.
    pub(super) fn events(&mut self, dev: usize, mask: u64) -> Result<(), Fail> {
        // A file has no stream before the first time.
        if let Err(error) = self.devices[dev].events(mask & 0x1ff, false) {
            return fail("events", error);
        }
        let records = self.devices[dev].records().map_err(|error| format!("events: {error}"))?;
        for pair in records.windows(2) {
            let [one, next] = pair else { continue };
            if next.sequence <= one.sequence || next.lost < one.lost {
                return fail("events", format!("{one:?} is followed by {next:?}"));
            }
        }
        *self.counts.entry("  events read".into()).or_default() += records.len() as u64;
        Ok(())
    }

    /// A queue copies or fills memory as soon as the host has signalled a fence; it does nothing if
    /// the fence fails.
    pub(super) fn queue_work(
        &mut self,
        dev: usize,
        at: Span,
        from: Option<Span>,
        value: u64,
        fails: bool,
    ) -> Result<(), Fail> {
        let at = Span { n: at.n.min(QUEUED), ..at };
        let from = from.map(|from| Span { n: at.n, ..from });
        let overlaps = |from: Span| {
            from.r == at.r && from.page < at.page + at.n && at.page < from.page + from.n
        };
        let readable = from.is_none_or(|from| self.allowed(from, false).is_ok());
        if self.allowed(at, true).is_err() || self.may_miss(at) || !readable {
            self.note("  nothing to do: queued work");
            return Ok(());
        }
        if from.is_some_and(|from| overlaps(from) || self.may_miss(from)) {
            self.note("  nothing to do: queued work");
            return Ok(());
        }
        self.quiesce(at, Effect::Changes)?;
        self.settle(at)?;
        if let Some(from) = from {
            self.quiesce(from, Effect::Looks)?;
            self.settle(from)?;
        }
        let (to, bytes) = (self.addr(at), at.n * PAGE_SIZE);
        let op = match from {
            None => QueueOp::engine(EngineOp::Fill, to, bytes).value(value),
            Some(from) if value % 2 == 0 => QueueOp::copy(to, self.addr(from), bytes),
            Some(from) => QueueOp::engine_copy(to, self.addr(from), bytes),
        };
        let ended = self.after_host_fence(dev, op, fails)?;
        match ended {
            State::NotDone => return fail("queued work", "is not done after the wait for it"),
            State::Done if fails => return fail("queued work", "ran after a fence that failed"),
            State::Failed(Errno::ECANCELED) if fails => return Ok(()),
            State::Failed(error) if self.excused() => {
                self.note(format!("  queued work: {error}, injected"));
                return self.adopt_written(at, from, value);
            }
            State::Failed(error @ (Errno::EBUSY | Errno::ENOMEM)) => {
                self.note(format!("  queued work: {error}"));
                return self.adopt_written(at, from, value);
            }
            State::Failed(error) => return fail("queued work", error),
            State::Done => {}
        }
        for page in at.pages() {
            let words = self.written(at, from, value, page);
            let region = &mut self.regions[at.r];
            region.set_shadow(page, &words);
            region.pages[page].lazy = false;
            if let Err(mismatch) = region.check(page) {
                return fail("CPU read of what a queue wrote", mismatch);
            }
        }
        Ok(())
    }

    /// Submits `op` behind a fence of the host, signals that, and waits.
    fn after_host_fence(&self, dev: usize, op: QueueOp, fails: bool) -> Result<State, Fail> {
        let text = |error: Errno| format!("queued work: {error}");
        let device = &self.devices[dev];
        let (queue, host) = (device.queue().map_err(text)?, device.host_fence().map_err(text)?);
        let work = queue.submit(op, &[&host]).map_err(text)?;
        if work.check().map_err(text)?.state != State::NotDone {
            return fail("queued work", "did not wait for the fence of the host");
        }
        let result = if fails { Err(Errno::ECANCELED) } else { Ok(()) };
        host.signal(result).map_err(text)?;
        Ok(work.sync(None).map_err(text)?.state)
    }

    /// The words of `page` after a queue has written all of `at`.
    fn written(&self, at: Span, from: Option<Span>, value: u64, page: usize) -> Vec<u64> {
        match from {
            None => vec![value; hmm::pattern::WORDS],
            Some(from) => self.regions[from.r].shadow(from.page + page - at.page).to_vec(),
        }
    }

    /// After a write that failed: each word is the old or the new one.
    fn adopt_written(&mut self, at: Span, from: Option<Span>, value: u64) -> Result<(), Fail> {
        for page in at.pages() {
            let new = self.written(at, from, value, page);
            self.adopt_page(at, page, &new)?;
        }
        Ok(())
    }

    /// Takes what the CPU reads in a page for right if each word is that of the model, or `new`.
    pub(super) fn adopt_page(&mut self, at: Span, page: usize, new: &[u64]) -> Result<(), Fail> {
        let region = &mut self.regions[at.r];
        let mut found = vec![0; new.len()];
        region.load(page, &mut found);
        let old = region.shadow(page);
        let wrong = (0..new.len()).find(|word| ![old[*word], new[*word]].contains(&found[*word]));
        if let Some(word) = wrong {
            let (found, old, new) = (found[word], old[word], new[word]);
            let what =
                format!("page {page} word {word}: {found:#x}, neither {old:#x} nor {new:#x}");
            return fail("write that failed half way", what);
        }
        region.set_shadow(page, &found);
        region.pages[page].missing = false;
        Ok(())
    }

    /// Managed memory at a place that is the lane's own, beside the work of all other lanes.
    pub(super) fn managed_beside(
        &mut self,
        dev: usize,
        pages: usize,
        bits: u64,
        seed: u64,
    ) -> Result<(), Fail> {
        let flags = managed_flags(bits);
        let pages = if flags.huge { HUGE_PAGES } else { pages };
        match self.devices[dev].map_managed_in(&self.area, pages, flags) {
            Ok(memory) => self.use_managed(dev, &memory, seed),
            Err(error) => self.expect("managed mapping", error, &NO_ROOM),
        }
    }

    /// Managed memory that a queue populates later, where the kernel likes.
    pub(super) fn managed_later(
        &mut self,
        dev: usize,
        pages: usize,
        bits: u64,
        seed: u64,
    ) -> Result<(), Fail> {
        let flags = ManagedFlags { huge: false, ..managed_flags(bits) };
        let text = |error: Errno| format!("queue for an allocation: {error}");
        let device = hmm::Device::open(dev as u32).map_err(text)?;
        let queue = device.queue().map_err(text)?;
        let (memory, fence) = match device.alloc_later(pages * PAGE_SIZE, flags, &queue) {
            Ok(made) => made,
            Err(error) => return self.expect("allocation for later", error, &NO_ROOM),
        };
        match fence.sync(None).map_err(text)?.state {
            State::Done => self.use_managed(dev, &memory, seed),
            State::NotDone => fail("allocation for later", "is not done after the wait for it"),
            // Then nothing is mapped there any more.
            State::Failed(error) => self.expect("allocation for later", error, &NO_ROOM),
        }
    }

    /// CPU and device write managed memory by turns, and each word is compared.
    fn use_managed(&mut self, dev: usize, memory: &Managed, seed: u64) -> Result<(), Fail> {
        memory.fill(seed);
        let add = Command::new(EngineOp::AtomicAdd, memory.addr(), memory.len());
        let add = add.value(1).stride(PAGE_SIZE);
        let error = match self.run(dev, add) {
            Ok(ended) => ended.error,
            Err(error) => return fail("device write to managed memory", error),
        };
        match error {
            None => {}
            Some(error @ (Errno::EBUSY | Errno::ENOMEM)) => {
                self.note(format!("  device write to managed memory: {error}"))
            }
            Some(error) if self.excused() => {
                self.note(format!("  device write to managed memory: {error}, injected"))
            }
            Some(error) => return fail("device write to managed memory", error),
        }
        let mut whole = true;
        for page in 0..memory.pages() {
            let added = memory.get(page, 0).wrapping_sub(hmm::pattern::word(seed, page, 0));
            // A command that failed ended at the first page without its addition.
            whole &= added == 1;
            if added != u64::from(whole) || (error.is_none() && !whole) {
                return fail("managed memory", format!("page {page}: {added} more"));
            }
            memory.set(page, 0, hmm::pattern::word(seed, page, 0));
        }
        if let Err(mismatch) = memory.check(seed) {
            return fail("managed memory", mismatch);
        }
        if seed % 4 == 0 {
            self.evict(dev, memory.addr(), memory.pages())?;
            return memory.check(seed).or_else(|mismatch| fail("evicted managed memory", mismatch));
        }
        Ok(())
    }
}
