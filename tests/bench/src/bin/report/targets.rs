// SPDX-License-Identifier: GPL-2.0
//! Targets of the rows relative to the cheapest peer, and the verdict on each.

use super::bounds;
use super::results::Size;
use serde::Serialize;
use std::fmt;

/// Target of a row. The cost of row `less` is subtracted, if there is one. `test` and `debian` are
/// the maximal costs on these kernels, as a fraction of the cheapest peer that has the row.
struct Target {
    row: &'static str,
    less: Option<&'static str>,
    name: &'static str,
    test: Option<f64>,
    debian: Option<f64>,
}

const fn target(row: &'static str, test: Option<f64>, debian: Option<f64>) -> Target {
    Target { row, less: None, name: row, test, debian }
}

const fn beyond(
    name: &'static str,
    row: &'static str,
    less: &'static str,
    test: Option<f64>,
    debian: Option<f64>,
) -> Target {
    Target { row, less: Some(less), name, test, debian }
}

const READ: &str = "device read fault, populated";
const REREAD: &str = "device re-read";

/// Targets for 32 MiB.
const TARGETS: &[Target] = &[
    target(READ, Some(0.33), Some(0.35)),
    beyond("of it, faulting", READ, REREAD, None, Some(0.80)),
    target(REREAD, Some(0.33), Some(0.35)),
    target("device read of one mapped page", Some(0.20), Some(0.40)),
    target("CPU first touch", None, None),
    target("device write fault, unpopulated", Some(0.62), Some(0.65)),
    target("RAM to device, with read-back", Some(0.60), Some(0.50)),
    target("RAM to device, THP, with read-back", Some(0.40), Some(0.45)),
    target("prefetch of resident memory, with read-back", None, None),
    target("prefetch of resident memory", None, None),
    target("device to RAM, CPU touch, sequential", Some(0.38), Some(0.85)),
    target("device to RAM, CPU touch, random in 2 MiB", Some(0.42), Some(0.85)),
    target("device to RAM by request", Some(0.74), Some(0.85)),
    target("device to RAM, THP, CPU touch", Some(0.33), Some(0.95)),
    target("close of a device full of pages", Some(0.52), Some(0.70)),
    beyond(
        "munmap, beyond an unmirrored one",
        "munmap, mirrored",
        "munmap, not mirrored",
        Some(0.054),
        Some(0.80),
    ),
    beyond(
        "mprotect, beyond an unmirrored one",
        "mprotect, mirrored",
        "mprotect, not mirrored",
        Some(0.15),
        Some(0.80),
    ),
    beyond(
        "madvise of a page, beyond an unmirrored one",
        "madvise of a page, mirrored",
        "madvise of a page, not mirrored",
        Some(1.0),
        Some(1.0),
    ),
    target("CPU faults on device pages, 1 thread", None, None),
    target("CPU faults on device pages, 2 threads", None, None),
    target("CPU faults on device pages, 4 threads", None, None),
    target("bytes of an open mirror", None, None),
    target("bytes of tables, small pages", None, None),
    target("DMA: device read fault, without the engine", None, None),
    target("DMA: munmap of mapped pages", None, None),
    target("DMA: RAM to device, without the engine", None, None),
    target("DMA: device to RAM, without the engine", None, None),
    target("DMA: host memory, lock and unlock", None, None),
];

/// One line of the table.
#[derive(Serialize)]
pub struct Judged {
    pub row: String,
    /// Cost of the floor driver, which only copies pages and calls `migrate_vma_*()`.
    pub floor: Option<f64>,
    /// Cost to compare with: that of the cheapest peer.
    pub peer: Option<f64>,
    pub ours: f64,
    pub ratio: Option<f64>,
    pub target: Option<f64>,
    pub met: Option<bool>,
    pub phases: Vec<(String, f64)>,
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |value: Option<f64>, digits: usize| {
            value.map_or("-".to_string(), |value| format!("{value:.digits$}"))
        };
        write!(
            f,
            "{:<53} {:>9} {:>9} {:>9.1} {:>7} {:>7}  {:<4}",
            self.row,
            number(self.floor, 0),
            number(self.peer, 0),
            self.ours,
            number(self.ratio, 3),
            number(self.target, 2),
            self.met.map_or("", |met| if met { "yes" } else { "NO" }),
        )?;
        for (name, ns) in &self.phases {
            write!(f, " {name} {ns:.0}")?;
        }
        Ok(())
    }
}

fn value(size: &Size, target: &Target) -> Option<f64> {
    let less = target.less.map_or(Some(0.0), |row| size.cost(row))?;
    Some(size.cost(target.row)? - less)
}

/// Judges all rows of a size.
pub fn judge(size: &Size, peers: &[&Size], floor: Option<&Size>, kernel: &str) -> Vec<Judged> {
    let mut out = Vec::new();
    for target in TARGETS {
        let Some(ours) = value(size, target) else {
            continue;
        };
        let peer = peers.iter().filter_map(|peer| value(peer, target)).reduce(f64::min);
        // There is no ratio if the peer's cost is 0.
        let ratio = peer.filter(|peer| *peer > 0.0).map(|peer| ours / peer);
        let goal = match kernel {
            "debian" => target.debian,
            "test" => target.test,
            _ => None,
        };
        let row = size.rows.iter().find(|row| row.row == target.row);
        let mut phases: Vec<_> = row
            .filter(|_| target.less.is_none())
            .into_iter()
            .flat_map(|row| row.phases.iter().map(|(name, ns)| (name.clone(), *ns)))
            .filter(|(_, ns)| *ns >= 0.5)
            .collect();
        phases.sort_by(|a, b| b.1.total_cmp(&a.1));
        out.push(Judged {
            row: target.name.to_string(),
            floor: floor.and_then(|floor| value(floor, target)),
            peer,
            ours,
            ratio,
            target: goal,
            met: ratio.zip(goal).map(|(ratio, goal)| ratio <= goal),
            phases,
        });
    }
    out.extend(bounds::judge(size, peers));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Row;
    use std::collections::BTreeMap;

    fn size(rows: &[(&str, f64)]) -> Size {
        let row = |(row, cost): &(&str, f64)| Row {
            row: row.to_string(),
            unit: "page".to_string(),
            cost: *cost,
            rounds: vec![*cost],
            phases: BTreeMap::new(),
        };
        Size { mib: 32, rows: rows.iter().map(row).collect() }
    }

    #[test]
    fn row_is_compared_with_its_fraction() {
        let ours = size(&[(READ, 1700.0), (REREAD, 1600.0)]);
        let met = |peers: &[&Size]| {
            judge(&ours, peers, None, "debian").iter().map(|row| row.met).collect::<Vec<_>>()
        };
        assert_eq!(met(&[]), [None; 3]);
        let one = size(&[(READ, 10_000.0), (REREAD, 7000.0)]);
        assert_eq!(met(&[&one]), [Some(true); 3]);
        // The cheapest peer of each row counts. A peer that lacks the row does not count.
        let other = size(&[(READ, 2000.0)]);
        assert_eq!(met(&[&one, &other]), [Some(false), Some(true), Some(true)]);
        assert_eq!(judge(&ours, &[&one], None, "debian")[1].peer, Some(3000.0));
    }
}
