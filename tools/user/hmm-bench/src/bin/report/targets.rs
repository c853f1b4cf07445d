// SPDX-License-Identifier: GPL-2.0
//! What the rows have to reach, and whether they do.

use super::results::Size;
use serde::Serialize;
use std::fmt;

/// A row as it is judged. `less` is a row that is subtracted. `test` and `debian` are what it may
/// cost on these kernels, as a part of the cheapest peer that has the row.
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

/// Figures of 32 MiB.
const TARGETS: &[Target] = &[
    target(READ, Some(0.33), Some(0.35)),
    beyond("of it, faulting", READ, REREAD, None, Some(0.80)),
    target(REREAD, Some(0.33), Some(0.35)),
    target("device read of one mapped page", Some(0.20), Some(0.40)),
    target("CPU first touch", None, None),
    target("device write fault, unpopulated", Some(0.62), Some(0.65)),
    target("RAM to device, 4 KiB, with read-back", Some(0.60), Some(0.50)),
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
    target("bytes of tables, pages of 4 KiB", None, None),
    target("DMA: device read fault, without the engine", None, None),
    target("DMA: munmap of mapped pages", None, None),
    target("DMA: RAM to device, without the engine", None, None),
    target("DMA: device to RAM, without the engine", None, None),
    target("DMA: host memory, lock and unlock", None, None),
];

/// Operations of which the mirror tax is measured, what the process has meanwhile, and what the
/// operation may cost then, as a part of what it costs without a mirror.
const TAXED: &[&str] = &[
    "mmap and munmap",
    "madvise",
    "mprotect",
    "COW fault",
    "fork and exit",
    "fork, exec and exit",
];
const MIRRORS: &[&str] = &["open mirror", "64 pages elsewhere"];
const TAX: f64 = 1.01;

/// Rows of ours that are compared with another one of ours, and what they may cost as a part of it.
const OWN: &[(&str, &str, &str, f64)] = &[
    (
        "device fault, invalidations (peer: without)",
        "device fault, interrupted by invalidations",
        "device fault, interrupted",
        1.20,
    ),
    ("eviction, 1,000 mirrors (peer: 1)", "eviction, 1,000 mirrors", "eviction, 1 mirror", 1.10),
    ("eviction, 10,000 mirrors (peer: 1)", "eviction, 10,000 mirrors", "eviction, 1 mirror", 1.10),
    (
        "CPU faults, 1,000 mirrors (peer: 1)",
        "CPU faults on device pages, 1,000 mirrors",
        "CPU faults on device pages, 1 mirror",
        1.10,
    ),
    (
        "CPU faults, 10,000 mirrors (peer: 1)",
        "CPU faults on device pages, 10,000 mirrors",
        "CPU faults on device pages, 1 mirror",
        1.10,
    ),
];

/// One line of the table.
#[derive(Serialize)]
pub struct Judged {
    row: String,
    /// What a driver costs that does nothing else.
    floor: Option<f64>,
    /// What it is compared with: the cheapest peer that was measured beside it.
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

/// All rows of a size.
pub fn judge(size: &Size, peers: &[&Size], floor: Option<&Size>, kernel: &str) -> Vec<Judged> {
    let mut out = Vec::new();
    for target in TARGETS {
        let Some(ours) = value(size, target) else {
            continue;
        };
        let peer = peers.iter().filter_map(|peer| value(peer, target)).reduce(f64::min);
        // Nothing is a part of nothing.
        let ratio = peer.filter(|peer| *peer > 0.0).map(|peer| ours / peer);
        let goal = if kernel == "debian" { target.debian } else { target.test };
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
    for operation in TAXED {
        out.extend(MIRRORS.iter().filter_map(|mirror| tax(size, peers, operation, mirror)));
    }
    for (name, row, other, most) in OWN {
        if let (Some(ours), Some(other)) = (size.cost(row), size.cost(other)) {
            out.push(own(name, other, ours, Some(*most)));
        }
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

/// The mirror tax of an operation. The operation without a mirror is the floor, and its cost with one
/// is judged as a part of that: the tax of a peer may be nothing.
fn tax(size: &Size, peers: &[&Size], operation: &str, mirror: &str) -> Option<Judged> {
    let row = format!("mirror tax: {operation}, {mirror}");
    let without = |size: &Size| size.cost(&format!("mirror tax: {operation}, no mirror"));
    let added = |size: &Size| Some(size.cost(&row)? - without(size)?);
    let (floor, ours) = (without(size)?, added(size)?);
    let ratio = 1.0 + ours / floor;
    Some(Judged {
        floor: Some(floor),
        peer: peers.iter().filter_map(|peer| added(peer)).reduce(f64::min),
        ours,
        ratio: Some(ratio),
        target: Some(TAX),
        met: Some(ratio <= TAX),
        phases: Vec::new(),
        row,
    })
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
        let met = |peers: &[&Size]| {
            judge(&ours, peers, None, "debian").iter().map(|row| row.met).collect::<Vec<_>>()
        };
        assert_eq!(met(&[]), [None; 3]);
        let one = size(&[(READ, 10_000.0), (REREAD, 7000.0)]);
        assert_eq!(met(&[&one]), [Some(true); 3]);
        // The cheapest peer of each row counts; one that lacks a row does not.
        let other = size(&[(READ, 2000.0)]);
        assert_eq!(met(&[&one, &other]), [Some(false), Some(true), Some(true)]);
        assert_eq!(judge(&ours, &[&one], None, "debian")[1].peer, Some(3000.0));
    }

    #[test]
    fn the_tax_of_a_mirror_is_what_it_adds() {
        let with = |open| {
            let names = ["mirror tax: madvise, no mirror", "mirror tax: madvise, open mirror"];
            size(&[(names[0], 1000.0), (names[1], open)])
        };
        let rows = judge(&with(1200.0), &[&with(1500.0), &with(1400.0)], None, "test");
        let [row] = &rows[..] else { panic!("{} rows", rows.len()) };
        assert_eq!((row.floor, row.peer, row.ours), (Some(1000.0), Some(400.0), 200.0));
        assert_eq!((row.ratio, row.met), (Some(1.2), Some(false)));
        assert_eq!(judge(&with(1010.0), &[], None, "test")[0].met, Some(true));
    }
}
