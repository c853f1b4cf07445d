// SPDX-License-Identifier: GPL-2.0
//! Runs each case once for every failure, in a child process, and reports the results.

use crate::inject::cases::{
    Case,
    World,
    NEW,
    OLD, //
};
use hmm::inject::{
    self,
    Kernel,
    Source, //
};
use hmm::{
    Child,
    Device,
    Errno,
    Gate, //
};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::{
    Duration,
    Instant, //
};

/// Time limit of a case with one source.
const LIMIT: Duration = Duration::from_secs(240);

/// After this many failures only some are tried, see [`following`].
const EACH: u64 = 100;

/// Returns the next failure to try after the `n`-th. Up to `each` no failure is skipped.
pub fn following(n: u64, each: u64) -> u64 {
    if n < each {
        n + 1
    } else {
        n + n / 8
    }
}

/// Totals of a case with one source.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// Number of injected failures.
    pub injected: u64,
    /// Number of them after which the operation returned an error.
    pub errors: u64,
}

/// Prints results in TAP format, and counts them.
pub struct Tap {
    number: usize,
    failed: usize,
    used: BTreeMap<String, u64>,
}

impl Tap {
    /// Prints the header.
    pub fn new() -> Tap {
        println!("TAP version 13");
        Tap { number: 0, failed: 0, used: BTreeMap::new() }
    }

    /// Prints the result of one test.
    pub fn result(&mut self, name: &str, outcome: Result<String, String>) {
        self.number += 1;
        match outcome {
            Ok(text) => println!("ok {} {name} # {text}", self.number),
            Err(why) => {
                self.failed += 1;
                println!("not ok {} {name} # {}", self.number, why.replace('\n', " | "));
            }
        }
        use std::io::Write;
        let _ = std::io::stdout().flush();
    }

    /// Reports sources that were never used: a failure that hits no case tests nothing.
    pub fn every_source_was_used(&mut self, sources: &[Source]) {
        let unused = |source: &&Source| self.used.get(&source.to_string()).is_none_or(|n| *n == 0);
        let unused: Vec<String> =
            sources.iter().filter(unused).map(|source| source.to_string()).collect();
        let outcome = match unused.as_slice() {
            [] => Ok(format!("{} sources", sources.len())),
            names => Err(format!("never: {}", names.join(", "))),
        };
        self.result("every source failed somewhere", outcome);
    }

    /// Prints the plan. Returns whether there was a test and none failed.
    pub fn finish(self) -> bool {
        println!("1..{}", self.number);
        println!("{} passed, {} failed", self.number - self.failed, self.failed);
        self.failed == 0 && self.number > 0
    }
}

/// Waits until no device page is in use.
pub fn nothing_in_use(device: u32) -> Result<(), String> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let counters = Device::open(device).and_then(|device| device.counters());
        match counters.map(|counters| counters.device_pages_used) {
            Ok(0) => return Ok(()),
            Ok(used) if Instant::now() > deadline => {
                return Err(format!("{used} device pages are still in use"))
            }
            Ok(_) => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(format!("counters: {error}")),
        }
    }
}

/// Shrinks the device's memory until it has no chunks, so that it must grow for the next use.
pub fn shrink(device: &Device) -> Result<(), String> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let pieces =
        || device.placement().map(|placement| placement.pieces).map_err(context("placement"));
    while pieces()? != 0 {
        if Instant::now() > deadline {
            return Err("idle device memory stays".into());
        }
        std::fs::write("/proc/sys/vm/drop_caches", "2").map_err(context("drop_caches"))?;
        std::thread::sleep(Duration::from_millis(10));
    }
    // The kernel calls shrinkers several times. Let it finish, so that it does not remove the next
    // new chunk.
    std::thread::sleep(Duration::from_millis(100));
    Ok(())
}

/// Runs `body` in a child process with a time limit.
pub fn in_child(body: impl FnOnce() -> Result<Count, String>) -> Result<Count, String> {
    let gate = Gate::new().map_err(|error| error.to_string())?;
    let child = Child::spawn(|| {
        hmm::child::own_group();
        let count = body()?;
        gate.send(count.injected).map_err(|error| error.to_string())?;
        gate.send(count.errors).map_err(|error| error.to_string())
    });
    let mut child = child.map_err(|error| format!("fork: {error}"))?;
    let ended = child.wait_timeout(LIMIT);
    hmm::child::kill_group(child.pid());
    if ended.is_none() {
        let why = match child.wait_timeout(Duration::from_secs(10)) {
            Some(_) => "no end",
            None => "no end, and SIGKILL does not help: it hangs in the kernel",
        };
        return Err(why.to_string());
    }
    child.outcome()?;
    let receive = || gate.receive().map_err(|error| error.to_string());
    Ok(Count { injected: receive()?, errors: receive()? })
}

