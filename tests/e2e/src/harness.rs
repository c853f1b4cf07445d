// SPDX-License-Identifier: GPL-2.0
//! Runs tests in child processes and reports them as TAP.

use hmm::child::Ended;
use hmm::{
    Alarms,
    Child,
    Counters,
    Device,
    Errno, //
};
use std::fmt::{
    self,
    Display, //
};
use std::io::Write;
use std::path::PathBuf;
use std::time::{
    Duration,
    Instant, //
};

/// Reason for which a test ends early.
#[derive(Debug)]
pub enum Stop {
    /// A check failed.
    Fail(String),
    /// The kernel lacks a feature that the test needs.
    Skip(String),
}

/// Prefix by which the child marks a skip in its report.
const SKIP_MARK: &str = "SKIP ";

impl Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Fail(why) => f.write_str(why),
            Stop::Skip(why) => write!(f, "{SKIP_MARK}{why}"),
        }
    }
}

impl<E: std::error::Error> From<E> for Stop {
    fn from(error: E) -> Self {
        Stop::Fail(error.to_string())
    }
}

/// Result of a test.
pub type Outcome = Result<(), Stop>;

/// Adds the name of the failed step to an error.
pub trait What<T> {
    /// Turns an error into a failure that starts with `step`.
    fn what(self, step: &str) -> Result<T, Stop>;
}

impl<T, E: Display> What<T> for Result<T, E> {
    fn what(self, step: &str) -> Result<T, Stop> {
        self.map_err(|error| Stop::Fail(format!("{step}: {error}")))
    }
}

/// Fails the test unless the condition holds.
#[macro_export]
macro_rules! check {
    ($condition:expr, $($why:tt)+) => {
        if !$condition {
            return Err($crate::harness::Stop::Fail(format!($($why)+)));
        }
    };
}

/// Fails the test unless both values are equal.
#[macro_export]
macro_rules! check_eq {
    ($found:expr, $expected:expr, $($what:tt)+) => {{
        let found = &$found;
        let expected = &$expected;
        if found != expected {
            let what = format!($($what)+);
            let why = format!("{what}: found {found:?}, expected {expected:?}");
            return Err($crate::harness::Stop::Fail(why));
        }
    }};
}

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
    run: fn(&Ctx) -> Outcome,
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
    skips_flushes: bool,
    /// Whether it compares durations of a few percent.
    timed: bool,
    seconds: u64,
    alarm: Option<&'static str>,
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

/// Result of a test after its child process has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed(String),
    Skipped(String),
}

fn run_in_child(test: &Test, ctx: &Ctx, scale: u64) -> Verdict {
    let mut child = match Child::spawn(|| {
        // Put helper processes of the test into its process group, so that they are killed with it.
        hmm::child::own_group();
        (test.run)(ctx)?;
        crate::mover::all_read()
    }) {
        Ok(child) => child,
        Err(error) => return Verdict::Failed(format!("fork: {error}")),
    };
    let limit = Duration::from_secs(test.seconds * scale);
    let ended = child.wait_timeout(limit);
    hmm::child::kill_group(child.pid());
    let ended = match ended {
        Some(ended) => ended,
        None => {
            let what = match child.wait_timeout(Duration::from_secs(10)) {
                Some(_) => "no end",
                None => "no end, and SIGKILL does not help: it hangs in the kernel",
            };
            return Verdict::Failed(format!("{what} (limit {} s)", limit.as_secs()));
        }
    };
    match (ended, child.outcome()) {
        (_, Ok(())) => Verdict::Passed,
        (Ended::Exit(_), Err(text)) => match text.strip_prefix(SKIP_MARK) {
            Some(why) => Verdict::Skipped(why.to_string()),
            None => Verdict::Failed(text),
        },
        (Ended::Signal(_), Err(text)) => Verdict::Failed(text),
    }
}

/// Number of device nodes that can exist: two of private and two of coherent memory.
const DEVICES: u32 = 4;

