// SPDX-License-Identifier: GPL-2.0
//! Measures working sets of 0.5, 1, 2 and 8 times the size of device memory. Engines access them
//! sequentially, at random, with a stride, and along a chain of pointers, in some rows while CPU
//! threads access a part of the pages.
//!
//! For each policy the program reports the bytes moved per byte used and the device faults per MiB
//! used. Every result is checked. The program fails if a bound is exceeded.

mod pattern;
mod run;
mod table;

use anyhow::Result;
use hmm::placement::Policy;
use pattern::Pattern;
use run::{
    measure,
    Case,
    Figures, //
};

/// Bound for the bytes moved in both directions per byte used: default policy, sequential, twice
/// the size of device memory. The expected value is 0.375.
const MOVED: f64 = 0.45;
/// Bound for the same with CPU threads, without the effects of their faults. Values up to 0.46 are
/// expected.
const MOVED_WITH_CPUS: f64 = 0.55;
/// Bound for the device faults per MiB used in the same rows. The expected value is 0.625 in the
/// first pass, and less in later ones.
const FAULTS: f64 = 0.75;

/// Measures working sets larger than device memory.
#[derive(clap::Args)]
pub struct Args {
    /// Passes over the working set that are measured, after one that is not.
    #[arg(long, default_value_t = 3)]
    passes: u64,
    /// Seconds after which a pass that does not end is a livelock.
    #[arg(long, default_value_t = 300)]
    limit: u64,
    /// Only working sets of up to this many times the size of device memory.
    #[arg(long, default_value_t = 8.0)]
    most: f64,
    /// Only policies whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
}

/// Working sets, in units of the device's memory.
const SETS: [f64; 4] = [0.5, 1.0, 2.0, 8.0];

const POLICIES: [(Policy, &str); 3] = [
    (Policy::None, "no policy"),
    (Policy::Default, "default policy"),
    (Policy::OnePage, "one page per fault"),
];

fn bounds(case: &Case, cold: &Figures, warm: &Figures, all: &Figures) -> Vec<String> {
    let mut broken = Vec::new();
    if case.policy != Policy::Default {
        return broken;
    }
    if case.set == 2.0 && case.pattern == Pattern::Sequential {
        let cold = cold.without_cpus();
        let all = all.without_cpus();
        let moved = all.moved_per_byte();
        let faults = all.faults_per_mib();
        let threads = case.threads;
        let most = if threads == 0 { MOVED } else { MOVED_WITH_CPUS };
        if moved > most {
            broken.push(format!(
                "2x in order, {threads} CPU threads: {moved:.3} bytes moved per byte used, over {most}"
            ));
        }
        // The first pass must meet the bound by itself, because most of the faults are in it.
        let faults = faults.max(cold.faults_per_mib());
        if faults > FAULTS {
            broken.push(format!(
                "2x in order, {threads} CPU threads: {faults:.3} faults per MiB, over {FAULTS}"
            ));
        }
    }
    if case.set <= 1.0 && case.threads == 0 && warm.faults != 0 {
        let set = case.set;
        let name = case.pattern.name();
        broken.push(format!("{set}x {name}: {} faults after warm-up", warm.faults));
    }
    broken
}

/// Measures, prints the table, and returns whether all bounds are met.
pub fn main(args: &Args) -> Result<bool> {
    let mut broken = Vec::new();
    let mut rows = Vec::new();
    for (policy, name) in POLICIES.into_iter().filter(|(_, name)| name.contains(&args.only)) {
        for set in SETS.into_iter().filter(|set| *set <= args.most) {
            for pattern in Pattern::ALL {
                for threads in [0, 2] {
                    // One set size with CPU threads is enough for each pattern.
                    if threads != 0 && set != 2.0 {
                        continue;
                    }
                    // One fault per page takes long, and the figures are the same in each pass.
                    let passes = match policy {
                        Policy::OnePage => args.passes.min(1),
                        _ => args.passes,
                    };
                    let case = Case { policy, set, pattern, threads, passes, limit: args.limit };
                    let title = format!("{name}, {set}x {}, {threads} CPU threads", pattern.name());
                    eprintln!("# {title}");
                    let (cold, warm) = match measure(&case) {
                        Ok(figures) => figures,
                        Err(error) => {
                            broken.push(format!("{title}: {error:#}"));
                            continue;
                        }
                    };
                    let all = cold.plus(&warm);
                    rows.push(table::row(name, &case, &warm, &all));
                    broken.extend(bounds(&case, &cold, &warm, &all));
                }
            }
        }
    }
    table::print(rows);
    println!("bounds: default policy, 2x in order: at most {MOVED} bytes moved (there and back, first pass");
    println!("included) per byte used, {MOVED_WITH_CPUS} with CPU threads; at most {FAULTS} faults per MiB. With CPU");
    println!(
        "threads, pages that CPU faults migrate back do not count. Up to 1x: no faults after the first pass"
    );
    if !broken.is_empty() {
        for line in &broken {
            println!("BROKEN: {line}");
        }
        println!("{} bounds are not met", broken.len());
        return Ok(false);
    }
    // The bounds concern the default policy, at up to twice the size of device memory.
    anyhow::ensure!(
        args.most >= 2.0 && "default policy".contains(&args.only),
        "not all was measured"
    );
    println!("all bounds are met");
    Ok(true)
}
