// SPDX-License-Identifier: GPL-2.0
//! Measures an engine that reads its working set while the working set migrates back and forth:
//! first with faultless migration, then, for comparison, with ordinary migration. Further rows add
//! CPU faults, evictions, other mirrors and writers.

mod readers;
mod rows;
mod table;
mod writers;

use anyhow::{
    ensure,
    Context,
    Result, //
};
use hmm::{
    Device,
    Setting,
    Settings, //
};
use rows::{
    evict,
    touch,
    Row,
    Size, //
};
use serde_json::json;
use std::time::Duration;

/// Measures faultless migration, and checks its bounds.
#[derive(clap::Args)]
pub struct Args {
    /// Number of the device; 0 and 1 have private memory.
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// Size of the working set in MiB, in whole huge pages.
    #[arg(long, default_value_t = 64)]
    mib: usize,
    /// Minimal number of migrations back and forth.
    #[arg(long, default_value_t = 4)]
    trips: u64,
    /// Minimal duration of the migrations in seconds, for each line of the table.
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    /// Minimal number of rounds of the engine over the working set.
    #[arg(long, default_value_t = 4)]
    rounds: u64,
    /// Delay of each copy, in microseconds.
    #[arg(long, default_value_t = 20)]
    copy_delay_us: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print tables in reStructuredText.
    #[arg(long, conflicts_with = "json")]
    rst: bool,
    /// Measure only these further rows.
    only: Vec<String>,
}

/// Function that measures a further row of the given name.
type Measure = fn(&Size, &'static str) -> Result<Row>;

const ROWS: [(&str, Measure); 8] = [
    ("touch_1", |size, name| touch::measure(size, name, 1, 1)),
    ("touch_2", |size, name| touch::measure(size, name, 2, 1)),
    ("touch_4", |size, name| touch::measure(size, name, 4, 1)),
    ("third_mirror", |size, name| touch::measure(size, name, 2, 3)),
    ("evict", evict::measure),
    ("writers_resident", rows::writers::resident),
    ("writers_beside", rows::writers::beside),
    ("writers_moving", rows::writers::moving),
];

/// Measures the further rows that were requested, and prints for each whether its bounds are met.
fn measure_rows(args: &Args, broken: &mut Vec<String>) -> Result<Vec<Row>> {
    for name in &args.only {
        ensure!(ROWS.iter().any(|(row, _)| row == name), "there is no row {name}");
    }
    let trips = args.trips;
    let rounds = args.rounds;
    let device = args.device;
    let size = Size { device, trips, rounds, time: Duration::from_secs(args.seconds) };
    let mut rows = Vec::new();
    for (name, measure) in ROWS {
        if !args.only.is_empty() && !args.only.iter().any(|only| only == name) {
            continue;
        }
        eprintln!("# {name}");
        let missed = match measure(&size, name) {
            Ok(row) => {
                let missed = row.broken_bounds();
                rows.push(row);
                missed
            }
            // An error, such as an engine that has read unexpected contents, is a missed bound.
            Err(error) => vec![format!("{name}: {error:#}")],
        };
        let result = if missed.is_empty() { "ok" } else { "not ok" };
        // tests/run/faultless counts these lines.
        eprintln!("{result} {name}");
        broken.extend(missed);
    }
    Ok(rows)
}

/// Measures faultless and ordinary migration with an engine that reads, then with an engine and a
/// CPU thread that write.
fn measure_ways(
    args: &Args,
    device: &Device,
    broken: &mut Vec<String>,
) -> Result<(Vec<readers::Row>, Option<writers::Writers>)> {
    let mut rows = Vec::new();
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
            let row = run.measure(device).with_context(|| run.name())?;
            broken.extend(row.broken_bounds());
            rows.push(row);
        }
    }
    eprintln!("# writers");
    let writers = writers::measure(device, args.trips).context("writers")?;
    broken.extend(writers.broken_bounds());
    Ok((rows, Some(writers)))
}

/// Measures, prints the tables, and returns whether all bounds are met.
pub fn main(args: &Args) -> Result<bool> {
    // Stop background migrations by the kernel, which would disturb the measurement.
    let _quiet = Settings::quiet().context("quiet settings of the kernel")?;
    let device = Device::open(args.device)
        .with_context(|| format!("cannot open {}", Device::path(args.device).display()))?;
    device.set(Setting::CopyDelay, args.copy_delay_us * 1000).context("copy delay")?;
    let mut broken = Vec::new();
    let mut readers = Vec::new();
    let mut counting = None;
    if args.only.is_empty() {
        (readers, counting) = measure_ways(args, &device, &mut broken)?;
    }
    let rows = measure_rows(args, &mut broken)?;
    if args.json {
        let all = json!({
            "readers": readers, "writers": counting, "rows": rows, "broken": broken
        });
        println!("{all}");
    } else {
        if let Some(counting) = counting {
            print!("{}", table::readers(&readers, args.rst));
            println!();
            println!("{}", counting.text());
        }
        print!("{}", table::rows(&rows, args.rst));
    }
    for bound in &broken {
        eprintln!("bound not met: {bound}");
    }
    Ok(broken.is_empty())
}
