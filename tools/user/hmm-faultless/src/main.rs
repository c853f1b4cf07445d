// SPDX-License-Identifier: GPL-2.0
//! A running engine reads its working set while that migrates there and back:
//! without a fault, and, for comparison, the ordinary way.

mod readers;
mod table;
mod writers;

use anyhow::{Context, Result};
use clap::Parser;
use hmm::{Device, Setting, Settings};
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;

/// Measures faultless migration, and checks its bounds.
#[derive(Parser)]
struct Args {
    /// Number of the device: 0 and 1 have private memory.
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// MiB of the working set, a multiple of 2.
    #[arg(long, default_value_t = 64)]
    mib: usize,
    /// Migrations there and back, at least.
    #[arg(long, default_value_t = 4)]
    trips: u64,
    /// Seconds of migrations, at least, for each line of the table.
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    /// Rounds of the engine over the working set, at least.
    #[arg(long, default_value_t = 4)]
    rounds: u64,
    /// Delay of each copy, in microseconds.
    #[arg(long, default_value_t = 20)]
    copy_delay_us: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print a table in reStructuredText.
    #[arg(long, conflicts_with = "json")]
    rst: bool,
}

fn measure(args: &Args) -> Result<bool> {
    // Nobody else shall move pages meanwhile.
    let _quiet = Settings::quiet().context("quiet settings of the kernel")?;
    let device = Device::open(args.device)
        .with_context(|| format!("cannot open {}", Device::path(args.device).display()))?;
    device.set(Setting::CopyDelay, args.copy_delay_us * 1000).context("copy delay")?;
    let mut rows = Vec::new();
    let mut broken = Vec::new();
    for huge in [false, true] {
        for faultless in [true, false] {
            let run = readers::Run {
                mib: args.mib,
                trips: args.trips,
                rounds: args.rounds,
                time: Duration::from_secs(args.seconds),
                huge,
                faultless,
            };
            eprintln!("# {}", run.name());
            let row = run.measure(&device).with_context(|| run.name())?;
            broken.extend(row.broken_bounds());
            rows.push(row);
        }
    }
    eprintln!("# writers");
    let writers = writers::measure(&device, args.trips).context("writers")?;
    broken.extend(writers.broken_bounds());
    if args.json {
        println!("{}", json!({ "readers": rows, "writers": writers, "broken": broken }));
    } else {
        print!("{}", table::render(&rows, args.rst));
        println!();
        print!("{}", writers.text());
    }
    for bound in &broken {
        eprintln!("bound not met: {bound}");
    }
    Ok(broken.is_empty())
}

fn main() -> ExitCode {
    match measure(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("hmm-faultless: {error:#}");
            ExitCode::from(2)
        }
    }
}
