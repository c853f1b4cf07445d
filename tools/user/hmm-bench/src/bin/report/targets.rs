// SPDX-License-Identifier: GPL-2.0
//! What the rows have to reach, and whether they do.

use super::results::Size;
use serde::Serialize;
use std::fmt;

/// A row as it is judged. `less` is a row that is subtracted.
struct Target {
    row: &'static str,
    less: Option<&'static str>,
    name: &'static str,
    /// Instructions of `test_hmm` on the kernel test, and the fraction to reach.
    test: Option<(f64, f64)>,
    /// Instructions of the better C peer (`test_hmm`, `drm_gpusvm`) on Debian's kernel, and the fraction.
    debian: Option<(f64, f64)>,
}

const fn target(row: &'static str, test: Option<(f64, f64)>, debian: Option<(f64, f64)>) -> Target {
    Target { row, less: None, name: row, test, debian }
}

const fn beyond(
    name: &'static str,
    row: &'static str,
    less: &'static str,
    test: Option<(f64, f64)>,
    debian: Option<(f64, f64)>,
) -> Target {
    Target { row, less: Some(less), name, test, debian }
}

const READ: &str = "device read fault, populated";
const REREAD: &str = "device re-read";

/// Figures of 32 MiB.
const TARGETS: &[Target] = &[
    target(READ, Some((6849.0, 0.25)), Some((9560.0, 0.35))),
    beyond("of it, faulting", READ, REREAD, None, Some((419.0, 0.80))),
    target(REREAD, Some((6144.0, 0.25)), Some((9141.0, 0.35))),
    target("device read of one mapped page", Some((10708.0, 0.40)), Some((14700.0, 0.40))),
    target("CPU first touch", None, None),
    target("device write fault, unpopulated", Some((12439.0, 0.60)), Some((16393.0, 0.65))),
    target("RAM to device, 4 KiB, with read-back", Some((10254.0, 0.50)), Some((18543.0, 0.50))),
    target("RAM to device, THP, with read-back", Some((7760.0, 0.35)), Some((14072.0, 0.45))),
    target("device to RAM, CPU touch, sequential", Some((8625.0, 0.40)), Some((9266.0, 0.85))),
    target("device to RAM, CPU touch, random in 2 MiB", Some((8611.0, 0.40)), Some((9494.0, 0.85))),
    target("device to RAM by request", Some((3783.0, 0.80)), Some((9476.0, 0.85))),
    target("device to RAM, THP, CPU touch", Some((1217.0, 0.90)), Some((4843.0, 0.95))),
    target("close of a device full of pages", Some((5977.0, 0.55)), Some((10150.0, 0.70))),
    beyond(
        "munmap, beyond an unmirrored one",
        "munmap, mirrored",
        "munmap, not mirrored",
        Some((865.0, 0.15)),
        Some((110.0, 0.80)),
    ),
    beyond(
        "mprotect, beyond an unmirrored one",
        "mprotect, mirrored",
        "mprotect, not mirrored",
        Some((863.0, 0.15)),
        Some((102.0, 0.80)),
    ),
    target("DMA: device read fault, without the engine", None, None),
    target("DMA: munmap of mapped pages", None, None),
    target("DMA: RAM to device, without the engine", None, None),
    target("DMA: device to RAM, without the engine", None, None),
    target("DMA: host memory, lock and unlock", None, None),
];

/// One line of the table.
#[derive(Serialize)]
pub struct Judged {
    row: String,
    /// What a driver costs that does nothing else.
    floor: Option<f64>,
    /// What it is compared with: measured beside it, or as known.
    peer: Option<f64>,
    ours: f64,
    ratio: Option<f64>,
    target: Option<f64>,
    met: Option<bool>,
    phases: Vec<(String, f64)>,
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |value: Option<f64>, digits: usize| {
            value.map_or("-".to_string(), |value| format!("{value:.digits$}"))
        };
        write!(
            f,
            "{:<46} {:>9} {:>9} {:>9.1} {:>7} {:>7}  {:<4}",
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

/// All rows of a size. Without a peer that was measured beside it, what is known of peers counts.
pub fn judge(size: &Size, peer: Option<&Size>, floor: Option<&Size>, kernel: &str) -> Vec<Judged> {
    let mut out = Vec::new();
    for target in TARGETS {
        let Some(ours) = value(size, target) else {
            continue;
        };
        let known = if kernel == "debian" { target.debian } else { target.test };
        let peer = peer.and_then(|peer| value(peer, target)).or(known.map(|known| known.0));
        let ratio = peer.map(|peer| ours / peer);
        let goal = known.map(|known| known.1);
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
    // Against our own: the address space does not count, only what is in it.
    let sparse = |bytes| {
        let row = |what| size.cost(&format!("munmap of {bytes} with 10 {what}"));
        row("mirrored pages").zip(row("pages, not mirrored")).map(|(with, without)| with - without)
    };
    if let (Some(small), Some(large)) = (sparse("1 MiB"), sparse("1 TiB")) {
        out.push(own(
            "munmap of 10 mirrored pages in 1 TiB (peer: in 1 MiB)",
            small,
            large,
            Some(1.10),
        ));
    }
    if let (Some(ordinary), Some(faultless)) = (
        size.cost("reader's lost time, ordinary migration"),
        size.cost("reader's lost time, faultless migration"),
    ) {
        let mut row =
            own("reader's lost time, faultless (peer: ordinary)", ordinary, faultless, Some(0.0));
        row.met = Some(faultless == 0.0 && ordinary > 0.0);
        out.push(row);
    }
    out
}

fn own(row: &str, peer: f64, ours: f64, target: Option<f64>) -> Judged {
    let ratio = Some(ours / peer);
    let met = ratio.zip(target).map(|(ratio, target)| ratio <= target);
    let (row, peer) = (row.to_string(), Some(peer));
    Judged { row, floor: None, peer, ours, ratio, target, met, phases: Vec::new() }
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
            phases: BTreeMap::new(),
        };
        Size { mib: 32, rows: rows.iter().map(row).collect() }
    }

    #[test]
    fn a_row_meets_its_fraction_or_not() {
        let ours = size(&[(READ, 1700.0), (REREAD, 1600.0)]);
        let rows = judge(&ours, None, None, "test");
        assert_eq!(
            rows.iter().map(|row| row.met).collect::<Vec<_>>(),
            [Some(true), None, Some(false)]
        );
        // A peer that was measured beside counts more than what is known.
        let peer = size(&[(READ, 10_000.0), (REREAD, 7000.0)]);
        let rows = judge(&ours, Some(&peer), None, "debian");
        assert_eq!(rows[1].peer, Some(3000.0));
        assert_eq!(rows.iter().map(|row| row.met).collect::<Vec<_>>(), [Some(true); 3]);
    }
}
