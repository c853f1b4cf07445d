// SPDX-License-Identifier: GPL-2.0
//! Synchronous ioctls of a device.

use super::{
    fail,
    Effect,
    Fail,
    Lane, //
};
use crate::torture::op::{
    Kind,
    Span, //
};
use hmm::engine::Way;
use hmm::{
    pattern,
    Device,
    Errno,
    PageOutcome,
    PageState,
    Setting,
    PAGE_SIZE, //
};
use std::time::Duration;

/// Maximum number of attempts to evict all pages from a device.
const EVICTIONS: usize = 300;

/// Direction and kind of a migration.
pub fn way(back: bool, ordinary: bool) -> Way {
    if back { Way::ToSystem } else { Way::ToDevice }.faultless(!ordinary)
}

impl Lane<'_> {
    pub(super) fn dev_write(&mut self, dev: usize, at: Span, seed: u64) -> Result<(), Fail> {
        // If a page denies the write, write only that page: whether pages before it would be
        // written is undefined.
        let (at, good) = match self.allowed(at, true) {
            Ok(()) => (at, true),
            Err(page) => (Span { page, n: 1, ..at }, false),
        };
        self.quiesce(at, Effect::Changes)?;
        let data = pattern::buffer(seed, at.page, at.n);
        let addr = self.addr(at);
        match self.patiently(|lane| lane.devices[dev].write(addr, &data)) {
            Ok(done) if good => {
                if done.cpages != at.n as u64 {
                    return fail("device write", format!("{} of {} pages", done.cpages, at.n));
                }
                for page in at.pages() {
                    self.regions[at.r].wrote(page, seed);
                }
                Ok(())
            }
            Ok(_) => {
                fail("device write", format!("succeeded without permission: page {}", at.page))
            }
            Err(Errno::EFAULT) if good && self.may_miss(at) => self.adopt_fills(at, seed),
            Err(error) if good => fail("device write", error),
            Err(error) => self.expect_denied("device write", error, at, true),
        }
    }

    /// After a device write that failed at a missing page: accepts the old or the new contents for
    /// each page.
    fn adopt_fills(&mut self, at: Span, seed: u64) -> Result<(), Fail> {
        self.note("  device write: EFAULT for userfaultfd");
        for page in at.pages() {
            let region = &mut self.regions[at.r];
            if region.check(page).is_err() {
                region.wrote(page, seed);
                if let Err(mismatch) = region.check(page) {
                    return fail("CPU read after a device write that failed", mismatch);
                }
            }
            region.pages[page].missing = false;
        }
        Ok(())
    }

    pub(super) fn dev_read(&mut self, dev: usize, at: Span, unlocked: bool) -> Result<(), Fail> {
        self.quiesce(at, Effect::Looks)?;
        let good = self.allowed(at, false).is_ok();
        let mut buffer = vec![0xa5; at.n * PAGE_SIZE];
        let addr = self.addr(at);
        let result = self.patiently(|lane| {
            if unlocked {
                lane.devices[dev].read_unlocked(addr, &mut buffer)
            } else {
                lane.devices[dev].read(addr, &mut buffer)
            }
        });
        match result {
            Ok(done) if good => {
                if done.cpages != at.n as u64 {
                    return fail("device read", format!("{} of {} pages", done.cpages, at.n));
                }
                self.compare(at, &buffer, "device read")?;
                self.touched(at);
                Ok(())
            }
            Ok(_) => fail("device read", "succeeded without permission"),
            Err(Errno::EFAULT) if good && self.may_miss(at) => {
                self.note("  device read: EFAULT for userfaultfd");
                Ok(())
            }
            Err(error) if good => fail("device read", error),
            Err(error) => self.expect_denied("device read", error, at, false),
        }
    }

    /// Records that the userfaultfd handler has filled the range.
    pub(super) fn touched(&mut self, at: Span) {
        for page in at.pages() {
            self.regions[at.r].pages[page].missing = false;
        }
    }

    pub(super) fn compare(&self, at: Span, bytes: &[u8], what: &str) -> Result<(), Fail> {
        let region = &self.regions[at.r];
        match region.compare_bytes(at.page, bytes) {
            Ok(()) => Ok(()),
            Err(mismatch) => fail(format!("{what} of {:?} memory", region.kind), mismatch),
        }
    }

    pub(super) fn exclusive(&mut self, dev: usize, at: Span) -> Result<(), Fail> {
        self.quiesce(at, Effect::Looks)?;
        // Exclusive access faults pages in for writing.
        self.settle(at)?;
        let at = Span { n: at.n.min(64), ..at };
        let mut buffer = vec![0xa5; at.n * PAGE_SIZE];
        let addr = self.addr(at);
        let writable = self.allowed(at, true).is_ok();
        // If one page fails, the pages before it stay exclusive.
        self.exclusive.extend(at.pages().map(|page| (dev, at.r, page)));
        match self.patiently(|lane| lane.devices[dev].exclusive(addr, &mut buffer)) {
            Ok(_) if !writable => fail("exclusive", "succeeded without permission"),
            Ok(_) => self.compare(at, &buffer, "exclusive read"),
            // Making a page exclusive cannot wait for the userfaultfd handler.
            Err(error @ Errno::EFAULT) if !writable || self.may_miss(at) => {
                self.expect("exclusive", error, &[error])
            }
            Err(Errno::EOPNOTSUPP)
                if !matches!(self.regions[at.r].kind, Kind::Anon | Kind::Huge) =>
            {
                self.note("  exclusive: EOPNOTSUPP");
                Ok(())
            }
            // ENOENT: another agent removed the exclusive entry before the page was read.
            Err(error) => {
                self.expect("exclusive", error, &[Errno::ENOENT, Errno::ENOMEM, Errno::EBUSY])
            }
        }
    }

    pub(super) fn snapshot(&mut self, dev: usize, at: Span) -> Result<(), Fail> {
        let addr = self.addr(at);
        match self.patiently(|lane| lane.devices[dev].snapshot(addr, at.n)) {
            Ok(states) => {
                if let Some(page) = self.stray(at, &states) {
                    return fail("snapshot", format!("page {page} is locked, and on the device"));
                }
                for (page, state) in at.pages().zip(states) {
                    let region = &self.regions[at.r];
                    if state == PageState::ERROR && region.allows(page, false) {
                        return fail("snapshot", format!("page {page} cannot be accessed"));
                    }
                    if state.is_writable() && !region.allows(page, true) {
                        return fail("snapshot", format!("page {page} is writable: {state:?}"));
                    }
                }
                Ok(())
            }
            Err(error) => self.expect_denied("snapshot", error, at, false),
        }
    }

    pub(super) fn move_there(&mut self, dev: usize, at: Span) -> Result<(), Fail> {
        self.quiesce(at, Effect::Looks)?;
        let mut buffer = vec![0xa5; at.n * PAGE_SIZE];
        let addr = self.addr(at);
        match self.patiently(|lane| lane.devices[dev].migrate_to_device(addr, &mut buffer)) {
            Ok(_) if self.refuses_to_move(at) => {
                fail("migration to the device", "succeeded although memory cannot migrate")
            }
            Ok(_) => {
                self.compare(at, &buffer, "read after migration")?;
                match self.held_pages(at) {
                    0 => Ok(()),
                    // Locked pages were read without a migration.
                    _ => self.snapshot(dev, at),
                }
            }
            // ENOENT: a page was not migrated.
            Err(error @ Errno::ENOENT) if !self.refuses_to_move(at) => {
                self.expect("migration to the device", error, &[error])
            }
            Err(error) => self.expect_move("migration to the device", error, at),
        }
    }

    pub(super) fn move_back(&mut self, dev: usize, at: Span) -> Result<(), Fail> {
        match self.devices[dev].migrate_to_system(self.addr(at), at.n) {
            Ok(_) => self.moved_rightly("migration to the system", at),
            Err(error) => self.expect_move("migration to the system", error, at),
        }
    }

    pub(super) fn migrate(
        &mut self,
        dev: usize,
        at: Span,
        way: Way,
        outcomes: bool,
    ) -> Result<(), Fail> {
        let addr = self.addr(at);
        let result = if outcomes {
            self.devices[dev].migrate_pages(addr, at.n, way)
        } else {
            self.devices[dev].migrate(addr, at.n, way).map(|done| (done, Vec::new()))
        };
        let (done, pages) = match result {
            Ok(done) => done,
            Err(error) => return self.expect_move("migration", error, at),
        };
        self.moved_rightly("migration", at)?;
        if done.moved > 0 && self.regions[at.r].is_hugetlb {
            return fail("migration", "hugetlb memory has moved");
        }
        *self.counts.entry("  pages moved".to_string()).or_default() += done.moved;
        *self.counts.entry("  pages switched".to_string()).or_default() += done.switched;
        if outcomes {
            let count =
                |of: &[PageOutcome]| pages.iter().filter(|page| of.contains(page)).count() as u64;
            let moved = count(&[PageOutcome::Moved, PageOutcome::Switched, PageOutcome::Lost]);
            let reported = [moved, count(&[PageOutcome::Switched]), count(&[PageOutcome::Unknown])];
            if reported != [done.moved, done.switched, 0] {
                return fail("outcomes of a migration", format!("{reported:?} of {done:?}"));
            }
        }
        let held = self.held_pages(at);
        if done.moved > (at.n - held) as u64 {
            let why = format!("{} of {} pages moved, {held} are locked", done.moved, at.n);
            return fail("migration", why);
        }
        Ok(())
    }

    pub(super) fn discard(&mut self, dev: usize, at: Span) -> Result<(), Fail> {
        match self.devices[dev].discard(self.addr(at), at.n) {
            Ok(()) => Ok(()),
            Err(error) => fail("discard", error),
        }
    }

    pub(super) fn release(&mut self, dev: usize) -> Result<(), Fail> {
        match self.devices[dev].release() {
            Ok(_) => Ok(()),
            // Other lanes allocate pages concurrently.
            Err(error) => self.expect("release", error, &[Errno::EBUSY, Errno::ENOMEM]),
        }
    }

    /// Evicts everything from a device until none of `pages` pages from `addr` on is in its memory.
    /// No other agent uses this range, so that only transient conditions can prevent that: a
    /// temporary reference, or an injected copy failure.
    pub(super) fn evict(&mut self, dev: usize, addr: usize, pages: usize) -> Result<(), Fail> {
        let mut left = 0;
        for round in 0..EVICTIONS {
            let states = self.patiently(|lane| lane.devices[dev].snapshot(addr, pages));
            let states = states.map_err(|error| format!("snapshot before an eviction: {error}"))?;
            left = states.iter().filter(|state| state.is_local()).count();
            if left == 0 {
                return Ok(());
            }
            if round > 0 {
                self.note("  evicted again");
                std::thread::sleep(Duration::from_millis(10));
            }
            self.release(dev)?;
        }
        fail("eviction", format!("{left} of {pages} pages stay on device {dev}"))
    }

    /// Evicts all memory of the lane from the devices, except from an unplugged one.
    pub(super) fn evict_all(&mut self, gone: Option<usize>) -> Result<(), Fail> {
        for r in 0..self.regions.len() {
            let region = &self.regions[r];
            let pages: Vec<usize> =
                (0..region.pages.len()).filter(|page| region.allows(*page, false)).collect();
            let runs: Vec<(usize, usize)> = pages
                .chunk_by(|page, next| page + 1 == *next)
                .map(|run| (region.map.page_addr(run[0]), run.len()))
                .collect();
            for dev in (0..self.devices.len()).filter(|dev| Some(*dev) != gone) {
                for (addr, pages) in &runs {
                    self.evict(dev, *addr, *pages)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn fail_alloc(&mut self, dev: usize) -> Result<(), Fail> {
        match self.devices[dev].set_flags(hmm::abi::FLAG_FAIL_ALLOC) {
            Ok(_) => Ok(()),
            Err(error) => fail("flags", error),
        }
    }

    pub(super) fn set(&mut self, dev: usize, what: Setting, value: u64) -> Result<(), Fail> {
        match self.devices[dev].set(what, value) {
            Ok(_) => Ok(()),
            Err(error) => fail("setting", error),
        }
    }

    /// Injects a copy failure. Each excuses one bus error or one failed blit.
    pub(super) fn copy_fail(&mut self, dev: usize, after: u64) -> Result<(), Fail> {
        let board = &self.env.board;
        // Before the failure is set, because a copy may fail immediately.
        board.arm();
        match self.devices[dev].set(Setting::CopyFail, after) {
            Ok(u64::MAX) => Ok(()),
            // It replaces a failure that has not occurred yet.
            Ok(_) => {
                board.disarm();
                Ok(())
            }
            Err(error) => fail("setting", error),
        }
    }

    /// Closes a device, with commands in flight and locks held, and opens it again.
    pub(super) fn reopen(&mut self, dev: usize) -> Result<(), Fail> {
        self.held.retain(|held| held.dev != dev);
        self.exclusive.retain(|(of, _, _)| *of != dev);
        self.seen.forget(dev);
        // End `Count` commands first, because the model needs to know how far they got. `Watch`
        // commands end with the file.
        self.finish_commands(|running| running.dev == dev && running.adds.is_some())?;
        self.running.retain(|running| running.dev != dev);
        let device = Device::open(dev as u32).map_err(|error| format!("open: {error}"))?;
        let old = std::mem::replace(&mut self.devices[dev], device);
        // Counters of the file restart at 0, those of the device do not.
        old.close().map_err(|error| format!("close: {error}"))
    }
}
