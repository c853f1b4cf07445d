// SPDX-License-Identifier: GPL-2.0
//! The table of both ways.

use crate::readers::Row;

const HEAD: [&str; 10] = [
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

fn cells(row: &Row) -> [String; 10] {
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
}

/// A table; with lines as reStructuredText wants them if `rst`.
pub fn render(rows: &[Row], rst: bool) -> String {
    let body: Vec<[String; 10]> = rows.iter().map(cells).collect();
    let widths: Vec<usize> = HEAD
        .iter()
        .enumerate()
        .map(|(i, head)| body.iter().map(|row| row[i].len()).chain([head.len()]).max())
        .map(|width| width.unwrap_or(0))
        .collect();
    let line = |cells: &[String]| -> String {
        let cells: Vec<String> = cells
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(i, (cell, width))| match i {
                0 | 1 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            })
            .collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    let rule: Vec<String> = widths.iter().map(|width| "=".repeat(*width)).collect();
    let head: Vec<String> = HEAD.iter().map(|head| head.to_string()).collect();
    let mut text = String::new();
    if rst {
        text += &line(&rule);
    }
    text += &line(&head);
    text += &line(&rule);
    for row in &body {
        text += &line(row);
    }
    if rst {
        text += &line(&rule);
    }
    text
}
