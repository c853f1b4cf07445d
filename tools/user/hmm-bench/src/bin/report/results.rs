// SPDX-License-Identifier: GPL-2.0
//! Results as `hmm-bench --json` writes them.

use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Of one driver.
#[derive(Deserialize)]
pub struct Results {
    /// Its name.
    pub driver: String,
    /// By size.
    pub sizes: Vec<Size>,
}

/// Of one size.
#[derive(Deserialize)]
pub struct Size {
    /// Its MiB.
    pub mib: usize,
    /// The rows.
    pub rows: Vec<Row>,
}

/// One row.
#[derive(Deserialize)]
pub struct Row {
    /// Its name.
    pub row: String,
    /// What it is per.
    pub unit: String,
    /// Of the round that counts.
    pub cost: f64,
    /// Of all rounds, in order.
    pub rounds: Vec<f64>,
    /// Of that, by phase.
    #[serde(default)]
    pub phases: BTreeMap<String, f64>,
}

impl Row {
    /// Whether runs agree. The time that a reader waits depends on when it runs, and so does whether
    /// another thread has completed what is waited for, and how CPU faults of many threads meet. The
    /// mirror tax has bounds beside the same operation without a mirror.
    pub fn repeats(&self) -> bool {
        const DIFFER: &[&str] =
            &["reader's lost time", "queue: record, waited for", "mirror tax: "];
        !DIFFER.iter().any(|name| self.row.starts_with(name))
    }

    /// Whether what `test_hmm` costs in this row tells what the kernel does. How much it evicts, and
    /// what it allocates, depends on what was there before.
    pub fn shows_kernel(&self) -> bool {
        !self.row.starts_with("eviction, ") && !self.row.starts_with("bytes of ")
    }
}

impl Results {
    /// Reads a file; the last line of it that is a result.
    pub fn load(path: &PathBuf) -> Result<Results> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {path:?}"))?;
        let line = text.lines().rev().find(|line| line.starts_with('{'));
        serde_json::from_str(line.unwrap_or_default())
            .with_context(|| format!("{path:?} is no result of hmm-bench"))
    }

    /// The rows of one size.
    pub fn size(&self, mib: usize) -> Option<&Size> {
        self.sizes.iter().find(|size| size.mib == mib)
    }
}

impl Size {
    /// What a row costs.
    pub fn cost(&self, row: &str) -> Option<f64> {
        self.rows.iter().find(|one| one.row == row).map(|one| one.cost)
    }

    /// What each round of a row costs.
    pub fn rounds(&self, row: &str) -> Option<&[f64]> {
        self.rows.iter().find(|one| one.row == row).map(|one| one.rounds.as_slice())
    }
}
