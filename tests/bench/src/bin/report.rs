// SPDX-License-Identifier: GPL-2.0
//! Tables, plots and verdicts from the results of `hmm-bench --json`.

#[path = "report/bounds.rs"]
mod bounds;
#[path = "report/extra.rs"]
mod extra;
#[path = "report/plot.rs"]
mod plot;
#[path = "report/results.rs"]
mod results;
#[path = "report/targets.rs"]
mod targets;

use anyhow::{
    bail,
    Context,
    Result, //
};
use clap::{
    Parser,
    Subcommand, //
};
use results::{
    Results,
    Row, //
};
use std::path::PathBuf;

/// Reports on results of hmm-bench.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Compares results with peers and targets.
    Table {
        /// The result.
        new: PathBuf,
        /// A peer, measured on the same kernel; may be repeated.
        #[arg(long = "peer")]
        peers: Vec<PathBuf>,
        /// The floor, measured on the same kernel.
        #[arg(long)]
        floor: Option<PathBuf>,
        /// Kernel of the measurement. The kernels test and debian have targets.
        #[arg(long, default_value = "test")]
        kernel: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Prints the table of one size in the form of the documents.
    Document {
        /// The output of `table --json`.
        table: PathBuf,
        /// The size.
        #[arg(long)]
        mib: u64,
    },
    /// Fails if the cost of a row has increased.
    Compare {
        /// The result before.
        base: PathBuf,
        /// The result after.
        new: PathBuf,
        /// Tolerated increase of a row in per cent.
        #[arg(long, default_value_t = 2.0)]
        limit: f64,
        /// The peer beside the first result; increases of its cost are attributed to the kernel.
        #[arg(long, requires = "peer_new")]
        peer_base: Option<PathBuf>,
        /// The peer beside the second result.
        #[arg(long, requires = "peer_base")]
        peer_new: Option<PathBuf>,
        /// Units (instructions) below which a difference does not count.
        #[arg(long, default_value_t = 5.0)]
        slack: f64,
    },
    /// Fails if a row exceeds its bound, which is a part of another row of the same result, or of
    /// the mirror tax of test_hmm.
    Bounds {
        /// The result.
        new: PathBuf,
        /// The result of test_hmm, measured on the same kernel.
        #[arg(long)]
        peer: Option<PathBuf>,
    },
    /// Merges lines of several sizes into one result of a driver.
    Merge {
        /// The lines.
        lines: PathBuf,
        /// The driver.
        #[arg(long)]
        driver: String,
    },
    /// Ratios of paired runs: peer, ours, peer, ours.
    Pairs {
        /// Results, alternating.
        runs: Vec<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Draws cost against size.
    Plot {
        /// Results of some sizes.
        runs: Vec<PathBuf>,
        /// Output file.
        #[arg(long)]
        svg: PathBuf,
    },
    /// Prints the results of `hmm-bench --space`; fails if a bound is exceeded.
    Space {
        /// Output of that command, for a device that walks the library's tree.
        tree: PathBuf,
        /// The same, for a device that walks an image in its own memory.
        image: PathBuf,
        /// Output of `hmm-bench --leaves`, for a device that walks leaves of 64 KiB.
        leaves: PathBuf,
    },
    /// Prints the results of `hmm-bench scaling`.
    Scaling {
        /// Output of that command.
        run: PathBuf,
    },
    /// Plots the results of `hmm-bench scaling`.
    PlotScaling {
        /// Output of that command.
        run: PathBuf,
        /// Output file.
        #[arg(long)]
        svg: PathBuf,
    },
}

fn main() -> Result<()> {
    match Args::parse().what {
        What::Table { new, peers, floor, kernel, json } => {
            table(&new, &peers, floor.as_ref(), &kernel, json)
        }
        What::Document { table, mib } => extra::document(&table, mib),
        What::Compare { base, new, limit, slack, peer_base, peer_new } => {
            compare(&base, &new, limit, slack, peer_base.as_ref().zip(peer_new.as_ref()))
        }
        What::Bounds { new, peer } => keep_bounds(&new, peer.as_ref()),
        What::Merge { lines, driver } => merge(&lines, &driver),
        What::Pairs { runs, json } => pairs(&runs, json),
        What::Plot { runs, svg } => {
            let results = runs.iter().map(Results::load).collect::<Result<Vec<_>>>()?;
            Ok(std::fs::write(svg, plot::sizes(&results))?)
        }
        What::Space { tree, image, leaves } => extra::space(&tree, &image, &leaves),
        What::Scaling { run } => extra::scaling(&run),
        What::PlotScaling { run, svg } => {
            let text = std::fs::read_to_string(&run).with_context(|| format!("{run:?}"))?;
            Ok(std::fs::write(svg, plot::scaling(&serde_json::from_str(&text)?))?)
        }
    }
}

fn table(
    new: &PathBuf,
    peers: &[PathBuf],
    floor: Option<&PathBuf>,
    kernel: &str,
    json: bool,
) -> Result<()> {
    let new = Results::load(new)?;
    let peers = peers.iter().map(Results::load).collect::<Result<Vec<_>>>()?;
    let floor = floor.map(Results::load).transpose()?;
    let mut out = Vec::new();
    let mut exceeded = Vec::new();
    for size in &new.sizes {
        let others: Vec<_> = peers.iter().filter_map(|peer| peer.size(size.mib)).collect();
        let least = floor.as_ref().and_then(|floor| floor.size(size.mib));
        let compared = peers.iter().find(|peer| peer.driver == bounds::COMPARED);
        let compared = compared.and_then(|peer| peer.size(size.mib));
        let rows = targets::judge(size, &others, compared, least, kernel);
        if json {
            out.push(serde_json::json!({ "mib": size.mib, "rows": rows }));
            continue;
        }
        println!(
            "{}, {} MiB, kernel {kernel}; ns, under icount instructions",
            new.driver, size.mib
        );
        println!(
            "{:<53} {:>9} {:>9} {:>9} {:>7} {:>7}  {:<8} phases",
            "row", "floor", "peer", "ours", "ratio", "target", "met"
        );
        for row in &rows {
            println!("{row}");
        }
        println!();
        if size.mib == targets::GOALS_MIB {
            exceeded.extend(rows.iter().filter(|row| row.exceeds()).map(|row| row.row.clone()));
        }
    }
    if json {
        println!("{}", serde_json::json!({ "driver": new.driver, "kernel": kernel, "sizes": out }));
    }
    anyhow::ensure!(exceeded.is_empty(), "above the bound: {}", exceeded.join("; "));
    Ok(())
}

fn merge(lines: &PathBuf, driver: &str) -> Result<()> {
    let text = std::fs::read_to_string(lines).with_context(|| format!("{lines:?}"))?;
    let mut sizes = Vec::new();
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let result: serde_json::Value = serde_json::from_str(line)?;
        if result["driver"] == driver {
            sizes.extend(result["sizes"].as_array().into_iter().flatten().cloned());
        }
    }
    println!("{}", serde_json::json!({ "driver": driver, "sizes": sizes }));
    Ok(())
}

