// SPDX-License-Identifier: GPL-2.0
//! Tables of the results of `hmm-bench --space` and `hmm-bench scaling`, and tables for the
//! documents.

use anyhow::{
    Context,
    Result, //
};
use serde_json::Value;
use std::path::PathBuf;

/// Maximal bytes of page tables for a mirrored page, and for a leaf of 2 MiB.
const BYTES: (f64, f64) = (9.0, 19.0);

/// Maximal cost of a page of the largest size, relative to one of the smallest.
const GROWTH: f64 = 1.10;

fn load(path: &PathBuf) -> Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{path:?}"))?;
    let line = text.lines().rev().find(|line| line.starts_with('{')).unwrap_or_default();
    serde_json::from_str(line).with_context(|| format!("no result in {path:?}"))
}

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or(f64::NAN)
}

/// Prints cost and memory by size of the address space. Fails if a bound is exceeded.
pub fn space(run: &PathBuf) -> Result<()> {
    let run = load(run)?;
    let sizes = run["space"].as_array().context("no sizes")?;
    println!(
        "{:>8} {:>14} {:>14} {:>12} {:>14} {:>14}",
        "MiB", "per page", "of smallest", "bytes/page", "2 MiB, page", "bytes/leaf"
    );
    let first = sizes.first().map_or(f64::NAN, |size| number(size, "cost"));
    for size in sizes {
        let cost = number(size, "cost");
        println!(
            "{:>8} {cost:>14.1} {:>14.3} {:>12.2} {:>14.1} {:>14.1}",
            number(size, "mib"),
            cost / first,
            number(size, "bytes_per_page"),
            number(size, "huge_cost"),
            number(size, "bytes_per_leaf"),
        );
    }
    let last = sizes.last().context("no size")?;
    let growth = number(last, "cost") / first;
    anyhow::ensure!(
        growth <= GROWTH,
        "a page of the largest size costs {growth:.3} of the smallest"
    );
    for (name, most) in [("bytes_per_page", BYTES.0), ("bytes_per_leaf", BYTES.1)] {
        let bytes = number(last, name);
        anyhow::ensure!(bytes <= most, "{name} is {bytes:.2}, more than {most}");
    }
    Ok(())
}

/// Prints the rows of one size as a simple table of reStructuredText.
pub fn document(table: &PathBuf, mib: u64) -> Result<()> {
    let table = load(table)?;
    let sizes = table["sizes"].as_array().context("no sizes")?;
    let size = sizes.iter().find(|size| size["mib"] == mib).context("no such size")?;
    let border = format!("{:=<53}  {}", "", ["========"; 5].join("  "));
    let cell = |value: &Value, digits: usize| {
        value.as_f64().map_or("-".to_string(), |number| format!("{number:.digits$}"))
    };
    let line = |name: &str, cells: [String; 5]| {
        let cells = cells.map(|cell| format!("{cell:>8}"));
        println!("{name:<53}  {}", cells.join("  "));
    };
    println!("{border}");
    line("row", ["floor", "peer", "ours", "fraction", "to reach"].map(str::to_string));
    println!("{border}");
    for row in size["rows"].as_array().context("no rows")? {
        let cells = [("floor", 0), ("peer", 0), ("ours", 0), ("ratio", 3), ("target", 2)];
        let cells = cells.map(|(name, digits)| cell(&row[name], digits));
        line(row["row"].as_str().unwrap_or_default(), cells);
    }
    println!("{border}");
    Ok(())
}

/// Prints how faults scale with engines.
pub fn scaling(run: &PathBuf) -> Result<()> {
    let run = load(run)?;
    let counted = if run["lock_stat"] == true { "lock_stat" } else { "the driver's counters" };
    println!("holds of the table lock by {counted}");
    println!(
        "{:>7} {:>8} {:>8} {:>10} {:>10} {:>12} {:>10} {:>10} {:>10}",
        "engines",
        "faults",
        "holds",
        "of linear",
        "retries",
        "contentions",
        "wait us",
        "hold us",
        "faults/s"
    );
    for row in run["table"].as_array().context("no table")? {
        println!(
            "{:>7} {:>8.0} {:>8.0} {:>10.3} {:>10.0} {:>12.0} {:>10.0} {:>10.0} {:>10.0}",
            number(row, "engines"),
            number(row, "faults"),
            number(row, "holds"),
            number(row, "part_of_linear"),
            number(row, "retries"),
            number(row, "contentions"),
            number(row, "wait_us"),
            number(row, "hold_us"),
            number(row, "faults_per_second"),
        );
    }
    Ok(())
}
