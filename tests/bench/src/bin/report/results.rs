// SPDX-License-Identifier: GPL-2.0
//! Results in the format of `hmm-bench --json`.

use anyhow::{
    Context,
    Result, //
};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Results of one driver.
#[derive(Deserialize)]
pub struct Results {
    /// Name of the driver.
    pub driver: String,
    /// Results of each memory size.
    pub sizes: Vec<Size>,
}

/// Results of one memory size.
#[derive(Deserialize)]
pub struct Size {
    /// Size in MiB.
    pub mib: usize,
    /// The rows.
    pub rows: Vec<Row>,
}

/// Results of one row.
#[derive(Deserialize)]
pub struct Row {
    /// Name of the row.
    pub row: String,
    /// Unit of the cost.
    pub unit: String,
    /// Cost per unit of the round that counts.
    pub cost: f64,
    /// Costs of all rounds, in order.
    pub rounds: Vec<f64>,
    /// Cost of the round that counts, by phase.
    #[serde(default)]
    pub phases: BTreeMap<String, f64>,
}

impl Row {
    /// Returns whether repeated runs agree. The time that a reader waits depends on scheduling. So
    /// do the completion of an operation by another thread and the overlap of CPU faults. The
    /// mirror tax has bounds relative to the same operation without a mirror.
    pub fn repeats(&self) -> bool {
        const DIFFER: &[&str] =
            &["reader's lost time", "queue: record, waited for", "mirror tax: "];
        !DIFFER.iter().any(|name| self.row.starts_with(name))
    }

    /// Returns the tolerated increase of this row in per cent; `usual` is that of most rows. The
    /// cost of an eviction and of an allocation of managed memory depends on the state of memory.
    /// The bytes of a mirror are from slabs that others share: three runs had 11,452, 11,480 and
    /// 11,972.
    pub fn limit(&self, usual: f64) -> f64 {
        const OF_STATE: f64 = 5.0;
        const DEPEND: &[&str] =
            &["eviction, ", "managed memory: allocation", "bytes of an open mirror"];
        if DEPEND.iter().any(|name| self.row.starts_with(name)) {
            usual.max(OF_STATE)
        } else {
            usual
        }
    }

    /// Returns whether the cost of this row for `test_hmm` shows changes of the kernel. The number
    /// of evicted pages and the memory that is allocated depend on the earlier state.
    pub fn shows_kernel(&self) -> bool {
        !self.row.starts_with("eviction, ") && !self.row.starts_with("bytes of ")
    }
}

impl Results {
    /// Reads the last line of a file that is a result.
    pub fn load(path: &PathBuf) -> Result<Results> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {path:?}"))?;
        let line = text.lines().rev().find(|line| line.starts_with('{'));
        serde_json::from_str(line.unwrap_or_default())
            .with_context(|| format!("{path:?} is no result of hmm-bench"))
    }

    /// Returns the rows of one size.
    pub fn size(&self, mib: usize) -> Option<&Size> {
        self.sizes.iter().find(|size| size.mib == mib)
    }
}

impl Size {
    /// Returns the cost of a row.
    pub fn cost(&self, row: &str) -> Option<f64> {
        self.rows.iter().find(|one| one.row == row).map(|one| one.cost)
    }

    /// Returns the costs of all rounds of a row.
    pub fn rounds(&self, row: &str) -> Option<&[f64]> {
        self.rows.iter().find(|one| one.row == row).map(|one| one.rounds.as_slice())
    }
}
