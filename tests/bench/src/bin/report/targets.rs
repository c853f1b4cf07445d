// SPDX-License-Identifier: GPL-2.0
//! Targets of the rows relative to the cheapest peer, and the verdict on each.

use super::bounds;
use super::results::Size;
use serde::Serialize;
use std::fmt;

/// Highest cost of a row, as a fraction of that of the cheapest peer that has the row.
#[derive(Clone, Copy)]
struct Goal {
    most: f64,
    /// Bound of a row that misses its goal, or reaches it by less than its figures vary: the
    /// measured fraction, and 2 %.
    reached: Option<f64>,
}

impl Goal {
    fn bound(self) -> f64 {
        self.reached.unwrap_or(self.most)
    }
}

const fn goal(most: f64) -> Option<Goal> {
    Some(Goal { most, reached: None })
}

const fn near(most: f64, reached: f64) -> Option<Goal> {
    Some(Goal { most, reached: Some(reached * 1.02) })
}

/// Goal of a row on the kernels `test` and `debian`. The cost of row `less` is subtracted, if there
/// is one.
struct Target {
    row: &'static str,
    less: Option<&'static str>,
    name: &'static str,
    test: Option<Goal>,
    debian: Option<Goal>,
}

const fn target(row: &'static str, test: Option<Goal>, debian: Option<Goal>) -> Target {
    Target { row, less: None, name: row, test, debian }
}

const fn beyond(
    name: &'static str,
    row: &'static str,
    less: &'static str,
    test: Option<Goal>,
    debian: Option<Goal>,
) -> Target {
    Target { row, less: Some(less), name, test, debian }
}

const READ: &str = "device read fault, populated";
const REREAD: &str = "device re-read";
const TO_DEVICE: &str = "RAM to device, with read-back";

/// Size for which the goals are, in MiB.
pub const GOALS_MIB: usize = 32;

/// Goals for [`GOALS_MIB`]. Those of `test` are for peers that copy by words, as ours does. The
/// book says what keeps a row above its goal.
const TARGETS: &[Target] = &[
    target(READ, goal(0.33), near(0.35, 0.386)),
    beyond("of it, faulting", READ, REREAD, None, goal(0.80)),
    target(REREAD, goal(0.33), goal(0.35)),
    target("device read of one mapped page", goal(0.20), goal(0.40)),
    target("CPU first touch", None, None),
    target("device write fault, unpopulated", goal(0.62), near(0.65, 0.742)),
    target(TO_DEVICE, near(0.60, 0.619), near(0.50, 0.655)),
    target("RAM to device, THP, with read-back", goal(0.40), goal(0.45)),
    target("prefetch of resident memory, with read-back", None, None),
    target("prefetch of resident memory", None, None),
    target("device to RAM, CPU touch, sequential", near(0.38, 0.379), goal(0.85)),
    target("device to RAM, CPU touch, random", near(0.42, 0.419), near(0.85, 0.911)),
    target("device to RAM by request", goal(0.74), goal(0.85)),
    target("device to RAM, THP, CPU touch", goal(0.33), goal(0.95)),
    target("close of a device full of pages", goal(0.52), goal(0.70)),
    beyond(
        "munmap, beyond an unmirrored one",
        "munmap, mirrored",
        "munmap, not mirrored",
        goal(0.054),
        goal(0.80),
    ),
    beyond(
        "mprotect, beyond an unmirrored one",
        "mprotect, mirrored",
        "mprotect, not mirrored",
        goal(0.15),
        goal(0.80),
    ),
    beyond(
        "madvise of a page, beyond an unmirrored one",
        "madvise of a page, mirrored",
        "madvise of a page, not mirrored",
        goal(1.0),
        goal(1.0),
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
    /// Highest permitted ratio, which is above the target of a row that misses it.
    pub bound: Option<f64>,
    /// Costs in the first round: of the cheapest peer, and ours.
    pub first: (Option<f64>, Option<f64>),
    pub phases: Vec<(String, f64)>,
}

impl Judged {
    /// Returns whether the row exceeds its bound.
    pub fn exceeds(&self) -> bool {
        self.ratio.zip(self.bound).is_some_and(|(ratio, bound)| ratio > bound)
    }
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |value: Option<f64>, digits: usize| {
            value.map_or("-".to_string(), |value| format!("{value:.digits$}"))
        };
        write!(
            f,
            "{:<53} {:>9} {:>9} {:>9.1} {:>7} {:>7}  {:<8}",
            self.row,
            number(self.floor, 0),
            number(self.peer, 0),
            self.ours,
            number(self.ratio, 3),
            number(self.target, 2),
            match (self.met, self.exceeds()) {
                (_, true) => "EXCEEDED",
                (Some(true), _) => "yes",
                (Some(false), _) => "NO",
                (None, _) => "",
            },
        )?;
        for (name, ns) in &self.phases {
            write!(f, " {name} {ns:.0}")?;
        }
        Ok(())
    }
}

