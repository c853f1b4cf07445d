// SPDX-License-Identifier: GPL-2.0
//! Forked processes. Each has the memory of its parent at the time of the fork, and writes only to
//! its own copy.

use super::{
    fail,
    Effect,
    Fail,
    Lane, //
};
use crate::torture::op::{
    Fork,
    Span, //
};
use hmm::child::SIGKILL;
use hmm::engine::Way;
use hmm::{
    pattern,
    Child,
    Device,
    Errno,
    Mapping,
    PAGE_SIZE, //
};
use std::time::Duration;

/// Maximum number of children of a lane.
const MOST: usize = 3;
/// Pause of a child that runs until it is killed, to leave CPU time for other threads.
const PAUSE: Duration = Duration::from_millis(10);
/// Timeout for a child on a slow machine.
const PATIENCE: Duration = Duration::from_secs(3600);

/// A child that runs concurrently with its parent.
#[derive(Debug)]
pub struct Background {
    child: Child,
    how: Fork,
}

impl Background {
    /// Waits for the child, after killing it if its kind requires that, and returns its result.
    fn leave(mut self) -> Result<(), Fail> {
        let killed = self.how == Fork::Killed;
        if killed {
            self.child.signal(SIGKILL);
        }
        self.child.wait_timeout(PATIENCE);
        match self.child.outcome() {
            Err(text) if killed && text == "killed by signal 9" => Ok(()),
            outcome => outcome.or_else(|text| fail(format!("child ({:?})", self.how), text)),
        }
    }
}

impl Lane<'_> {
    pub(super) fn fork(&mut self, how: Fork, dev: usize, at: Span, seed: u64) -> Result<(), Fail> {
        self.reap(false)?;
        self.quiesce(at, Effect::Looks)?;
        let writable: Vec<Span> = self.writable(at);
        for span in writable {
            self.settle(span)?;
        }
        // Other threads run, but hold no lock that the child takes: fork() leaves malloc usable,
        // and lanes do not print.
        let child = Child::spawn(|| match how {
            Fork::Cpu => self.child_cpu(at, seed),
            Fork::Device => self.child_device(dev, at, seed),
            Fork::Killed => self.child_killed(dev, at),
            Fork::Exec => child_exec(dev),
        });
        match child {
            Ok(child) => self.children.push(Background { child, how }),
            Err(error) => self.expect("fork", error, &[Errno::ENOMEM, Errno::EAGAIN])?,
        }
        Ok(())
    }

    fn writable(&self, at: Span) -> Vec<Span> {
        let region = &self.regions[at.r];
        let pages = at.pages().filter(|page| region.allows(*page, true));
        pages.map(|page| Span { page, n: 1, ..at }).collect()
    }

    fn child_cpu(&mut self, at: Span, seed: u64) -> Result<(), Fail> {
        let region = &mut self.regions[at.r];
        for _ in 0..2 {
            for page in at.pages() {
                if region.allows(page, false) {
                    if let Err(mismatch) = region.check(page) {
                        return fail("child's CPU read", mismatch);
                    }
                }
                if region.allows(page, true) {
                    region.fill(page, seed);
                }
            }
        }
        Ok(())
    }

    fn child_device(&mut self, dev: usize, at: Span, seed: u64) -> Result<(), Fail> {
        let device = Device::open(dev as u32).map_err(|error| format!("child's open: {error}"))?;
        for write in [false, true] {
            if self.allowed(at, write).is_err() {
                break;
            }
            let addr = self.addr(at);
            if write {
                let data = pattern::buffer(seed, at.page, at.n);
                self.patiently(|_| device.write(addr, &data))
                    .map_err(|error| format!("child's device write: {error}"))?;
                at.pages().for_each(|page| self.regions[at.r].wrote(page, seed));
            }
            for way in [Way::ToDevice, Way::ToSystem, Way::ToDeviceOrdinary] {
                let mut buffer = vec![0; at.n * PAGE_SIZE];
                self.patiently(|_| device.read(addr, &mut buffer))
                    .map_err(|error| format!("child's device read: {error}"))?;
                if let Err(mismatch) = self.regions[at.r].compare_bytes(at.page, &buffer) {
                    return fail("child's device read", mismatch);
                }
                // A failed migration is no error here.
                let _ = device.migrate(addr, at.n, way);
            }
        }
        for page in at.pages() {
            if self.regions[at.r].allows(page, false) {
                if let Err(mismatch) = self.regions[at.r].check(page) {
                    return fail("child's CPU read", mismatch);
                }
            }
        }
        Ok(())
    }

    fn child_killed(&mut self, dev: usize, at: Span) -> Result<(), Fail> {
        let device = Device::open(dev as u32).map_err(|error| format!("child's open: {error}"))?;
        let readable = self.allowed(at, false).is_ok();
        let addr = self.addr(at);
        loop {
            for way in [Way::ToDevice, Way::ToSystem, Way::ToDeviceOrdinary] {
                // A failed migration is no error here.
                let _ = device.migrate(addr, at.n, way);
                std::thread::sleep(PAUSE);
            }
            if !readable {
                continue;
            }
            // Read memory shared with the parent until SIGKILL arrives.
            let mut buffer = vec![0; at.n * PAGE_SIZE];
            self.patiently(|_| device.read(addr, &mut buffer))
                .map_err(|error| format!("device read of a child to be killed: {error}"))?;
            if let Err(mismatch) = self.regions[at.r].compare_bytes(at.page, &buffer) {
                return fail("device read of a child to be killed", mismatch);
            }
            for page in at.pages() {
                if let Err(mismatch) = self.regions[at.r].check(page) {
                    return fail("CPU read of a child to be killed", mismatch);
                }
            }
        }
    }

    /// Waits for children, oldest first: for all of them if `all`, otherwise until another one can
    /// be started.
    pub(super) fn reap(&mut self, all: bool) -> Result<(), Fail> {
        while !self.children.is_empty() && (all || self.children.len() >= MOST) {
            self.children.remove(0).leave()?;
        }
        Ok(())
    }

    /// Kills the children that run until they are killed.
    pub(super) fn kill_children(&mut self) -> Result<(), Fail> {
        let all = std::mem::take(&mut self.children);
        let (killed, others): (Vec<_>, _) =
            all.into_iter().partition(|background| background.how == Fork::Killed);
        self.children = others;
        killed.into_iter().try_for_each(Background::leave)
    }
}

