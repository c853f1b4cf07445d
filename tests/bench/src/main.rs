// SPDX-License-Identifier: GPL-2.0
//! Measures the cost of operations of a mock device per page. The program is the same for every
//! driver.
//!
//! Under QEMU's `-icount shift=0` a nanosecond of guest time is one instruction. The figures then
//! are instruction counts and repeatable. `hmm-bench-report` makes tables and plots of the results.

mod bench;
mod crowd;
mod hardware;
mod later;
mod memory;
mod overlap;
mod own;
mod phases;
mod rows;
mod scaling;
mod space;
mod storm;
mod tax;

use anyhow::Result;
use bench::Bench;
use clap::{
    Parser,
    Subcommand, //
};
use serde_json::json;

/// Measures a mock device.
#[derive(Parser)]
#[command(name = "hmm-bench", args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    other: Option<Other>,
    /// Name of the driver in the report.
    #[arg(long, default_value = "rust_dmirror")]
    driver: String,
    /// MiB of memory that each row works on, a multiple of 2 (or 1); may be repeated.
    #[arg(long = "size")]
    sizes: Vec<usize>,
    /// Number of rounds, of which the cheapest counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only rows whose name contains this; may be repeated.
    #[arg(long = "row")]
    only: Vec<String>,
    /// No rows of huge pages.
    #[arg(long)]
    small: bool,
    /// Maximal number of processes with a mirror for the rows of eviction and CPU faults: 1, 1000
    /// or 10000.
    #[arg(long, default_value_t = 1)]
    mirrors: usize,
    /// Measure only the cost of this many MiB of mirrored address space, as JSON; may be repeated.
    /// For rust_dmirror.
    #[arg(long)]
    space: Vec<usize>,
    /// Measure only the page tables of this many MiB in leaves of 64 KiB, as JSON; may be repeated.
    /// For rust_dmirror with a format that has them.
    #[arg(long)]
    leaves: Vec<usize>,
    /// The rows of qemu_gpu.
    #[arg(long)]
    hardware: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Measurements with results of another form than the cost of a page.
#[derive(Subcommand)]
enum Other {
    Overlap(overlap::Args),
    Scaling(scaling::Args),
}

fn main() -> Result<()> {
    let mut args = Args::parse();
    match &args.other {
        Some(Other::Overlap(args)) => return overlap::main(args),
        Some(Other::Scaling(args)) => return scaling::main(args),
        None => {}
    }
    if !args.space.is_empty() {
        let rows = args.space.iter().map(|mib| space::measure(*mib)).collect::<Result<Vec<_>>>()?;
        println!("{}", json!({ "driver": args.driver, "space": rows }));
        return Ok(());
    }
    if !args.leaves.is_empty() {
        let rows = args.leaves.iter().map(|mib| space::leaves(*mib)).collect::<Result<Vec<_>>>()?;
        println!("{}", json!({ "driver": args.driver, "leaves": rows }));
        return Ok(());
    }
    if args.sizes.is_empty() {
        args.sizes.push(32);
    }
    let mut results = Vec::new();
    for &mib in &args.sizes {
        anyhow::ensure!(mib == 1 || (mib > 0 && mib % 2 == 0), "--size must be 1 or even");
        let mut bench = Bench::new(mib, args.rounds, &args.only, args.small);
        if args.hardware {
            hardware::rows(&mut bench)?;
            results.push((mib, bench));
            continue;
        }
        // At the beginning the process has little memory, so that fork() costs little.
        tax::rows(&mut bench)?;
        crowd::rows(&mut bench, args.mirrors)?;
        rows::faults(&mut bench)?;
        rows::migrations(&mut bench)?;
        rows::invalidations(&mut bench)?;
        rows::sparse(&mut bench)?;
        storm::faults(&mut bench)?;
        storm::cpu_faults(&mut bench)?;
        own::faultless(&mut bench)?;
        memory::rows(&mut bench)?;
        later::rows(&mut bench)?;
        results.push((mib, bench));
    }
    if args.json {
        let sizes: Vec<_> = results
            .iter()
            .map(|(mib, bench)| json!({ "mib": mib, "rows": bench.json() }))
            .collect();
        println!("{}", json!({ "driver": args.driver, "sizes": sizes }));
        return Ok(());
    }
    for (mib, bench) in &results {
        println!("{}, {mib} MiB, ns (instructions under icount)", args.driver);
        bench.print();
    }
    Ok(())
}
