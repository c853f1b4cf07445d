// SPDX-License-Identifier: GPL-2.0
//! Accounting of the library's DMA mappings, for all devices.

use std::io::{
    Error,
    Result, //
};

/// Number of pages mapped and unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Mapped since the library was loaded.
    pub mapped: u64,
    /// Unmapped since then.
    pub unmapped: u64,
}

impl Account {
    /// Number of pages that are mapped now.
    pub fn live(self) -> u64 {
        self.mapped - self.unmapped
    }
}

/// Reads the account from debugfs. Checks that its number of mapped pages is the difference of both
/// counters.
pub fn account() -> Result<Account> {
    let text = std::fs::read_to_string("/sys/kernel/debug/rust_hmm/dma")?;
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.trim().parse::<u64>().ok())
    };
    match (value("mapped "), value("unmapped "), value("live ")) {
        (Some(mapped), Some(unmapped), Some(live))
            if mapped.checked_sub(unmapped) == Some(live) =>
        {
            Ok(Account { mapped, unmapped })
        }
        _ => Err(Error::other(format!("not an account of DMA: {text:?}"))),
    }
}