/// Time within which killed processes must free their device memory.
const RELEASE_TIME: Duration = Duration::from_secs(20);

/// Counters of one device that outlive the files of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trace {
    index: u32,
    pages_used: u64,
    /// Sum of all engines since the module was loaded.
    stale_hits: u64,
}

/// Reads the counters of every device that exists.
fn traces() -> Result<Vec<Trace>, String> {
    let mut traces = Vec::new();
    for index in 0..DEVICES {
        let device = match Device::open(index) {
            Ok(device) => device,
            Err(Errno::ENOENT) => continue,
            Err(error) => return Err(format!("open device {index}: {error}")),
        };
        let trace = || -> Result<Trace, Errno> {
            let engines = 0..device.info()?.engines;
            let stale = engines.map(|engine| Ok(device.engine_counters(engine)?.stale_hits));
            let stale_hits = stale.sum::<Result<u64, Errno>>()?;
            Ok(Trace { index, pages_used: device.counters()?.device_pages_used, stale_hits })
        };
        traces.push(trace().map_err(|error| format!("counters of device {index}: {error}"))?);
    }
    Ok(traces)
}

/// Returns the rule that the counters of a device violate after a test, if any. Stale hits are
/// allowed only if the test `skips_flushes`.
fn broken(before: &[Trace], after: &[Trace], skips_flushes: bool) -> Option<String> {
    let indices = |traces: &[Trace]| traces.iter().map(|trace| trace.index).collect::<Vec<_>>();
    let had = indices(before);
    let has = indices(after);
    if had != has {
        return Some(format!("devices {had:?} existed before the test, {has:?} after it"));
    }
    for (before, after) in before.iter().zip(after) {
        // If a counter has decreased, the module was reloaded and the counter began at zero.
        let stale = match after.stale_hits.checked_sub(before.stale_hits) {
            Some(grown) => grown,
            None => after.stale_hits,
        };
        if stale > 0 && !skips_flushes {
            return Some(format!("device {} used {stale} stale translations", after.index));
        }
    }
    let used = after.iter().find(|trace| trace.pages_used > 0)?;
    Some(format!("{} pages of device {} are still in use", used.pages_used, used.index))
}

