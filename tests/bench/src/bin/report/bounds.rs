// SPDX-License-Identifier: GPL-2.0
//! Bounds of rows relative to other rows of the same driver. They need neither a baseline nor a
//! peer.

use super::results::Size;
use super::targets::Judged;

/// Operations whose mirror tax is measured, the states of the process, and the highest cost as a
/// fraction of the cost without a mirror.
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

/// Driver whose mirror tax ours is compared with: its mirrors have one notifier for the whole
/// address space, so that each change of the process calls them back.
pub const COMPARED: &str = "test_hmm";

/// Highest tax of an operation on memory, as a fraction of that of [`COMPARED`]. Operations that
/// create processes are left out: their runs differ by more than a tenth of its tax.
const TAX_OF_COMPARED: f64 = 0.1;

/// An operation whose tax differs from run to run by almost a tenth of that of [`COMPARED`], and
/// the instructions by which it differs, which its bound permits above the target. Without a mirror
/// the rounds of one run cost 3,028 to 3,284. The tax was -15 and 7 with an open mirror, and -2 and
/// 12 with 64 pages elsewhere.
const DIFFERS: (&str, f64) = ("madvise", 22.0);

/// A row whose runs differ as much as it differs from its target: 1.005 to 1.012, because fork()
/// changes the 64 pages, too. The same of an open mirror, which is called back for nothing, was
/// 0.999 to 1.005. Its bound is above the target by no more than that.
const NEAR: (&str, f64) = ("mirror tax: fork and exit, 64 pages elsewhere", 1.013);

/// Highest number of bytes of an open mirror of a process that uses no device memory.
const OPEN_MIRROR: f64 = 16384.0;

/// Rows that are compared with another row of the same driver, and their highest cost as a fraction
/// of that row's cost.
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
    (
        "CPU faults, 2 threads (peer: 1)",
        "CPU faults on device pages, 2 threads",
        "CPU faults on device pages, 1 thread",
        1.10,
    ),
    (
        "CPU faults, 4 threads (peer: 1)",
        "CPU faults on device pages, 4 threads",
        "CPU faults on device pages, 1 thread",
        1.10,
    ),
];

/// Judges all bounds for which `size` has the rows. `compared` are the results of [`COMPARED`].
pub fn judge(size: &Size, peers: &[&Size], compared: Option<&Size>) -> Vec<Judged> {
    let mut out = Vec::new();
    for operation in TAXED {
        out.extend(MIRRORS.iter().filter_map(|mirror| tax(size, peers, operation, mirror)));
    }
    for operation in TAXED.iter().filter(|operation| !operation.starts_with("fork")) {
        let other = |mirror: &&str| tax_of_compared(size, compared?, operation, mirror);
        out.extend(MIRRORS.iter().filter_map(other));
    }
    for (name, row, other, most) in OWN {
        if let (Some(ours), Some(other)) = (size.cost(row), size.cost(other)) {
            out.push(own(name, other, ours, Some(*most)));
        }
    }
    if let Some(ours) = size.cost("bytes of an open mirror") {
        out.push(own("bytes of an open mirror (peer: 16 KiB)", OPEN_MIRROR, ours, Some(1.0)));
    }
    // The cost must depend on the number of pages, and not on the size of the address space.
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
        let met = faultless == 0.0 && ordinary > 0.0;
        row.met = Some(met);
        // The ratio of 0 to 0 is none.
        row.ratio = Some(if met { 0.0 } else { f64::INFINITY });
        out.push(row);
    }
    out
}

fn without_mirror(operation: &str) -> String {
    format!("mirror tax: {operation}, no mirror")
}

fn with_mirror(operation: &str, mirror: &str) -> String {
    format!("mirror tax: {operation}, {mirror}")
}

/// Returns the cost that the mirror adds to the operation.
fn added_by(size: &Size, operation: &str, mirror: &str) -> Option<f64> {
    let with = size.rounds(&with_mirror(operation, mirror))?;
    added(with, size.rounds(&without_mirror(operation))?)
}

/// Judges the mirror tax of an operation relative to that of [`COMPARED`], the driver in C. There
/// is no row if that has no tax.
fn tax_of_compared(size: &Size, compared: &Size, operation: &str, mirror: &str) -> Option<Judged> {
    let theirs = added_by(compared, operation, mirror).filter(|theirs| *theirs > 0.0)?;
    let ours = added_by(size, operation, mirror)?;
    let row = format!("tax: {operation}, {mirror} (peer: C)");
    let mut row = own(&row, theirs, ours, Some(TAX_OF_COMPARED));
    if operation == DIFFERS.0 {
        row.bound = row.bound.map(|bound| bound + DIFFERS.1 / theirs);
    }
    Some(row)
}

/// Judges the mirror tax of an operation. The floor is the cost without a mirror, and the cost with
/// one is judged relative to it, because the tax of the cheapest peer may be 0.
fn tax(size: &Size, peers: &[&Size], operation: &str, mirror: &str) -> Option<Judged> {
    let row = with_mirror(operation, mirror);
    let floor = size.cost(&without_mirror(operation))?;
    let ours = added_by(size, operation, mirror)?;
    let ratio = 1.0 + ours / floor;
    let bound = if row == NEAR.0 { NEAR.1 } else { TAX };
    Some(Judged {
        floor: Some(floor),
        peer: peers.iter().filter_map(|peer| added_by(peer, operation, mirror)).reduce(f64::min),
        ours,
        ratio: Some(ratio),
        target: Some(TAX),
        met: Some(ratio <= TAX),
        bound: Some(bound),
        first: (None, None),
        phases: Vec::new(),
        row,
    })
}

