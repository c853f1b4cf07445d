// SPDX-License-Identifier: GPL-2.0
//! What the lanes of a process share, and what all processes do.

use crate::op::COMMON_PAGES;
use hmm::{Errno, Mapping, Prot};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, PoisonError};

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

/// How far each lane is, and what all processes count: shared with the supervisor.
///
/// A page for each lane. The words of the first page from 8 on are of all lanes.
#[derive(Debug)]
pub struct Board(Mapping);

/// Words of all lanes.
#[derive(Clone, Copy)]
enum Total {
    /// Copies that were made to fail, and are to fail.
    Armed = 8,
    /// Bus errors and failed blits: each takes one of [`Total::Armed`].
    Claimed,
    /// Address of a bus error that nothing excuses.
    BadAddress,
    /// 1 + its lane.
    BadLane,
    /// Lanes that have done their operations.
    Resting,
    /// 1: nothing but these lanes uses the devices.
    Alone,
    /// 1: copies take no time and do not fail any more.
    Calm,
    /// 1: a device is being unplugged; 2: it was.
    Unplugged,
}

impl Board {
    /// For so many lanes.
    pub fn new(lanes: usize) -> Result<Board, Errno> {
        Mapping::shared(lanes).map(Board)
    }

    /// Another mapping of the same board.
    pub fn again(&self) -> Result<Board, Errno> {
        self.0.again().map(Board)
    }

    /// Operations that a lane has begun.
    pub fn begun(&self, lane: usize) -> &AtomicU64 {
        self.0.atomic(lane, 0)
    }

    /// 1 + the operation that failed.
    pub fn failed(&self, lane: usize) -> &AtomicU64 {
        self.0.atomic(lane, 1)
    }

    /// Changes as long as a lane that has done its operations makes progress.
    pub fn beat(&self, lane: usize) -> &AtomicU64 {
        self.0.atomic(lane, 2)
    }

    /// Bus errors of a lane and of its children.
    pub fn bus_errors(&self, lane: usize) -> &AtomicU64 {
        self.0.atomic(lane, 3)
    }

    fn total(&self, which: Total) -> &AtomicU64 {
        self.0.atomic(0, which as usize)
    }

    /// A copy is about to be made to fail.
    pub fn arm(&self) {
        self.total(Total::Armed).fetch_add(1, SeqCst);
    }

    /// One that was to fail does not fail any more.
    pub fn disarm(&self) {
        self.total(Total::Armed).fetch_sub(1, SeqCst);
    }

    /// Copies that were made to fail so far, or are to fail.
    pub fn armed(&self) -> u64 {
        self.total(Total::Armed).load(SeqCst)
    }

    /// Whether there is a copy that was made to fail for this effect of one: each has one effect.
    pub fn claim(&self) -> bool {
        let before = self.total(Total::Claimed).fetch_add(1, SeqCst);
        before < self.armed() && self.calm().load(SeqCst) == 0
    }

    /// Notes a bus error that nothing excuses.
    pub fn bad_bus_error(&self, lane: usize, addr: usize) {
        self.total(Total::BadAddress).store(addr as u64, SeqCst);
        self.total(Total::BadLane).store(lane as u64 + 1, SeqCst);
    }

    /// Lane and address of a bus error that nothing excuses.
    pub fn bad_bus(&self) -> Option<(u64, u64)> {
        let lane = self.total(Total::BadLane).load(SeqCst).checked_sub(1)?;
        Some((lane, self.total(Total::BadAddress).load(SeqCst)))
    }

    /// A lane has done its operations.
    pub fn rest(&self) {
        self.total(Total::Resting).fetch_add(1, SeqCst);
    }

    /// Lanes that have done their operations.
    pub fn resting(&self) -> u64 {
        self.total(Total::Resting).load(SeqCst)
    }

    /// Whether nothing but the lanes uses the devices.
    pub fn alone(&self) -> &AtomicU64 {
        self.total(Total::Alone)
    }

    /// Whether copies take no time and do not fail any more.
    pub fn calm(&self) -> &AtomicU64 {
        self.total(Total::Calm)
    }

    /// 0; 1: a device is being unplugged; 2: it was.
    pub fn unplugged(&self) -> &AtomicU64 {
        self.total(Total::Unplugged)
    }
}

/// Pages of addresses that are free for what the kernel maps where it likes.
const CLEARING: usize = 1 << 16;

/// Addresses above those of all lanes, which are free when the lanes begin.
///
/// The kernel maps memory at the highest addresses that are free and large enough. So it maps
/// nothing where a lane has unmapped, which must stay so.
#[derive(Debug)]
pub struct Clearing {
    start: usize,
    reserved: Mutex<Option<Mapping>>,
}

impl Clearing {
    /// Reserves the addresses.
    pub fn new() -> Result<Clearing, Errno> {
        let reserved = Mapping::anon_prot(CLEARING, Prot::None)?;
        Ok(Clearing { start: reserved.addr(), reserved: Mutex::new(Some(reserved)) })
    }

    /// Whether `map` lies below.
    pub fn is_above(&self, map: &Mapping) -> bool {
        map.addr() < self.start
    }

    /// Frees the addresses.
    pub fn open(&self) {
        drop(self.reserved.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// What the lanes of a process share.
#[derive(Debug)]
pub struct Env {
    /// Devices in use.
    pub devices: usize,
    /// They are `qemu_gpu`.
    pub hardware: bool,
    /// Lanes of all processes.
    pub lanes: usize,
    /// Memory of this process.
    pub narrow: Common,
    /// Memory of all processes, unless this one is to be killed.
    pub wide: Option<Common>,
    /// Addresses that the kernel may use.
    pub clearing: Clearing,
    /// What all processes count.
    pub board: Board,
    /// A lane has failed: the others end.
    pub stop: AtomicBool,
    /// The time is over: no more operations begin.
    pub early: AtomicBool,
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

    /// Whether to begin no more operations.
    pub fn is_over(&self) -> bool {
        self.stopped() || self.early.load(SeqCst)
    }

    /// Whether to end.
    pub fn stopped(&self) -> bool {
        self.stop.load(SeqCst)
    }
}
