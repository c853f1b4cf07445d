// SPDX-License-Identifier: GPL-2.0
//! Connections, resizing of device memory, checks of exclusive access, and queued writes.

use super::{
    fail,
    Effect,
    Fail,
    Lane, //
};
use crate::torture::op::Span;
use hmm::{
    Connection,
    EngineOp,
    Errno,
    QueueOp,
    Setting,
    State,
    HUGE_PAGES,
    PAGE_SIZE, //
};

/// Maximum number of pages of a queued copy or fill.
const QUEUED: usize = 32;

impl Lane<'_> {
    pub(super) fn connect(&mut self, dev: usize, which: usize) -> Result<(), Fail> {
        let best = [Connection::None, Connection::Migratable, Connection::Unified][which % 3];
        self.set(dev, Setting::Connection, best as u64)
    }

    /// `EPERM` reports an exclusive entry in the range. Only this lane can have made it, because no
    /// other lane uses the file.
    pub(super) fn check_exclusive(&mut self, dev: usize, at: Span) -> Result<(), Fail> {
        let addr = self.addr(at);
        match self.patiently(|lane| lane.devices[dev].check_exclusive(addr, at.n)) {
            Ok(_) => Ok(()),
            Err(error @ Errno::EPERM)
                if at.pages().any(|page| self.exclusive.contains(&(dev, at.r, page))) =>
            {
                self.expect("check of exclusive access", error, &[error])
            }
            Err(error) => fail("check of exclusive access", error),
        }
    }

    /// Takes a block of device pages out of use, or brings all back.
    pub(super) fn resize(&mut self, dev: usize, block: usize, restore: bool) -> Result<(), Fail> {
        let total = self.device_pages(dev)?;
        if restore {
            return self.restore_memory(dev);
        }
        let first = block * HUGE_PAGES % total.max(1);
        let count = HUGE_PAGES.min(total - first);
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

    /// Brings all device pages back into use.
    pub(super) fn restore_memory(&mut self, dev: usize) -> Result<(), Fail> {
        let total = self.device_pages(dev)?;
        match self.devices[dev].resize(0, total, true) {
            Ok(_) => Ok(()),
            Err(error) => fail("pages back into use", error),
        }
    }

    /// A queue copies or fills memory once the host has signalled a fence. If the fence is
    /// signalled with an error, it must not write anything.
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
        let to = self.addr(at);
        let bytes = at.n * PAGE_SIZE;
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
                return fail("CPU read of words that a queue wrote", mismatch);
            }
        }
        Ok(())
    }

    /// Submits `op` behind a host fence, signals the fence, and waits for `op`.
    fn after_host_fence(&self, dev: usize, op: QueueOp, fails: bool) -> Result<State, Fail> {
        let text = |error: Errno| format!("queued work: {error}");
        let device = &self.devices[dev];
        let queue = device.queue().map_err(text)?;
        let host = device.host_fence().map_err(text)?;
        let work = queue.submit(op, &[&host]).map_err(text)?;
        if work.check().map_err(text)?.state != State::NotDone {
            return fail("queued work", "did not wait for the fence of the host");
        }
        let result = if fails { Err(Errno::ECANCELED) } else { Ok(()) };
        host.signal(result).map_err(text)?;
        Ok(work.sync(None).map_err(text)?.state)
    }

    /// Expected words of `page` after a queue has written all of `at`.
    fn written(&self, at: Span, from: Option<Span>, value: u64, page: usize) -> Vec<u64> {
        match from {
            None => vec![value; hmm::pattern::WORDS],
            Some(from) => self.regions[from.r].shadow(from.page + page - at.page).to_vec(),
        }
    }

    /// After a failed write: accepts, for each word, the old or the new value.
    fn adopt_written(&mut self, at: Span, from: Option<Span>, value: u64) -> Result<(), Fail> {
        for page in at.pages() {
            let new = self.written(at, from, value, page);
            self.adopt_page(at, page, &new)?;
        }
        Ok(())
    }

    /// Reads a page with the CPU and makes the model equal to it. Fails unless each word is that of
    /// the model, or of `new`.
    pub(super) fn adopt_page(&mut self, at: Span, page: usize, new: &[u64]) -> Result<(), Fail> {
        let region = &mut self.regions[at.r];
        let mut found = vec![0; new.len()];
        region.load(page, &mut found);
        let old = region.shadow(page);
        let wrong = (0..new.len()).find(|word| ![old[*word], new[*word]].contains(&found[*word]));
        if let Some(word) = wrong {
            let found = found[word];
            let old = old[word];
            let new = new[word];
            let what =
                format!("page {page} word {word}: {found:#x}, neither {old:#x} nor {new:#x}");
            return fail("write that failed half way", what);
        }
        region.set_shadow(page, &found);
        region.pages[page].missing = false;
        Ok(())
    }
}
