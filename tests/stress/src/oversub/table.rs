// SPDX-License-Identifier: GPL-2.0
//! Prints the results as a reStructuredText table.

use crate::run::{Case, Figures};

const RULE: &str =
    "================== ==== ========== === ====== ====== ====== ====== ====== =======";

/// A table that is printed row by row.
pub struct Table(());

impl Table {
    /// Prints the head of the table.
    pub fn new() -> Table {
        println!("{RULE}");
        println!(
            "policy             set  pattern    CPU moved  there  back   faults warm   seconds"
        );
        println!("{RULE}");
        Table(())
    }

    /// Prints a row: bytes moved per byte used, in total, to the device and back, then faults per
    /// MiB of all passes and of all but the first.
    pub fn row(
        &mut self,
        policy: &str,
        case: &Case,
        _cold: &Figures,
        warm: &Figures,
        all: &Figures,
    ) {
        let part = |bytes: u64| bytes as f64 / all.used.max(1) as f64;
        println!(
            "{policy:<18} {:<4} {:<10} {:<3} {:<6.2} {:<6.2} {:<6.2} {:<6.2} {:<6.2} {:.1}",
            format!("{}x", case.set),
            case.pattern.name(),
            case.threads,
            all.moved_per_byte(),
            part(all.there),
            part(all.back),
            all.faults_per_mib(),
            warm.faults_per_mib(),
            all.seconds,
        );
    }

    /// Prints the last rule and the legend.
    pub fn end(&self) {
        println!("{RULE}");
        println!("moved: bytes that moved per byte used, of these there and back; faults: device faults per MiB");
        println!("used; warm: without the first pass. A byte is used once in each pass, pages as a whole.");
    }
}
