// SPDX-License-Identifier: GPL-2.0
//! The last part of a run: unplugs a device while all lanes read memory and migrate it to and from
//! that device. No page may be lost. Only operations that need the device may fail, with `ENODEV`.

use super::{
    device::way,
    fail,
    Fail,
    Lane, //
};
use crate::torture::env::Board;
use crate::torture::op::{
    Rights,
    Span,
    REGIONS, //
};
use hmm::engine::checksum;
use hmm::rng::Rng;
use hmm::{
    Command,
    Counters,
    EngineOp,
    Errno,
    Setting,
    PAGE_SIZE, //
};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{
    Duration,
    Instant, //
};

/// Regions that take part: only anonymous memory.
const PARTS: usize = 2;
/// Pages of each region that take part.
const PAGES: usize = 256;
/// Minimum time and number of rounds before the unplug.
const BEFORE: (Duration, u64) = (Duration::from_millis(400), 20);
/// Rounds of each lane after the unplug.
const AFTER: u64 = 30;
/// Maximum number of pages of a round.
const AT_ONCE: usize = 64;

impl Lane<'_> {
    /// Waits until `ready`, updating the heartbeat of the lane. `false` if another lane has failed.
    fn wait_for(&self, ready: impl Fn(&Board) -> bool) -> bool {
        let board = &self.env.board;
        while !ready(board) {
            if self.env.stopped() {
                return false;
            }
            board.beat(self.number).fetch_add(1, SeqCst);
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// Waits for all lanes, unplugs device `gone` during accesses and migrations, and compares all
    /// memory.
    pub fn last_part(&mut self, gone: usize, seed: u64) -> Result<(), Fail> {
        let board = &self.env.board;
        let lanes = self.env.lanes;
        board.rest();
        if !self
            .wait_for(|board| board.resting() == lanes as u64 && board.alone().load(SeqCst) != 0)
        {
            return Ok(());
        }
        if self.number == 0 {
            self.calm()?;
            board.calm().store(1, SeqCst);
        }
        if !self.wait_for(|board| board.calm().load(SeqCst) != 0) {
            return Ok(());
        }
        self.note("last part");
        self.prepare(seed)?;
        let begin = Instant::now();
        let mut rng = Rng::new(seed, self.number as u64);
        let mut rounds = 0;
        let mut after = 0;
        while after < AFTER {
            if self.env.stopped() {
                return Ok(());
            }
            board.beat(self.number).fetch_add(1, SeqCst);
            let is_time = rounds >= BEFORE.1 && begin.elapsed() > BEFORE.0;
            if self.number + 1 == lanes && is_time && after == 0 {
                self.unplug(gone)?;
            }
            self.round(gone, &mut rng)?;
            rounds += 1;
            after += u64::from(board.unplugged().load(SeqCst) == 2);
        }
        self.compare_all(gone)
    }

    /// Disables injected copy failures and delays.
    fn calm(&mut self) -> Result<(), Fail> {
        for device in &self.devices {
            for (what, value) in
                [(Setting::CopyFail, u64::MAX), (Setting::CopyDelay, 0), (Setting::FlushDelay, 0)]
            {
                device.set(what, value).map_err(|error| format!("setting: {error}"))?;
            }
        }
        Ok(())
    }

    /// Gives the memory defined contents and default attributes.
    fn prepare(&mut self, seed: u64) -> Result<(), Fail> {
        for dev in 0..self.devices.len() {
            self.reopen(dev)?;
        }
        for (r, (_, pages)) in REGIONS.iter().enumerate().take(PARTS) {
            let all = Span { r, page: 0, n: *pages };
            self.map_again(all)?;
            self.protect(all, Rights::Write)?;
            self.lock(all, false)?;
            self.cpu_write(Span { r, page: 0, n: PAGES }, seed ^ self.number as u64)?;
        }
        Ok(())
    }

    fn unplug(&mut self, gone: usize) -> Result<(), Fail> {
        let board = &self.env.board;
        board.unplugged().store(1, SeqCst);
        let (saved, lost) =
            self.devices[gone].unplug(0, 0).map_err(|error| format!("unplug: {error}"))?;
        let used = self.devices[gone].counters().map(|counters| counters.device_pages_used);
        board.unplugged().store(2, SeqCst);
        *self.counts.entry("  pages saved by the unplug".into()).or_default() += saved;
        match (lost, used) {
            (0, Ok(0)) => Ok(()),
            found => fail("unplug", format!("pages lost, and in use afterwards: {found:?}")),
        }
    }

    /// Executes `attempt`, which may use device `gone`. Returns `None` for ENODEV after the unplug.
    /// With `strict`, the attempt must fail once the device is unplugged.
    fn on<T>(
        &mut self,
        what: &str,
        strict: bool,
        attempt: impl FnOnce(&Self) -> Result<T, Errno>,
    ) -> Result<Option<T>, Fail> {
        let before = self.env.board.unplugged().load(SeqCst);
        match attempt(self) {
            Ok(_) if strict && before == 2 => fail(what, "succeeded on a removed device"),
            Ok(done) => Ok(Some(done)),
            Err(Errno::ENODEV) if self.env.board.unplugged().load(SeqCst) != 0 => {
                self.note(format!("  {what}: ENODEV after the unplug"));
                Ok(None)
            }
            Err(error @ (Errno::EBUSY | Errno::ENOMEM)) => {
                self.expect(what, error, &[error]).map(|()| None)
            }
            Err(error) => fail(what, error),
        }
    }

    /// One access or migration, on the unplugged device or on another one.
    fn round(&mut self, gone: usize, rng: &mut Rng) -> Result<(), Fail> {
        let n = 1 + rng.below(AT_ONCE);
        let at = Span { r: rng.below(PARTS), page: rng.below(PAGES - n + 1), n };
        let other = (gone + 1) % self.devices.len();
        let dev = if rng.one_in(4) { other } else { gone };
        let is_gone = dev == gone;
        let addr = self.addr(at);
        let way = way(rng.one_in(3), rng.one_in(3));
        match rng.below(8) {
            0..3 => {
                let done = self.on("migration", is_gone, |lane| {
                    lane.devices[dev].migrate(addr, n, way).map(|done| done.moved)
                })?;
                *self.counts.entry("  pages moved at last".into()).or_default() +=
                    done.unwrap_or(0);
            }
            3 => {
                let mut buffer = vec![0; n * PAGE_SIZE];
                let read = self
                    .on("device read", is_gone, |lane| lane.devices[dev].read(addr, &mut buffer))?;
                if read.is_some() {
                    self.compare(at, &buffer, "device read at last")?;
                }
            }
            4 => {
                let command = Command::new(EngineOp::Checksum, addr, n * PAGE_SIZE);
                let found = self.on("engine", is_gone, |lane| {
                    let ended = lane.run(dev, command)?;
                    ended.error.map_or(Ok(ended.status.result), Err)
                })?;
                let words = at.pages().flat_map(|page| self.regions[at.r].shadow(page).to_vec());
                let expected = checksum(words);
                if found.is_some_and(|found| found != expected) {
                    return fail("engine at last", format!("{found:x?}, expected {expected:#x}"));
                }
            }
            5 if other != gone => {
                let (to, from) = if is_gone { (gone, other) } else { (other, gone) };
                self.on("pull", to == gone, |lane| {
                    lane.devices[to].pull(addr, n, &lane.devices[from]).map(|done| done.moved)
                })?;
            }
            6 => {
                let map = &self.env.narrow.map;
                self.on("migration of common pages", is_gone, |lane| {
                    lane.devices[dev].migrate(map.addr(), map.pages(), way).map(|done| done.moved)
                })?;
                self.common_add(rng.one_in(2), 0, 1)?;
            }
            _ => self.cpu_read(at)?,
        }
        Ok(())
    }

    /// Reads all memory with the CPU and the remaining devices. No page may be on the unplugged
    /// one.
    fn compare_all(&mut self, gone: usize) -> Result<(), Fail> {
        for dev in (0..self.devices.len()).filter(|dev| *dev != gone) {
            for r in 0..PARTS {
                let at = Span { r, page: 0, n: PAGES };
                let addr = self.addr(at);
                let mut buffer = vec![0; PAGES * PAGE_SIZE];
                match self.patiently(|lane| lane.devices[dev].read(addr, &mut buffer)) {
                    Ok(_) => self.compare(at, &buffer, "device read after an unplug")?,
                    Err(error) => return fail("device read after an unplug", error),
                }
            }
        }
        self.read_all()?;
        self.evict_all(Some(gone))?;
        self.read_all()?;
        self.no_stale()?;
        let used = |counters: Counters| counters.device_pages_used;
        match self.devices[gone].counters().map(used) {
            Ok(0) => Ok(()),
            found => fail("pages in use on a device that was unplugged", format!("{found:?}")),
        }
    }
}
