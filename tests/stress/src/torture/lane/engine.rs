// SPDX-License-Identifier: GPL-2.0
//! Engine commands, synchronous and in the background.

use super::{
    fail,
    Effect,
    Fail,
    Lane,
    Running, //
};
use crate::torture::op::{
    Op,
    Span,
    Work, //
};
use hmm::engine::checksum;
use hmm::pattern::WORDS;
use hmm::{
    Command,
    EngineOp,
    Errno,
    PAGE_SIZE, //
};
use std::time::Duration;

/// Maximum number of commands in flight for each lane.
const IN_FLIGHT: usize = 4;

fn sum<'a>(words: impl IntoIterator<Item = &'a u64>) -> u64 {
    words.into_iter().fold(0, |sum: u64, word| sum.wrapping_add(*word))
}

/// Applies a command to the words of the model, and returns its result.
fn model(work: Work, words: &mut [u64], from: &[u64], value: u64, step: usize) -> u64 {
    match work {
        Work::Read => sum(words.iter()),
        Work::Checksum => checksum(words.iter().copied()),
        Work::Strided => sum(words.iter().step_by(step)),
        Work::Write => {
            for (n, word) in words.iter_mut().enumerate() {
                *word = value.wrapping_add(n as u64);
            }
            0
        }
        Work::Fill => {
            words.fill(value);
            0
        }
        Work::Copy => {
            words.copy_from_slice(from);
            0
        }
        Work::Add | Work::Chase => 0,
    }
}