/// Returns the cost that the rounds of one row add to those of another with which they took turns.
/// It is the median of all pairwise differences (the Hodges-Lehmann estimator).
///
/// Costs cluster at a few values, which depend on concurrent work of the kernel, so the medians of
/// two rows may be from different clusters. Some costs rise and fall from round to round, at
/// different times in each row, so adjacent rounds cannot be paired.
pub fn added(with: &[f64], without: &[f64]) -> Option<f64> {
    let of = |with| without.iter().map(move |without| with - without);
    let mut more: Vec<f64> = with.iter().copied().flat_map(of).collect();
    more.sort_by(f64::total_cmp);
    more.get(more.len() / 2).copied()
}

/// Judges `ours` relative to `peer`, which is another row of the same driver, or a number.
pub fn own(row: &str, peer: f64, ours: f64, target: Option<f64>) -> Judged {
    let ratio = Some(ours / peer);
    let met = ratio.zip(target).map(|(ratio, target)| ratio <= target);
    let row = row.to_string();
    let peer = Some(peer);
    let first = (None, None);
    Judged {
        row,
        floor: None,
        peer,
        ours,
        ratio,
        target,
        met,
        bound: target,
        first,
        phases: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Row;
    use std::collections::BTreeMap;

    #[test]
    fn all_rounds_are_compared() {
        // Most rounds of one row are in the cheap cluster, most of the other in the expensive one.
        let without = [10.0, 10.0, 12.0, 10.0, 12.0];
        let with = [10.0, 12.0, 12.0, 10.0, 12.0];
        assert_eq!(added(&with, &without), Some(0.0));
        let dearer = with.map(|cost| cost + 1.0);
        assert_eq!(added(&dearer, &without), Some(1.0));
        assert_eq!(added(&[], &without), None);
        // Both rise and fall with a period of five rounds, one of them two rounds later.
        let without = [10.0, 11.0, 12.0, 13.0, 14.0];
        let with = [13.0, 14.0, 10.0, 11.0, 12.0];
        assert_eq!(added(&with, &without), Some(0.0));
    }

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
    fn mirror_tax_is_the_added_time() {
        let with = |open| {
            let names = ["mirror tax: madvise, no mirror", "mirror tax: madvise, open mirror"];
            size(&[(names[0], 1000.0), (names[1], open)])
        };
        let rows = judge(&with(1200.0), &[&with(1500.0), &with(1400.0)], None);
        let [row] = &rows[..] else { panic!("{} rows", rows.len()) };
        assert_eq!((row.floor, row.peer, row.ours), (Some(1000.0), Some(400.0), 200.0));
        assert_eq!((row.ratio, row.met), (Some(1.2), Some(false)));
        assert_eq!(judge(&with(1010.0), &[], None)[0].met, Some(true));
    }

    #[test]
    fn mirror_tax_is_a_fraction_of_that_of_the_compared_driver() {
        let with = |operation: &str, mirror: &str, cost| {
            size(&[(&without_mirror(operation), 1000.0), (&with_mirror(operation, mirror), cost)])
        };
        let verdict = |operation, mirror, ours, theirs| {
            let theirs = with(operation, mirror, theirs);
            let rows = judge(&with(operation, mirror, ours), &[], Some(&theirs));
            let [_, compared] = &rows[..] else { panic!("{} rows", rows.len()) };
            (compared.met, compared.exceeds())
        };
        for mirror in MIRRORS {
            assert_eq!(verdict("mprotect", mirror, 1005.0, 1050.0), (Some(true), false));
            assert_eq!(verdict("mprotect", mirror, 1006.0, 1050.0), (Some(false), true));
            assert_eq!(verdict("mprotect", mirror, 994.0, 1050.0), (Some(true), false));
            // The bound of madvise is above its target.
            assert_eq!(verdict("madvise", mirror, 1005.0, 1050.0), (Some(true), false));
            assert_eq!(verdict("madvise", mirror, 1026.0, 1050.0), (Some(false), false));
            assert_eq!(verdict("madvise", mirror, 1028.0, 1050.0), (Some(false), true));
        }
        let rows = |operation, ours, theirs| {
            let theirs = with(operation, MIRRORS[0], theirs);
            judge(&with(operation, MIRRORS[0], ours), &[], Some(&theirs)).len()
        };
        // There is no fraction of nothing, and none of operations that create processes.
        assert_eq!(rows("mprotect", 1005.0, 1000.0), 1);
        assert_eq!(rows("fork and exit", 1005.0, 1050.0), 1);
        assert_eq!(rows("COW fault", 1005.0, 1050.0), 2);
    }

    #[test]
    fn names_of_bounds_fit_their_column() {
        for (operation, mirror) in
            TAXED.iter().flat_map(|one| MIRRORS.iter().map(move |mirror| (one, mirror)))
        {
            let without = without_mirror(operation);
            let with = with_mirror(operation, mirror);
            let size = size(&[(&without, 1000.0), (&with, 1010.0)]);
            for row in judge(&size, &[], Some(&size)) {
                assert!(row.row.len() <= 53, "{}", row.row);
            }
        }
    }
}
