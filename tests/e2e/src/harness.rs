// SPDX-License-Identifier: GPL-2.0
//! Runs tests in child processes and reports them as TAP.

use hmm::child::Ended;
use hmm::{
    Alarms,
    Child, //
};
use leftovers::{
    leftover,
    traces, //
};
use std::fmt::{
    self,
    Display, //
};
use std::io::Write;
use std::time::{
    Duration,
    Instant, //
};

mod leftovers;
mod test;

pub use test::{
    Ctx,
    Driver,
    Test, //
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
    use std::path::PathBuf;

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