impl Lane<'_> {
    /// Executes a command of one round and waits for it.
    pub(super) fn engine(&mut self, op: &Op) -> Result<(), Fail> {
        let Op::Engine { dev, engine, work, at, skip, from, value, stride } = *op else {
            return Ok(());
        };
        let writes =
            matches!(work, Work::Write | Work::Fill | Work::Add | Work::Copy | Work::Chase);
        if work == Work::Copy
            && from.r == at.r
            && from.page < at.page + at.n
            && at.page < from.page + from.n
        {
            return Ok(());
        }
        // As for other device writes: if a page denies the write, write only that page.
        let (at, mut good) = match self.allowed(at, writes) {
            Err(page) if writes => (Span { page, n: 1, ..at }, false),
            result => (at, result.is_ok()),
        };
        // Start at word `skip`, so that ranges begin and end at any word.
        let skip = if at.n > 1 { skip } else { skip % (WORDS / 2) };
        let count = at.n * WORDS - skip - skip % 7;
        // A stride may skip whole pages.
        let step = if work == Work::Strided { stride / 8 } else { 1 };
        let met: Vec<Span> = at
            .pages()
            .filter(|page| {
                let first = ((page - at.page) * WORDS).max(skip);
                let end = ((page - at.page + 1) * WORDS).min(skip + count);
                skip + (first - skip).div_ceil(step) * step < end
            })
            .map(|page| Span { page, n: 1, ..at })
            .collect();
        if work == Work::Strided {
            good = met.iter().all(|at| self.allowed(*at, false).is_ok());
        }
        if work == Work::Chase && !good {
            // Skipped: the command would follow arbitrary words as pointers.
            return Ok(());
        }
        let from = Span { n: at.n, ..from };
        if work == Work::Copy {
            if self.allowed(from, false).is_err() {
                // The copy could write a part before it fails: execute it only if writes fail, too.
                good = false;
            }
            if !good && self.allowed(at, true).is_ok() {
                return Ok(());
            }
            self.quiesce(from, Effect::Looks)?;
            self.settle(from)?;
        }
        self.quiesce(at, if writes { Effect::Changes } else { Effect::Looks })?;
        self.settle(at)?;
        if work == Work::Add && good {
            return self.add_once(dev, engine, at, value, stride);
        }
        if work == Work::Chase && good {
            return self.chase(dev, engine, at);
        }

        let first = at.page * WORDS + skip;
        let map = &self.regions[at.r].map;
        let command = Command::new(code(work), map.addr() + first * 8, count * 8)
            .engine(self.engine_of(dev, engine));
        let command = match work {
            Work::Strided | Work::Add => {
                command.stride(stride).value(value * u64::from(work == Work::Add))
            }
            Work::Copy => command.from(self.addr(from) + skip * 8),
            Work::Write | Work::Fill => command.value(value),
            _ => command,
        };
        let ended = self.patiently(|lane| {
            let ended = lane.run(dev, command)?;
            ended.error.map_or(Ok(ended), Err)
        });
        let ended = match ended {
            Ok(_) if !good => {
                return fail("engine", format!("{work:?} succeeded without permission"))
            }
            Ok(ended) => ended,
            Err(Errno::EFAULT) if good && self.may_miss(at) => {
                self.note("  engine: EFAULT for userfaultfd");
                let mut new: Vec<u64> =
                    at.pages().flat_map(|page| self.regions[at.r].shadow(page).to_vec()).collect();
                let source = self.source_words(work, from, skip, count);
                model(work, &mut new[skip..skip + count], &source, value, stride / 8);
                return self.adopt(at, &new);
            }
            Err(error) if good => return fail("engine", format!("{work:?}: {error}")),
            // A copy that may not read fails before its first write.
            Err(error) if work == Work::Copy && self.denied(from, false) == Some(error) => {
                return self.expect("engine", error, &[error])
            }
            Err(error) => return self.expect_denied("engine", error, at, writes),
        };
        let source = self.source_words(work, from, skip, count);
        let words = &mut self.regions[at.r].words()[first..first + count];
        let result = model(work, words, &source, value, stride / 8);
        if !writes && ended.status.result != result {
            let found = ended.status.result;
            let why = self.explain(at);
            return fail("engine", format!("{work:?} gives {found:#x}, expected {result:#x}{why}"));
        }
        met.into_iter().for_each(|at| self.touched(at));
        if work == Work::Copy {
            self.touched(from);
        }
        Ok(())
    }

    fn engine_of(&self, dev: usize, engine: u32) -> u32 {
        let engines = self.devices[dev].info().map_or(1, |info| info.engines);
        if engine >= engines {
            Command::ANY
        } else {
            engine
        }
    }

    /// The words of the model that a copy reads.
    fn source_words(&mut self, work: Work, from: Span, skip: usize, count: usize) -> Vec<u64> {
        if work != Work::Copy {
            return Vec::new();
        }
        let start = from.page * WORDS + skip;
        self.regions[from.r].words()[start..start + count].to_vec()
    }

    /// After a command that failed at a missing page: accepts, for each word, the model or `new`,
    /// the value that the command would have written.
    fn adopt(&mut self, at: Span, new: &[u64]) -> Result<(), Fail> {
        for (page, new) in at.pages().zip(new.chunks_exact(WORDS)) {
            if self.regions[at.r].allows(page, false) {
                self.adopt_page(at, page, new)?;
            }
        }
        Ok(())
    }

    /// Executes one round of additions. If it fails, it cannot be repeated: each word may or may
    /// not have the addition.
    fn add_once(
        &mut self,
        dev: usize,
        engine: u32,
        at: Span,
        value: u64,
        stride: usize,
    ) -> Result<(), Fail> {
        let command = Command::new(EngineOp::AtomicAdd, self.addr(at), at.n * PAGE_SIZE);
        let command = command.value(value).stride(stride).engine(self.engine_of(dev, engine));
        let ended = match self.patiently(|lane| lane.run(dev, command)) {
            Ok(ended) => ended,
            Err(error) => return fail("engine", format!("Add: {error}")),
        };
        if let Some(error) = ended.error {
            let missing = error == Errno::EFAULT && self.may_miss(at);
            if error != Errno::EBUSY && !missing && !self.excused() {
                return fail("engine", format!("Add: {error}"));
            }
            self.note(format!("  engine: Add: {error}"));
        }
        self.adopt_additions(
            at,
            value,
            stride / 8,
            ended.error.map_or(1, |_| 0),
            ended.error.is_some(),
        )
    }

    /// Compares a range to which an engine has added `value` `rounds` times. If `partly`, a further
    /// round was interrupted: a prefix of the range has one addition more. Makes the model equal to
    /// the range.
    fn adopt_additions(
        &mut self,
        at: Span,
        value: u64,
        step: usize,
        rounds: u64,
        partly: bool,
    ) -> Result<(), Fail> {
        let region = &mut self.regions[at.r];
        let mut found = [0; WORDS];
        let mut more = partly;
        for page in at.pages() {
            region.load(page, &mut found);
            for (word, found) in found.iter().enumerate() {
                let added = found.wrapping_sub(region.shadow(page)[word]);
                let counts = ((page - at.page) * WORDS + word) % step == 0;
                let whole = if counts { rounds.wrapping_mul(value) } else { 0 };
                let again = counts && more && added == whole.wrapping_add(value);
                if added != whole && !again {
                    return fail(
                        "additions of an engine",
                        format!("page {page} word {word}: {added} more, {rounds} times {value} expected"),
                    );
                }
                // The interrupted round ended at the first word without its addition.
                more = if counts { again } else { more };
            }
            region.set_shadow(page, &found);
            region.pages[page].missing = false;
        }
        Ok(())
    }

    /// Writes a ring of pointers through the pages, and makes an engine follow it.
    fn chase(&mut self, dev: usize, engine: u32, at: Span) -> Result<(), Fail> {
        let step = 7usize;
        // Choose a step that is coprime to the number of pages, so that the ring visits all of
        // them.
        let step = if at.n % step == 0 { 1 } else { step };
        for index in 0..at.n {
            let page = at.page + index;
            let next = at.page + (index + step) % at.n;
            let region = &mut self.regions[at.r];
            let pointer = region.map.page_addr(next) as u64;
            region.map.set(page, 0, pointer);
            region.words()[page * WORDS] = pointer;
            region.pages[page].missing = false;
        }
        let start = self.addr(at);
        let command =
            Command::new(EngineOp::Chase, start, at.n * 8).engine(self.engine_of(dev, engine));
        match self.patiently(|lane| {
            let ended = lane.run(dev, command)?;
            ended.error.map_or(Ok(ended.status.result), Err)
        }) {
            Ok(end) if end == start as u64 => Ok(()),
            Ok(end) => fail("engine", format!("Chase ends at {end:#x}, expected {start:#x}")),
            Err(error) => fail("engine", format!("Chase: {error}")),
        }
    }

    /// Submits a command that computes the checksum of the range in a loop and compares it, until
    /// it is stopped.
    pub(super) fn watch(&mut self, dev: usize, at: Span) -> Result<(), Fail> {
        if self.allowed(at, false).is_err() || self.may_miss(at) {
            return Ok(());
        }
        self.quiesce(at, Effect::Looks)?;
        self.settle(at)?;
        let words = at.pages().flat_map(|page| self.regions[at.r].shadow(page).iter().copied());
        let sum = checksum(words);
        let command = Command::new(EngineOp::Checksum, self.addr(at), at.n * PAGE_SIZE);
        let command = command.rounds(0).engine(Command::ANY).think(rest(at)).verify(sum);
        self.submit(dev, at, command, None)
    }

    /// Submits a command that adds to a word of each page in a loop, until it is stopped.
    pub(super) fn count(&mut self, dev: usize, at: Span, value: u64) -> Result<(), Fail> {
        let at = Span { n: at.n.min(32), ..at };
        if self.allowed(at, true).is_err() || self.may_miss(at) {
            return Ok(());
        }
        self.quiesce(at, Effect::Changes)?;
        self.settle(at)?;
        let command = Command::new(EngineOp::AtomicAdd, self.addr(at), at.n * PAGE_SIZE);
        let command = command.value(value).stride(PAGE_SIZE).rounds(0);
        let command = command.engine(Command::ANY).think(rest(at));
        self.submit(dev, at, command, Some(value))
    }

    fn submit(
        &mut self,
        dev: usize,
        at: Span,
        command: Command,
        adds: Option<u64>,
    ) -> Result<(), Fail> {
        while self.running.len() >= IN_FLIGHT {
            let oldest = self.running[0].id;
            let of = self.running[0].dev;
            self.finish_commands(|running| running.id == oldest && running.dev == of)?;
        }
        let failures = self.failures().map_err(|error| format!("counters: {error}"))?;
        // The other lanes have commands in flight, too.
        match self.devices[dev].submit(command).map(|job| job.id()) {
            Ok(id) => self.running.push(Running { dev, id, at, adds, failures }),
            Err(error) => self.expect("submit", error, &[Errno::EBUSY])?,
        }
        Ok(())
    }

    /// Stops the selected commands in flight, and compares their results with the model.
    pub(super) fn finish_commands(&mut self, which: impl Fn(&Running) -> bool) -> Result<(), Fail> {
        while let Some(index) = self.running.iter().position(&which) {
            let running = self.running.swap_remove(index);
            let job = self.devices[running.dev].job(running.id);
            let ended = job.stop().and_then(|()| job.wait_for(Duration::MAX));
            let ended = ended.map_err(|error| format!("wait for a command: {error}"))?;
            let rounds = ended.status.rounds;
            *self.counts.entry("  rounds of commands in flight".to_string()).or_default() += rounds;
            match ended.error {
                None => {}
                Some(Errno::EBUSY) => self.note("  command in flight: EBUSY"),
                // Do not use excused(): an operation that failed in the meantime has already
                // consumed the failure.
                Some(error) if self.failures().is_ok_and(|now| now > running.failures) => {
                    self.note(format!("  command in flight: {error}, injected"))
                }
                Some(error) => {
                    let kind = if running.adds.is_some() { "additions" } else { "reads" };
                    return fail(
                        format!("engine's {kind} in flight of {:?}", running.at),
                        format!("{error} after {rounds} rounds"),
                    );
                }
            }
            if let Some(value) = running.adds {
                self.adopt_additions(running.at, value, WORDS, rounds, true)?;
            }
        }
        Ok(())
    }
}

/// Pause after each round of a command in flight. Only a few commands run without a pause, because
/// engines would otherwise starve the other threads.
fn rest(at: Span) -> Duration {
    Duration::from_micros(if at.page % 64 == 7 { 0 } else { 5000 })
}

fn code(work: Work) -> EngineOp {
    match work {
        Work::Read => EngineOp::Read,
        Work::Write => EngineOp::Write,
        Work::Fill => EngineOp::Fill,
        Work::Add => EngineOp::AtomicAdd,
        Work::Copy => EngineOp::Memcpy,
        Work::Checksum => EngineOp::Checksum,
        Work::Strided => EngineOp::Strided,
        Work::Chase => EngineOp::Chase,
    }
}
