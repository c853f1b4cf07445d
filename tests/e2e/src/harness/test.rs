// SPDX-License-Identifier: GPL-2.0
//! A test with the drivers and the kind of memory that it supports, and the context of its run.

use super::{
    Outcome,
    Stop,
    What, //
};
use hmm::{
    Counters,
    Device, //
};
use std::path::PathBuf;

/// Driver that serves the device under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// `rust_dmirror`.
    Rust,
    /// The kernel's own `test_hmm`.
    C,
    /// `qemu_gpu`: emulated hardware. It has the ioctls of `test_hmm` and some of our extensions.
    Hw,
}

/// Context of a test: the device and the options.
#[derive(Clone, Debug)]
pub struct Ctx {
    /// Driver that serves the device.
    pub driver: Driver,
    /// Index of the device under test.
    pub device: u32,
    /// Index of a second device of the same kind.
    pub second: u32,
    /// Directory of the module files.
    pub modules: PathBuf,
    /// Rounds of the test that loads and unloads modules.
    pub cycles: u32,
    /// Whether to run tests that the C driver is known to fail.
    pub defects: bool,
}

impl Ctx {
    /// Opens the device under test.
    pub fn open(&self) -> Result<Device, Stop> {
        Device::open(self.device).what("open the device")
    }

    /// Reads the counters, which only our driver has.
    pub fn counters(&self, device: &Device) -> Result<Option<Counters>, Stop> {
        match self.driver {
            Driver::Rust => device.counters().map(Some).what("read the counters"),
            Driver::C | Driver::Hw => Ok(None),
        }
    }

    /// Returns whether the device under test has coherent memory.
    pub fn coherent(&self) -> bool {
        self.device >= 2
    }
}

/// A test and the conditions under which it runs.
#[derive(Clone, Copy)]
pub struct Test {
    /// Group of tests of one subject.
    pub group: &'static str,
    /// Name in the group.
    pub name: &'static str,
    pub(super) run: fn(&Ctx) -> Outcome,
    /// Reason for which the C driver fails it.
    defect: Option<&'static str>,
    /// Reason for which it needs our driver's extensions.
    only_rust: Option<&'static str>,
    /// Whether it also runs on `qemu_gpu`.
    hw: bool,
    /// Whether it runs on `qemu_gpu` only.
    only_hw: bool,
    /// Whether it needs private device memory.
    private: bool,
    /// Whether it has the mock device skip flushes, which causes stale translations.
    pub(super) skips_flushes: bool,
    /// Whether it compares durations of a few percent.
    timed: bool,
    pub(super) seconds: u64,
    pub(super) alarm: Option<&'static str>,
}

impl Test {
    /// A test for every driver and every kind of device memory.
    pub const fn new(group: &'static str, name: &'static str, run: fn(&Ctx) -> Outcome) -> Test {
        let defect = None;
        let only_rust = None;
        let alarm = None;
        let hw = false;
        let only_hw = false;
        let private = false;
        let skips_flushes = false;
        let timed = false;
        let seconds = 60;
        Test {
            group,
            name,
            run,
            defect,
            only_rust,
            hw,
            only_hw,
            private,
            skips_flushes,
            timed,
            seconds,
            alarm,
        }
    }

    /// Marks a test that fails with the C driver, because of the driver or the kernel.
    pub const fn defect(mut self, why: &'static str) -> Test {
        self.defect = Some(why);
        self
    }

    /// Marks a test that needs an extension of our driver.
    pub const fn only_rust(mut self, why: &'static str) -> Test {
        self.only_rust = Some(why);
        self
    }

    /// Marks a test of extensions that both the mock device and `qemu_gpu` have.
    pub const fn hw(mut self) -> Test {
        self.hw = true;
        self
    }

    /// Marks a test of hardware.
    pub const fn only_hw(mut self) -> Test {
        self.only_hw = true;
        self
    }

    /// Marks a test that raises this alarm of the library, at least once.
    pub const fn alarm(mut self, name: &'static str) -> Test {
        self.alarm = Some(name);
        self
    }

    /// Returns whether this driver and this kind of memory have the features that the test needs.
    /// Other tests are not part of the plan.
    pub fn is_for(&self, ctx: &Ctx) -> bool {
        if self.private && ctx.coherent() {
            return false;
        }
        match ctx.driver {
            Driver::Rust => !self.only_hw,
            Driver::Hw => self.hw || self.only_rust.is_none(),
            Driver::C => {
                !self.only_hw && self.only_rust.is_none() && (ctx.defects || self.defect.is_none())
            }
        }
    }

    /// Marks a test of private memory. The CPU accesses coherent memory in place, so nothing
    /// migrates back.
    pub const fn private(mut self) -> Test {
        self.private = true;
        self
    }

    /// Marks a test in which the mock device skips flushes. Its stale translations are expected.
    pub const fn skips_flushes(mut self) -> Test {
        self.skips_flushes = true;
        self.alarm("stale-translation")
    }

    /// Marks a test that compares durations which differ by a few percent. It needs a machine whose
    /// clock counts instructions (QEMU's `-icount`), because any other work on the host would
    /// change the result.
    pub const fn timed(mut self) -> Test {
        self.timed = true;
        self
    }

    /// Returns whether the test compares durations.
    pub const fn is_timed(&self) -> bool {
        self.timed
    }

    /// Sets the time limit, for tests that take longer than a minute.
    pub const fn seconds(mut self, seconds: u64) -> Test {
        self.seconds = seconds;
        self
    }

    /// Returns `group.name`.
    pub fn full_name(&self) -> String {
        format!("{}.{}", self.group, self.name)
    }
}
