// SPDX-License-Identifier: GPL-2.0
//! Fault injection for all operations of the interface. For each operation the first, the second,
//! the third ... step that can fail is made to fail, until the operation succeeds. At the end all
//! kinds of failures are injected at random. Prints TAP.
//!
//! After each failure:
//!
//! - the error is a documented one,
//! - no contents are lost,
//! - the same call succeeds without the failure,
//! - nothing stays in use.

mod cases;
mod engines;
mod load;
mod memory;
mod mixed;
mod placement;
mod run;
mod unplug;

use anyhow::{
    Context,
    Result, //
};
use hmm::inject::{
    self,
    Kind,
    Source, //
};
use std::path::PathBuf;

/// Makes each step of each operation fail once.
#[derive(clap::Args)]
pub struct Args {
    /// Run only cases whose name contains one of these
    filters: Vec<String>,
    /// Index of the device: 0 or 1 for private memory, 2 or 3 for coherent memory
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// Only these sources of failures (repeatable)
    #[arg(long)]
    source: Vec<String>,
    /// Instead of single failures, fail every allocation from some allocation on
    #[arg(long)]
    lasting: bool,
    /// Only list cases and sources
    #[arg(long)]
    list: bool,
    /// Seconds of mixed failures; 0 for none
    #[arg(long, default_value_t = 30)]
    mixed: u64,
    /// Seed of the mixed failures
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory of the module files; without it the cases `load` and `unplug` are left out
    #[arg(long)]
    modules: Option<PathBuf>,
    /// The driver that `load` loads: rust_dmirror or qemu_gpu
    #[arg(long, default_value = "rust_dmirror")]
    driver: String,
}

/// Returns the available sources of failures, or those of them that were requested.
fn sources(args: &Args) -> std::io::Result<Vec<Source>> {
    let kernel = || Kind::ALL.into_iter().filter(|kind| kind.is_there());
    if args.lasting {
        let memory = kernel().filter(|kind| *kind != Kind::Usercopy);
        return Ok(memory.map(Source::Lasting).collect());
    }
    let memory = kernel().filter(|kind| *kind != Kind::Usercopy).map(Source::AnyTask);
    let kernel = kernel().map(Source::Kernel).chain(memory);
    let points = inject::points()?.into_iter().map(Source::Point);
    let wanted =
        |source: &Source| args.source.is_empty() || args.source.contains(&source.to_string());
    Ok(points.chain(kernel).filter(wanted).collect())
}

/// Runs all cases that were requested, and returns whether all passed.
pub fn main(args: &Args) -> Result<bool> {
    let sources = sources(args).context("no points in debugfs")?;
    let named =
        |name: &str| args.filters.is_empty() || args.filters.iter().any(|f| name.contains(f));
    let cases: Vec<_> = cases::all().filter(|case| named(case.name)).collect();
    if args.list {
        cases.iter().for_each(|case| println!("{}", case.name));
        sources.iter().for_each(|source| println!("source {source}"));
        return Ok(true);
    }
    // Stop background migrations by the kernel, which would use up injected failures.
    let quiet = hmm::Settings::quiet();
    if let Err(error) = &quiet {
        eprintln!("# the kernel's own page movers stay on: {error}");
    }
    let mut tap = run::Tap::new();
    for case in &cases {
        run::case(&mut tap, args.device, case, &sources);
    }
    if args.filters.is_empty() && args.source.is_empty() && !args.lasting {
        run::points_are_checked(&mut tap);
        tap.every_source_was_used(&sources);
    }
    if let Some(modules) = args.modules.as_deref().filter(|_| named(load::NAME)) {
        load::run(&mut tap, modules, &args.driver, &sources);
    }
    if let Some(modules) = args.modules.as_deref().filter(|_| named(unplug::NAME)) {
        unplug::run(&mut tap, modules, args.device, &sources);
    }
    if args.mixed != 0 && named(mixed::NAME) {
        mixed::run(&mut tap, args.device, &sources, args.mixed, args.seed);
    }
    Ok(tap.finish())
}
