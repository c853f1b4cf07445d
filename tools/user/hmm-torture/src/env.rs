// SPDX-License-Identifier: GPL-2.0
//! What the lanes of a process share, and what all processes do.

use crate::op::COMMON_PAGES;
use hmm::{Errno, Mapping};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Memory in which all may add and write words of their own.
#[derive(Debug)]
pub struct Common {
    /// The pages.
    pub map: Mapping,
    /// What was added to the first word of each.
    pub sums: Mapping,
}

impl Common {
    /// Of one process: anonymous, with huge pages.
    pub fn narrow() -> Result<Common, Errno> {
        Ok(Common { map: Mapping::anon_huge(1)?, sums: Mapping::shared(1)? })
    }

    /// Of all processes that this one becomes.
    pub fn wide() -> Result<Common, Errno> {
        Ok(Common { map: Mapping::shared(COMMON_PAGES)?, sums: Mapping::shared(1)? })
    }

    /// Compares when nobody adds any more.
    pub fn check(&self) -> Result<(), String> {
        for page in 0..COMMON_PAGES {
            let (found, sum) = (self.map.get(page, 0), self.sums.get(0, page));
            if found != sum {
                return Err(format!("common page {page}: {found} found, {sum} added"));
            }
        }
        Ok(())
    }
}

/// How far each lane is: shared with the supervisor.
#[derive(Debug)]
pub struct Board(Mapping);

impl Board {
    /// For so many lanes.
    pub fn new(lanes: usize) -> Result<Board, Errno> {
        Mapping::shared(lanes).map(Board)
    }

    /// Operations that a lane has begun.
    pub fn begun(&self, lane: usize) -> &AtomicU64 {
        self.0.atomic(lane, 0)
    }

    /// Bus errors of all processes.
    pub fn bus_errors(&self) -> &AtomicU64 {
        self.0.atomic(0, 2)
    }

    /// 1 + the operation that failed.
    pub fn failed(&self, lane: usize) -> &AtomicU64 {
        self.0.atomic(lane, 1)
    }
}

/// What the lanes of a process share.
#[derive(Debug)]
pub struct Env {
    /// Devices in use.
    pub devices: usize,
    /// They are `qemu_gpu`.
    pub hardware: bool,
    /// Memory of this process.
    pub narrow: Common,
    /// Memory of all processes, unless this one is to be killed.
    pub wide: Option<Common>,
    /// A lane has failed: the others end.
    pub stop: AtomicBool,
}

impl Env {
    /// Common memory, if this process may use it.
    pub fn common(&self, wide: bool) -> Option<&Common> {
        if wide {
            self.wide.as_ref()
        } else {
            Some(&self.narrow)
        }
    }

    /// Whether to end.
    pub fn stopped(&self) -> bool {
        self.stop.load(SeqCst)
    }
}
