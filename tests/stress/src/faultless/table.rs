// SPDX-License-Identifier: GPL-2.0
//! Renders the figures as tables.

use crate::faultless::{
    readers,
    rows, //
};
use crate::table::render;

const READERS: [&str; 10] = [
    "pages",
    "migration",
    "trips",
    "moved",
    "switched",
    "read faults",
    "read stalls",
    "stalled ms",
    "read MiB/s",
    "moved MiB/s",
];

const ROWS: [&str; 15] = [
    "row",
    "trips",
    "moved",
    "switched",
    "touched",
    "evicted",
    "read faults",
    "read stalls",
    "write faults",
    "write stalls",
    "mean us",
    "longest us",
    "call us",
    "step us",
    "longest step",
];

/// Renders the rows of faultless and ordinary migration.
pub fn readers(rows: &[readers::Row], rst: bool) -> String {
    let cells = |row: &readers::Row| {
        [
            row.pages.to_string(),
            if row.faultless { "faultless" } else { "ordinary" }.to_string(),
            row.trips.to_string(),
            row.moved.to_string(),
            row.switched.to_string(),
            row.read_faults.to_string(),
            row.read_stalls.to_string(),
            format!("{:.1}", row.stall_ms),
            format!("{:.0}", row.read_mib_s),
            format!("{:.0}", row.moved_mib_s),
        ]
    };
    render(READERS, 2, rows.iter().map(cells).collect(), rst)
}

/// Renders the further rows.
pub fn rows(rows: &[rows::Row], rst: bool) -> String {
    let cells = |row: &rows::Row| {
        [
            row.name.to_string(),
            row.trips.to_string(),
            row.moved.to_string(),
            row.switched.to_string(),
            row.touched.to_string(),
            row.evicted.to_string(),
            row.read_faults.to_string(),
            row.read_stalls.to_string(),
            row.write_faults.to_string(),
            row.write_stalls.to_string(),
            (row.waited_us / (row.read_stalls + row.write_stalls).max(1)).to_string(),
            row.longest_wait_us.to_string(),
            row.longest_call_us.to_string(),
            row.mean_step_us.to_string(),
            row.longest_step_us.to_string(),
        ]
    };
    render(ROWS, 1, rows.iter().map(cells).collect(), rst)
}