/// Checks that no device memory stays in use after the processes of a test have exited, and that no
/// device has used a stale translation.
fn leftover(before: &[Trace], test: &Test) -> Result<(), String> {
    let deadline = Instant::now() + RELEASE_TIME;
    loop {
        match broken(before, &traces()?, test.skips_flushes) {
            None => return Ok(()),
            Some(why) if Instant::now() > deadline => return Err(why),
            Some(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Runs `tests`, prints TAP and returns whether none failed.
pub fn run(tests: &[Test], ctx: &Ctx, scale: u64) -> bool {
    let mut totals = [0usize; 3];
    println!("TAP version 13");
    println!("1..{}", tests.len());
    for (index, test) in tests.iter().enumerate() {
        let number = index + 1;
        let name = test.full_name();
        let start = Instant::now();
        let alarms = Alarms::begin(test.alarm);
        let mut verdict = match ctx.driver {
            Driver::Rust => match traces() {
                Ok(before) => match run_in_child(test, ctx, scale) {
                    Verdict::Failed(why) => Verdict::Failed(why),
                    other => leftover(&before, test).map_or_else(Verdict::Failed, |()| other),
                },
                Err(why) => Verdict::Failed(format!("before the test: {why}")),
            },
            Driver::C | Driver::Hw => run_in_child(test, ctx, scale),
        };
        // Alarms of leftovers of the test count as alarms of the test.
        if let (Verdict::Passed, Err(why)) = (&verdict, alarms.end()) {
            verdict = Verdict::Failed(why);
        }
        let millis = start.elapsed().as_millis();
        match &verdict {
            Verdict::Passed => {
                totals[0] += 1;
                println!("ok {number} {name} # {millis} ms");
            }
            Verdict::Failed(why) => {
                totals[1] += 1;
                println!("not ok {number} {name} # {}", why.replace('\n', " | "));
            }
            Verdict::Skipped(why) => {
                totals[2] += 1;
                println!("ok {number} {name} # SKIP {why}");
            }
        }
        let _ = std::io::stdout().flush();
    }
    println!("{} passed, {} failed, {} skipped", totals[0], totals[1], totals[2]);
    totals[1] == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ctx(driver: Driver, device: u32) -> Ctx {
        let modules = PathBuf::new();
        Ctx { driver, device, second: device + 1, modules, cycles: 1, defects: false }
    }

    fn verdict(run: fn(&Ctx) -> Outcome) -> Verdict {
        run_in_child(&Test::new("group", "name", run).seconds(1), &ctx(Driver::C, 0), 1)
    }

    #[test]
    fn every_exit_status_is_distinguished() {
        assert_eq!(verdict(|_| Ok(())), Verdict::Passed);
        assert_eq!(verdict(|_| Err(Stop::Fail("x".into()))), Verdict::Failed("x".into()));
        assert_eq!(verdict(|_| Err(Stop::Skip("y".into()))), Verdict::Skipped("y".into()));
        let checked = verdict(|_| {
            check_eq!(1 + 1, 3, "sum of {}", 1);
            Ok(())
        });
        assert_eq!(checked, Verdict::Failed("sum of 1: found 2, expected 3".into()));
        let late = verdict(|_| {
            std::thread::sleep(Duration::from_secs(30));
            Ok(())
        });
        assert!(matches!(late, Verdict::Failed(why) if why.contains("limit 1 s")));
        let abort = verdict(|_| std::process::abort());
        assert_eq!(abort, Verdict::Failed("killed by signal 6".into()));
    }

    #[test]
    fn every_device_is_checked() {
        let trace = |index, pages_used, stale_hits| Trace { index, pages_used, stale_hits };
        let before = [trace(0, 0, 5), trace(1, 0, 0)];
        let verdict = |after: [Trace; 2], skips| broken(&before, &after, skips);
        assert_eq!(verdict(before, false), None);
        let stale = [trace(0, 0, 5), trace(1, 0, 1)];
        assert!(verdict(stale, false).is_some_and(|why| why.contains("device 1 used 1 stale")));
        assert_eq!(verdict(stale, true), None);
        // After a reload the counter begins at zero.
        assert!(verdict([trace(0, 0, 2), trace(1, 0, 0)], false).is_some());
        assert_eq!(verdict([trace(0, 0, 0), trace(1, 0, 0)], false), None);
        let used = [trace(0, 0, 5), trace(1, 7, 0)];
        assert!(verdict(used, false).is_some_and(|why| why.contains("7 pages of device 1")));
        assert!(broken(&before, &before[..1], false).is_some_and(|why| why.contains("existed")));
    }

    #[test]
    fn plan_omits_tests_of_other_drivers() {
        let test = Test::new("g", "n", |_| Ok(())).defect("stale");
        assert!(!test.is_for(&ctx(Driver::C, 0)));
        assert!(test.is_for(&ctx(Driver::Rust, 0)));
        assert!(test.is_for(&Ctx { defects: true, ..ctx(Driver::C, 0) }));
        let private = Test::new("g", "n", |_| Ok(())).private();
        assert!(private.is_for(&ctx(Driver::Rust, 0)));
        assert!(!private.is_for(&ctx(Driver::Rust, 2)));
        let extended = Test::new("g", "n", |_| Ok(())).only_rust("an extension");
        assert!(extended.is_for(&ctx(Driver::Rust, 0)) && !extended.is_for(&ctx(Driver::C, 0)));
        assert!(!extended.is_for(&ctx(Driver::Hw, 0)) && extended.hw().is_for(&ctx(Driver::Hw, 0)));
        let hardware = Test::new("g", "n", |_| Ok(())).only_hw();
        assert!(hardware.is_for(&ctx(Driver::Hw, 0)) && !hardware.is_for(&ctx(Driver::Rust, 0)));
    }
}
