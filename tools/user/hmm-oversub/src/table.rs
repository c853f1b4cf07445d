// SPDX-License-Identifier: GPL-2.0
//! The table, as reStructuredText.

use crate::run::{Case, Figures};

const RULE: &str =
    "================== ==== ========== === ====== ====== ====== ====== ====== =======";

/// Prints rows as they come.
pub struct Table(());

impl Table {
    /// Prints the head.
    pub fn new() -> Table {
        println!("{RULE}");
        println!(
            "policy             set  pattern    CPU moved  there  back   faults warm   seconds"
        );
        println!("{RULE}");
        Table(())
    }

    /// A row: bytes moved per byte used, those to the device and back of it, faults per MiB of all passes,
    /// and of all but the first.
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

    /// Prints the end.
    pub fn end(&self) {
        println!("{RULE}");
        println!("moved: bytes that moved per byte used, of these there and back; faults: device faults per MiB");
        println!("used; warm: without the first pass. A byte is used once in each pass, pages as a whole.");
    }
}
