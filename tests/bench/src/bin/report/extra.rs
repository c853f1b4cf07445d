// SPDX-License-Identifier: GPL-2.0
//! Tables of the results of `hmm-bench --space` and `hmm-bench scaling`, and tables for the
//! documents.

use anyhow::{
    Context,
    Result, //
};
use serde_json::Value;
use std::path::PathBuf;

/// A kind of page tables, with its bounds in bytes.
struct Kind {
    name: &'static str,
    /// For each page of 4 KiB.
    page: f64,
    /// For each leaf of 2 MiB that the largest size has more than the smallest. The smallest size
    /// is in the first tables of a mirror. Every leaf has an entry, and its part of the tables that
    /// are kept for splits.
    leaf: f64,
}

const TREE: Kind = Kind { name: "tree", page: 9.0, leaf: 22.0 };
const IMAGE: Kind = Kind { name: "tree and image", page: 18.0, leaf: 45.0 };

/// Highest number of bytes of the tree and an image for each leaf of 64 KiB: 16 entries of both, as
/// 16 pages have.
const RUN: f64 = 16.0 * IMAGE.page;

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

/// Prints a line of the table: the cost of 4 KiB in leaves of this many pages, also relative to the
/// smallest size, and the bytes of tables for a leaf.
fn print_space(
    tables: &str,
    (pages, leaf): (u32, &str),
    size: &Value,
    (cost, growth, bytes): (f64, Option<f64>, Option<f64>),
) {
    let cell = |value: Option<f64>, digits: usize| {
        value.map_or("-".to_string(), |value| format!("{value:.digits$}"))
    };
    println!(
        "{tables:<14}  {leaf:>6}  {:>8}  {cost:>8.0}  {:>11}  {:>10}  {:>10}",
        number(size, "mib"),
        cell(growth, 3),
        cell(bytes.map(|bytes| bytes / f64::from(pages)), 2),
        cell(bytes, 1),
    );
}

/// Prints cost and memory by size of the address space, with the library's tree alone, and with an
/// image that the device walks, also in leaves of 64 KiB. Fails if a bound is exceeded.
pub fn space(tree: &PathBuf, image: &PathBuf, leaves: &PathBuf) -> Result<()> {
    let runs = [(TREE, load(tree)?), (IMAGE, load(image)?)];
    println!(
        "{:<14}  {:>6}  {:>8}  {:>8}  {:>11}  {:>10}  {:>10}",
        "tables", "leaf", "MiB", "per page", "of smallest", "bytes/page", "bytes/leaf"
    );
    for (kind, run) in &runs {
        let sizes = run["space"].as_array().context("no sizes")?;
        let first = sizes.first().context("no size")?;
        for size in sizes {
            let growth = |cost| Some(number(size, cost) / number(first, cost));
            let page = number(size, "bytes_per_page");
            let line = (number(size, "cost"), growth("cost"), Some(page));
            print_space(kind.name, (1, "4 KiB"), size, line);
            let leaf = bytes_per_leaf(first, size, "huge_bytes");
            let line = (number(size, "huge_cost"), growth("huge_cost"), leaf);
            print_space(kind.name, (512, "2 MiB"), size, line);
        }
    }
    let leaves = load(leaves)?;
    let sizes = leaves["leaves"].as_array().context("no sizes of leaves of 64 KiB")?;
    let (first, last) = sizes.first().zip(sizes.last()).context("no size of leaves of 64 KiB")?;
    for size in sizes {
        let growth = number(size, "cost") / number(first, "cost");
        let bytes = bytes_per_leaf(first, size, "bytes");
        let line = (number(size, "cost"), Some(growth), bytes);
        print_space(IMAGE.name, (16, "64 KiB"), size, line);
    }
    let bytes = bytes_per_leaf(first, last, "bytes").context("want two sizes of such leaves")?;
    anyhow::ensure!(bytes <= RUN, "a leaf of 64 KiB has {bytes:.1} bytes, more than {RUN}");
    for (kind, run) in &runs {
        keep_space(kind, run).with_context(|| format!("tables of {}", kind.name))?;
    }
    Ok(())
}

/// Returns the bytes of a leaf that `size` has more than `first`.
fn bytes_per_leaf(first: &Value, size: &Value, bytes: &str) -> Option<f64> {
    let leaves = number(size, "leaves") - number(first, "leaves");
    (leaves > 0.0).then(|| (number(size, bytes) - number(first, bytes)) / leaves)
}

/// Fails if the largest size of `run` exceeds a bound.
fn keep_space(kind: &Kind, run: &Value) -> Result<()> {
    let sizes = run["space"].as_array().context("no sizes")?;
    let (first, last) = sizes.first().zip(sizes.last()).context("no size")?;
    let growth = number(last, "cost") / number(first, "cost");
    anyhow::ensure!(
        growth <= GROWTH,
        "a page of the largest size costs {growth:.3} of the smallest"
    );
    let page = number(last, "bytes_per_page");
    anyhow::ensure!(page <= kind.page, "a page has {page:.2} bytes, more than {}", kind.page);
    let leaf =
        bytes_per_leaf(first, last, "huge_bytes").context("want two sizes, the larger one last")?;
    anyhow::ensure!(leaf <= kind.leaf, "a leaf has {leaf:.1} bytes, more than {}", kind.leaf);
    Ok(())
}

/// Prints the rows of one size as a simple table of reStructuredText.
pub fn document(table: &PathBuf, mib: u64) -> Result<()> {
    let table = load(table)?;
    let sizes = table["sizes"].as_array().context("no sizes")?;
    let size = sizes.iter().find(|size| size["mib"] == mib).context("no such size")?;
    let border = format!("{:=<53}  {}", "", ["========="; 7].join("  "));
    let cell = |value: &Value, digits: usize| {
        value.as_f64().map_or("-".to_string(), |number| format!("{number:.digits$}"))
    };
    let line = |name: &str, cells: [String; 7]| {
        let cells = cells.map(|cell| format!("{cell:>9}"));
        println!("{name:<53}  {}", cells.join("  "));
    };
    println!("{border}");
    let names = ["floor", "peer", "ours", "fraction", "to reach", "peer, 1st", "ours, 1st"];
    line("row", names.map(str::to_string));
    println!("{border}");
    for row in size["rows"].as_array().context("no rows")? {
        let cells = [("floor", 0), ("peer", 0), ("ours", 0), ("ratio", 3), ("target", 2)];
        let [floor, peer, ours, ratio, target] =
            cells.map(|(name, digits)| cell(&row[name], digits));
        let [theirs, first] = [0, 1].map(|which| cell(&row["first"][which], 0));
        let cells = [floor, peer, ours, ratio, target, theirs, first];
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