/// Invalid settings of an injection point must be refused and must not change its state.
pub fn points_are_checked(tap: &mut Tap) {
    let outcome = || -> Result<String, String> {
        let point = "retry";
        inject::set_point(point, "1000000 every").map_err(context("set"))?;
        let long = "1".repeat(65);
        for text in ["", "x", "-1", "1 always", "1 every 2", "99999999999999999999", &long] {
            match inject::set_point(point, text) {
                Err(error) if error.raw_os_error() == Some(Errno::EINVAL.0) => {}
                // An empty write does not reach the kernel.
                Ok(()) if text.is_empty() => {}
                other => return Err(format!("'{text}': {other:?}")),
            }
        }
        let state = inject::point_state(point).map_err(context("state"))?;
        inject::set_point(point, "0").map_err(context("clear"))?;
        match state.period {
            1_000_000 => Ok("settings".to_string()),
            other => Err(format!("the period is {other}")),
        }
    };
    tap.result("points are checked", outcome());
}

/// Runs a case with all sources, and prints its result.
pub fn case(tap: &mut Tap, device: u32, case: &Case, sources: &[Source]) {
    let mut total = Count::default();
    let mut why = Vec::new();
    for source in sources.iter().filter(|source| !case.excludes(source)) {
        let result = in_child(|| all_failures(device, case, source));
        // A child that was killed may have left a point set.
        let _ = inject::clear_points();
        match result.and_then(|count| nothing_in_use(device).map(|()| count)) {
            Ok(count) => {
                *tap.used.entry(source.to_string()).or_default() += count.injected;
                total.injected += count.injected;
                total.errors += count.errors;
            }
            Err(error) => why.push(format!("{source}: {error}")),
        }
    }
    let Count { injected, errors } = total;
    let outcome = match why.as_slice() {
        [] => Ok(format!("{injected} failures, {errors} reported as errors")),
        why => Err(why.join("; ")),
    };
    tap.result(case.name, outcome);
}

/// Makes the first, the second, ... use of `source` fail, until no failure is injected any longer.
fn all_failures(device: u32, case: &Case, source: &Source) -> Result<Count, String> {
    let _kernel = match source {
        Source::Kernel(kind) | Source::AnyTask(kind) | Source::Lasting(kind) => {
            Some(Kernel::prepare(&[*kind], 0).map_err(context("prepare"))?)
        }
        Source::Point(_) => None,
    };
    let mut count = Count::default();
    let mut n = 1;
    loop {
        let (injected, error) = one_failure(device, case, source, n)
            .map_err(|error| format!("failure {n}: {error}"))?;
        count.injected += u64::from(injected);
        count.errors += u64::from(error);
        if !injected {
            return Ok(count);
        }
        n = match source {
            Source::Lasting(_) => n + 1 + n / 4,
            _ => following(n, EACH),
        };
    }
}

/// Prefixes an error with the step that returned it.
pub fn context<E: Display>(what: &str) -> impl FnOnce(E) -> String + '_ {
    move |error| format!("{what}: {error}")
}

/// Runs a case while the `n`-th use of `source` fails. Returns whether the failure was injected and
/// whether the operation returned an error.
fn one_failure(device: u32, case: &Case, source: &Source, n: u64) -> Result<(bool, bool), String> {
    let mut world = World::new(device, case.size).map_err(context("set-up"))?;
    (case.prepare)(&mut world).map_err(context("prepare"))?;
    let used = world.device.counters().map_err(context("counters"))?.device_pages_used;
    let grows = ["grow", "region"].map(|name| Source::Point(name.into()));
    if used == 0 && grows.contains(source) {
        shrink(&world.device)?;
    }
    let armed = inject::arm(source, n).map_err(context("arm"))?;
    let result = (case.operate)(&mut world);
    let injected = armed.disarm().map_err(context("disarm"))?;
    match result {
        Ok(()) => {}
        Err(error) if !injected => return Err(format!("without a failure: {error}")),
        Err(error) if !allowed(case, source, error) => {
            return Err(format!("{error} is not documented"))
        }
        // Every other time the CPU does not read the pages first, so the repeated call starts from
        // the state that the failure has left.
        Err(_) if n % 2 == 0 => {
            world.check(case.contents.partly()).map_err(context("after an error"))?;
            world.looked = true;
        }
        Err(_) => {}
    }
    if result.is_err() || injected {
        (case.operate)(&mut world).map_err(context("again, without a failure"))?;
    }
    // Before the contents, because the check may query where the pages are, and CPU reads migrate
    // them back.
    (case.check)(&mut world).map_err(context("at the end"))?;
    world.check(case.contents).map_err(context("at the end"))?;
    Ok((injected, result.is_err()))
}

fn allowed(case: &Case, source: &Source, error: Errno) -> bool {
    // Errors that every call may return for this source.
    let always: &[Errno] = match source {
        Source::Kernel(inject::Kind::Usercopy) => &[Errno::EFAULT],
        // Some calls return EINVAL, as `test_hmm` does.
        Source::Point(name) if name == "space" => &[Errno::EFAULT, Errno::EINVAL],
        Source::Point(name) if name == "killed" => &[Errno::EINTR],
        _ => &[],
    };
    case.errors.contains(&error) || always.contains(&error)
}

// Equal seeds could not distinguish old and new contents.
const _: () = assert!(OLD != NEW);
