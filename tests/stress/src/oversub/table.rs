// SPDX-License-Identifier: GPL-2.0
//! Renders the results as a reStructuredText table.

use crate::oversub::run::{
    Case,
    Figures, //
};
use crate::table::render;

const HEAD: [&str; 10] =
    ["policy", "set", "pattern", "CPU", "moved", "there", "back", "faults", "warm", "seconds"];

/// Columns of a row.
pub type Row = [String; 10];

/// Returns the columns of a case: bytes moved per byte used, in total, to the device and back, then
/// faults per MiB of all passes and of all but the first.
pub fn row(policy: &str, case: &Case, warm: &Figures, all: &Figures) -> Row {
    let part = |bytes: u64| bytes as f64 / all.used.max(1) as f64;
    [
        policy.to_string(),
        format!("{}x", case.set),
        case.pattern.name().to_string(),
        case.threads.to_string(),
        format!("{:.2}", all.moved_per_byte()),
        format!("{:.2}", part(all.there)),
        format!("{:.2}", part(all.back)),
        format!("{:.2}", all.faults_per_mib()),
        format!("{:.2}", warm.faults_per_mib()),
        format!("{:.1}", all.seconds),
    ]
}

/// Prints the table and its legend.
pub fn print(rows: Vec<Row>) {
    print!("{}", render(HEAD, 3, rows, true));
    println!("moved: bytes that moved per byte used, of these there and back; faults: device faults per MiB");
    println!(
        "used; warm: without the first pass. A byte is used once in each pass, pages as a whole."
    );
}