fn compare(
    base: &PathBuf,
    new: &PathBuf,
    limit: f64,
    slack: f64,
    peer: Option<(&PathBuf, &PathBuf)>,
) -> Result<()> {
    let base = Results::load(base)?;
    let new = Results::load(new)?;
    let peer = match peer {
        Some((base, new)) => Some((Results::load(base)?, Results::load(new)?)),
        None => None,
    };
    let mut dearer = 0;
    let mut compared = 0;
    for size in &base.sizes {
        let Some(now) = new.size(size.mib) else {
            bail!("the new result lacks {} MiB", size.mib);
        };
        for row in size.rows.iter().filter(|row| row.repeats()) {
            let Some(cost) = now.cost(&row.row) else {
                bail!("the new result lacks the row {:?}", row.row);
            };
            let before = expected(row, size.mib, peer.as_ref());
            let percent = (cost / before - 1.0) * 100.0;
            // Memory is not counted in instructions, and even a small increase matters.
            let slack = if row.row.starts_with("bytes of ") { 0.0 } else { slack };
            let bad = percent > row.limit(limit) && cost - before > slack;
            dearer += usize::from(bad);
            compared += 1;
            let mark = if bad { "  DEARER" } else { "" };
            println!(
                "{:>5} MiB  {:<53} {:>10.1} {:>10.1} {percent:>+7.1} %{mark}",
                size.mib, row.row, before, cost
            );
        }
    }
    anyhow::ensure!(compared > 0, "nothing to compare");
    anyhow::ensure!(dearer == 0, "{dearer} rows exceed their limit, usually {limit} %");
    Ok(())
}

