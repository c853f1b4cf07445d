// SPDX-License-Identifier: GPL-2.0
//! End-to-end tests of the memory manager, as seen by a process and its device.
//!
//! The tests run as root in a machine with the modules loaded, each in a process of its own, and
//! print TAP. With `--driver test_hmm` they run against the kernel's C driver, without the tests
//! that it is known to fail.

mod blit;
mod harness;
mod mover;
mod support;
mod tests;

use clap::Parser;
use harness::{
    Ctx,
    Driver,
    Test, //
};
use std::path::{
    Path,
    PathBuf, //
};
use std::process::ExitCode;

/// Groups that unload modules. They run last, and only if the module files exist to load them
/// again.
const RELOAD: [&str; 2] = ["module_reload", "memory"];

#[derive(Clone, Parser)]
#[command(name = "hmm-e2e", about = "End-to-end tests of the heterogeneous memory manager")]
struct Args {
    /// Run only tests whose full name contains one of these
    filters: Vec<String>,
    /// Leave out tests whose full name contains this (repeatable)
    #[arg(long, value_name = "FILTER")]
    except: Vec<String>,
    /// List the tests and run none
    #[arg(long)]
    list: bool,
    /// rust_dmirror, test_hmm or qemu_gpu; otherwise the one that is loaded
    #[arg(long)]
    driver: Option<String>,
    /// Run only this group (repeatable); `all` for every group.  Without it all, but
    /// `module_reload` only if the module files exist
    #[arg(long)]
    group: Vec<String>,
    /// Index of the device: 0 or 1 private memory, 2 or 3 coherent memory
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// Directory of rust_hmm.ko and rust_dmirror.ko; the group `module_reload` needs it
    #[arg(long, default_value = "/lib/modules-hmm")]
    modules: PathBuf,
    /// Rounds of the load and unload test; the torture with small mappings runs for as many times
    /// the time of a race
    #[arg(long, default_value_t = 100)]
    cycles: u32,
    /// Minimal time for which each race is repeated, in milliseconds; it is repeated until the race
    /// was run
    #[arg(long, value_name = "MS", default_value_t = 700)]
    race: u64,
    /// Multiplies every time limit: for slow machines and debug kernels
    #[arg(long, default_value_t = 4)]
    scale: u64,
    /// Run only the tests that compare durations: for a machine whose clock counts instructions
    #[arg(long)]
    timed: bool,
    /// On test_hmm run its known defects, too: some of them end in an oops
    #[arg(long)]
    defects: bool,
}

fn detect() -> Driver {
    if hmm::module::is_loaded("test_hmm") {
        Driver::C
    } else if hmm::module::is_loaded("qemu_gpu") {
        Driver::Hw
    } else {
        Driver::Rust
    }
}

/// Disables KUnit suites. A kernel with KUnit runs the suites of a module at each load, but they
/// have run at the first load and are not part of these tests.
fn no_suites_at_load() -> std::io::Result<()> {
    let filter = Path::new("/sys/module/kunit/parameters/filter_glob");
    if filter.exists() {
        std::fs::write(filter, "none")
    } else {
        Ok(())
    }
}

fn selected(args: &Args) -> Vec<Test> {
    let group = |test: &Test| match args.group.as_slice() {
        [] => !RELOAD.contains(&test.group) || args.modules.is_dir(),
        groups => groups.iter().any(|group| group == "all" || group == test.group),
    };
    let name = |test: &Test| {
        let full = test.full_name();
        let named = |filters: &[String]| filters.iter().any(|filter| full.contains(filter));
        (args.filters.is_empty() || named(&args.filters)) && !named(&args.except)
    };
    let clock = |test: &Test| test.is_timed() == args.timed;
    tests::all().into_iter().filter(|test| group(test) && name(test) && clock(test)).collect()
}

fn main() -> ExitCode {
    let args = Args::parse();
    let tests = selected(&args);
    if args.list {
        let others = selected(&Args { timed: !args.timed, ..args.clone() });
        tests.iter().chain(&others).for_each(|test| println!("{}", test.full_name()));
        return ExitCode::SUCCESS;
    }
    // A filter or group without a test, for example after a renaming, is an error.
    let groups: Vec<&str> = tests::all().iter().map(|test| test.group).collect();
    let is_group = |group: &&String| *group == "all" || groups.contains(&group.as_str());
    if let Some(group) = args.group.iter().find(|group| !is_group(group)) {
        eprintln!("hmm-e2e: no test is in the group '{group}'");
        return ExitCode::from(2);
    }
    let names: Vec<String> = tests::all().iter().map(Test::full_name).collect();
    let known = |filter: &&String| names.iter().any(|name| name.contains(filter.as_str()));
    if let Some(filter) = args.filters.iter().chain(&args.except).find(|filter| !known(filter)) {
        eprintln!("hmm-e2e: no test matches '{filter}'");
        return ExitCode::from(2);
    }
    if tests.is_empty()
        && !args.timed
        && !selected(&Args { timed: true, ..args.clone() }).is_empty()
    {
        eprintln!("hmm-e2e: these tests compare durations: --timed runs them");
        return ExitCode::from(2);
    }
    if let Err(why) = hmm::procfs::check_page_size() {
        eprintln!("hmm-e2e: {why}");
        return ExitCode::from(2);
    }
    let driver = match args.driver.as_deref() {
        None => detect(),
        Some("rust_dmirror") => Driver::Rust,
        Some("test_hmm") => Driver::C,
        Some("qemu_gpu") => Driver::Hw,
        Some(other) => {
            eprintln!("hmm-e2e: unknown driver '{other}' (rust_dmirror, test_hmm or qemu_gpu)");
            return ExitCode::from(2);
        }
    };
    let second = args.device ^ 1;
    let Args { device, modules, cycles, defects, scale, .. } = args;
    let ctx = Ctx { driver, device, second, modules, cycles, defects };
    let (tests, others): (Vec<Test>, Vec<Test>) =
        tests.into_iter().partition(|test| test.is_for(&ctx));
    if tests.is_empty() {
        eprintln!("hmm-e2e: no test matches");
        return ExitCode::from(2);
    }
    if !others.is_empty() {
        let count = others.len();
        println!("# {count} tests need another driver or another kind of memory: not in the plan");
    }
    // Fault counts are exact only while the kernel migrates no pages by itself.
    let quiet = hmm::Settings::quiet();
    if let Err(error) = &quiet {
        eprintln!("# the kernel's own page movers stay on: {error}");
    }
    if let Err(error) = no_suites_at_load() {
        eprintln!("# KUnit runs at each load: {error}");
    }
    let scale = scale.clamp(1, 1000);
    hmm::child::set_timeout_scale(scale as u32);
    mover::set_race_time(args.race);
    if harness::run(&tests, &ctx, scale) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