/// Fewest rounds of rows that took turns.
const TURNS: usize = 11;

fn value(size: &Size, target: &Target) -> Option<f64> {
    let Some(less) = target.less else {
        return size.cost(target.row);
    };
    let with = size.rounds(target.row)?;
    let without = size.rounds(less)?;
    if with.len() >= TURNS {
        return bounds::added(with, without);
    }
    Some(size.cost(target.row)? - size.cost(less)?)
}

fn first(size: &Size, target: &Target) -> Option<f64> {
    let first = |row| size.rounds(row)?.first().copied();
    let less = target.less.map_or(Some(0.0), first)?;
    Some(first(target.row)? - less)
}

/// Judges all rows of a size. `compared` is the peer whose mirror tax counts.
pub fn judge(
    size: &Size,
    peers: &[&Size],
    compared: Option<&Size>,
    floor: Option<&Size>,
    kernel: &str,
) -> Vec<Judged> {
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
        let first_of = |size: &Size| first(size, target);
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
            target: goal.map(|goal| goal.most),
            met: ratio.zip(goal).map(|(ratio, goal)| ratio <= goal.most),
            bound: goal.map(Goal::bound),
            first: (
                peers.iter().filter_map(|peer| first_of(peer)).reduce(f64::min),
                first_of(size),
            ),
            phases,
        });
    }
    if kernel == "test" {
        out.extend(absolute(size, floor));
    }
    out.extend(bounds::judge(size, peers, compared));
    out
}

/// Instructions of a device fault of a populated page, without the engine's access.
const FAULT: f64 = 220.0;

/// Highest cost of a migration to the device, as a fraction of that of the floor driver.
const FLOOR: f64 = 1.06;

/// Goals of `test` that need no peer.
fn absolute(size: &Size, floor: Option<&Size>) -> Vec<Judged> {
    let fault = size.cost(READ).zip(size.cost(REREAD)).map(|(fault, again)| {
        bounds::own(
            "instructions of a device fault, populated (peer: 220)",
            FAULT,
            fault - again,
            Some(1.0),
        )
    });
    let least = floor.and_then(|floor| floor.cost(TO_DEVICE));
    let to_device = size.cost(TO_DEVICE).zip(least).map(|(ours, least)| {
        bounds::own("RAM to device (peer: the floor)", least, ours, Some(FLOOR))
    });
    fault.into_iter().chain(to_device).collect()
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
            judge(&ours, peers, None, None, "debian").iter().map(|row| row.met).collect::<Vec<_>>()
        };
        assert_eq!(met(&[]), [None; 3]);
        let one = size(&[(READ, 10_000.0), (REREAD, 7000.0)]);
        assert_eq!(met(&[&one]), [Some(true); 3]);
        // The cheapest peer of each row counts. A peer that lacks the row does not count.
        let other = size(&[(READ, 2000.0)]);
        assert_eq!(met(&[&one, &other]), [Some(false), Some(true), Some(true)]);
        assert_eq!(judge(&ours, &[&one], None, None, "debian")[1].peer, Some(3000.0));
    }

    #[test]
    fn bound_of_a_missed_goal_is_above_it() {
        assert_eq!(goal(0.5).map(Goal::bound), Some(0.5));
        assert_eq!(near(0.5, 0.6).map(Goal::bound), Some(0.6 * 1.02));
        let ours = size(&[(REREAD, 40.0)]);
        let exceeds =
            |peer| judge(&ours, &[&size(&[(REREAD, peer)])], None, None, "test")[0].exceeds();
        assert!(!exceeds(200.0) && exceeds(100.0));
    }

    #[test]
    fn goals_without_a_peer() {
        let of = |fault, to_device| {
            let ours = size(&[(READ, 700.0 + fault), (REREAD, 700.0), (TO_DEVICE, to_device)]);
            let floor = size(&[(TO_DEVICE, 1000.0)]);
            absolute(&ours, Some(&floor)).iter().map(|row| row.met).collect::<Vec<_>>()
        };
        assert_eq!(of(220.0, 1060.0), [Some(true); 2]);
        assert_eq!(of(221.0, 1061.0), [Some(false); 2]);
    }
}