fn child_exec(dev: usize) -> Result<(), Fail> {
    let number = std::ffi::CString::new(dev.to_string()).map_err(|error| error.to_string())?;
    let words = [c"hmm-stress", c"torture", c"--self-test", &number];
    let mut arguments = words.map(|word| word.as_ptr()).to_vec();
    arguments.push(std::ptr::null());
    // SAFETY: NUL-terminated strings, and an array that ends with a null pointer.
    unsafe { libc::execv(c"/proc/self/exe".as_ptr(), arguments.as_ptr()) };
    fail("exec", Errno::last())
}

/// Main function after exec: accesses and migrates memory of a new address space.
pub fn self_test(dev: u32) -> Result<(), Fail> {
    let text = |error: Errno| format!("self-test: {error}");
    let device = Device::open(dev).map_err(text)?;
    let map = Mapping::anon(8).map_err(text)?;
    map.fill(3);
    let mut buffer = vec![0; map.len()];
    for there in [true, false] {
        // The migration may fail: other processes may use all device memory.
        let moved = if there {
            device.migrate_to_device(map.addr(), &mut buffer)
        } else {
            device.migrate_to_system(map.addr(), map.pages())
        };
        match moved {
            Ok(_) | Err(Errno::ENOMEM | Errno::ENOENT) => {}
            Err(error) => return Err(text(error)),
        }
        device.read(map.addr(), &mut buffer).map_err(text)?;
        pattern::check(3, 0, &buffer).map_err(|mismatch| format!("device read: {mismatch}"))?;
    }
    map.check(3).map_err(|mismatch| format!("CPU read: {mismatch}"))
}
