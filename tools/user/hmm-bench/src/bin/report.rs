// SPDX-License-Identifier: GPL-2.0
//! Puts the results of two drivers side by side.

use anyhow::{Context, Result};
use clap::Parser;
use serde::Deserialize;
use std::path::PathBuf;

/// Compares two results of `hmm-bench --json`.
#[derive(Parser)]
struct Args {
    /// The peer.
    base: PathBuf,
    /// What is compared with it.
    new: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Deserialize)]
struct Results {
    driver: String,
    mib: usize,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    row: String,
    cost: f64,
}

impl Results {
    fn load(path: &PathBuf) -> Result<Results> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {path:?}"))?;
        serde_json::from_str(&text).with_context(|| format!("{path:?} is no result of hmm-bench"))
    }

    fn cost(&self, name: &str) -> Option<f64> {
        self.rows.iter().find(|row| row.row == name).map(|row| row.cost)
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    let (base, new) = (Results::load(&args.base)?, Results::load(&args.new)?);
    anyhow::ensure!(base.mib == new.mib, "results of different sizes cannot be compared");
    let mut rows = Vec::new();
    for row in &new.rows {
        // The peer has no queues, and no locks.
        let peer = base.cost(&row.row);
        rows.push((row.row.as_str(), peer, row.cost, peer.map(|peer| row.cost / peer)));
    }
    if args.json {
        let rows: Vec<_> = rows
            .iter()
            .map(|(name, base, new, ratio)| {
                serde_json::json!({ "row": name, "base": base, "new": new, "ratio": ratio })
            })
            .collect();
        println!("{}", serde_json::json!({ "base": base.driver, "new": new.driver, "rows": rows }));
        return Ok(());
    }
    println!("instructions per page, {} MiB", new.mib);
    println!("{:<62} {:>12} {:>12} {:>7}", "row", base.driver, new.driver, "ratio");
    for (name, base, new, ratio) in rows {
        let base = base.map_or("-".to_string(), |base| format!("{base:.0}"));
        let ratio = ratio.map_or("-".to_string(), |ratio| format!("{ratio:.2}"));
        println!("{name:<62} {base:>12} {new:>12.0} {ratio:>7}");
    }
    Ok(())
}