fn keep_bounds(new: &PathBuf, peer: Option<&PathBuf>) -> Result<()> {
    let new = Results::load(new)?;
    let peer = peer.map(Results::load).transpose()?;
    let mut kept = 0;
    let mut exceeded = 0;
    for size in &new.sizes {
        let compared = peer.as_ref().and_then(|peer| peer.size(size.mib));
        for row in bounds::judge(size, &[], compared) {
            let (Some(ratio), Some(bound)) = (row.ratio, row.bound) else {
                continue;
            };
            let mark = if row.exceeds() { "EXCEEDED" } else { "kept" };
            println!("{:>5} MiB  {:<53} {ratio:>10.4} {bound:>10.4}  {mark}", size.mib, row.row);
            match mark {
                "kept" => kept += 1,
                _ => exceeded += 1,
            }
        }
    }
    anyhow::ensure!(exceeded == 0, "{exceeded} bounds are exceeded");
    anyhow::ensure!(kept > 0, "no row has a bound");
    Ok(())
}

/// Returns the cost that `row` would have if only the kernel had changed, by the costs of the peer
/// before and after. If the peer lacks the row, the cost is unchanged.
fn expected(row: &Row, mib: usize, peer: Option<&(Results, Results)>) -> f64 {
    let kernel = peer.filter(|_| row.shows_kernel()).and_then(|(base, new)| {
        let of = |result: &Results| result.size(mib)?.cost(&row.row);
        Some(of(new)? / of(base)?)
    });
    row.cost * kernel.unwrap_or(1.0)
}

fn pairs(runs: &[PathBuf], json: bool) -> Result<()> {
    anyhow::ensure!(!runs.is_empty() && runs.len() % 2 == 0, "the runs are no pairs");
    let results = runs.iter().map(Results::load).collect::<Result<Vec<_>>>()?;
    let first = &results[1];
    let mut out = Vec::new();
    for size in &first.sizes {
        for row in &size.rows {
            let ratio = |pair: &[Results]| {
                let cost = |result: &Results| result.size(size.mib)?.cost(&row.row);
                Some(cost(&pair[1])? / cost(&pair[0])?)
            };
            let mut ratios: Vec<f64> = results.chunks_exact(2).filter_map(ratio).collect();
            if ratios.is_empty() {
                continue;
            }
            ratios.sort_by(f64::total_cmp);
            let median = ratios[ratios.len() / 2];
            let low = ratios[0];
            let high = ratios[ratios.len() - 1];
            if !json {
                println!(
                    "{:>5} MiB  {:<53} {median:>6.3}  ({low:.3} to {high:.3}, {} pairs)",
                    size.mib,
                    row.row,
                    ratios.len()
                );
            }
            out.push(serde_json::json!({ "mib": size.mib, "row": row.row, "median": median,
                "ratios": ratios }));
        }
    }
    if json {
        println!(
            "{}",
            serde_json::json!({ "base": results[0].driver, "new": first.driver, "rows": out })
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_rows_show_changes_of_the_kernel() {
        let peer = |cost: f64| {
            let row = |name| serde_json::json!({ "row": name, "unit": "page", "cost": cost, "rounds": [cost] });
            let rows = [row("munmap, mirrored"), row("eviction, 1 mirror")];
            let sizes = serde_json::json!([{ "mib": 4, "rows": rows }]);
            let result = serde_json::json!({ "driver": "D", "sizes": sizes });
            serde_json::from_value::<Results>(result).expect("a result")
        };
        let peers = (peer(100.0), peer(120.0));
        let row = |name: &str| {
            let row =
                serde_json::json!({ "row": name, "unit": "page", "cost": 50.0, "rounds": [50.0] });
            serde_json::from_value::<Row>(row).expect("a row")
        };
        assert_eq!(expected(&row("munmap, mirrored"), 4, Some(&peers)), 60.0);
        assert_eq!(expected(&row("munmap, mirrored"), 4, None), 50.0);
        // The peer lacks the row, or its cost does not show changes of the kernel.
        assert_eq!(expected(&row("queue: RAM to device"), 4, Some(&peers)), 50.0);
        assert_eq!(expected(&row("eviction, 1 mirror"), 4, Some(&peers)), 50.0);
    }
}
