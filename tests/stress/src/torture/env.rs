// SPDX-License-Identifier: GPL-2.0
//! State shared by the lanes of a process, and by all processes of a run.

use crate::torture::op::COMMON_PAGES;
use hmm::{
    Errno,
    Mapping,
    Prot, //
};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{
    AtomicBool,
    AtomicU64, //
};
use std::sync::{
    Mutex,
    PoisonError, //
};

/// Memory to which all lanes add, and in which each lane has words of its own.
#[derive(Debug)]
pub struct Common {
    /// The pages.
    pub map: Mapping,
    /// For each page, the sum of all additions to its first word.
    pub sums: Mapping,
}

impl Common {
    /// Memory of one process: anonymous, with huge pages.
    pub fn narrow() -> Result<Common, Errno> {
        Ok(Common { map: Mapping::anon_huge(1)?, sums: Mapping::shared(1)? })
    }

    /// Memory of all processes: shared, inherited by fork.
    pub fn wide() -> Result<Common, Errno> {
        Ok(Common { map: Mapping::shared(COMMON_PAGES)?, sums: Mapping::shared(1)? })
    }

    /// Compares each word with its sum. Called when no agent adds to them.
    pub fn check(&self) -> Result<(), String> {
        for page in 0..COMMON_PAGES {
            let found = self.map.get(page, 0);
            let sum = self.sums.get(0, page);
            if found != sum {
                return Err(format!("common page {page}: {found} found, {sum} added"));
            }
        }
        Ok(())
    }
}

/// Progress of each lane and totals of all processes, shared with the supervisor.
///
/// One page for each lane. The totals are in the first page, from word 8 on.
#[derive(Debug)]
pub struct Board(Mapping);

/// Words of the first page that all lanes share.
#[derive(Clone, Copy)]
enum Total {
    /// Copy failures injected so far.
    Armed = 8,
    /// Bus errors and failed blits. Each consumes one injected failure of [`Total::Armed`].
    Claimed,
    /// Address of a bus error that no injected failure explains.
    BadAddress,
    /// 1 + lane of that bus error.
    BadLane,
    /// Lanes that have completed their operations.
    Resting,
    /// 1: only the lanes use the devices.
    Alone,
    /// 1: copies neither fail nor are delayed.
    Calm,
    /// 1: a device is being unplugged; 2: it has been unplugged.
    Unplugged,
}

impl Board {
    /// A board for `lanes` lanes.
    pub fn new(lanes: usize) -> Result<Board, Errno> {
        Mapping::shared(lanes).map(Board)
    }

    /// Another mapping of the same board.
    pub fn again(&self) -> Result<Board, Errno> {
        self.0.again().map(Board)
    }

    /// Number of operations that a lane has begun.
    pub fn begun(&self, lane: usize) -> &AtomicU64 {
        self.0.atomic(lane, 0)
    }

    /// 1 + index of the operation that failed; 0 if none has.
    pub fn failed(&self, lane: usize) -> &AtomicU64 {
        self.0.atomic(lane, 1)
    }

    /// Heartbeat of a lane that has completed its operations.
    pub fn beat(&self, lane: usize) -> &AtomicU64 {
        self.0.atomic(lane, 2)
    }

    /// Number of bus errors of a lane and its children.
    pub fn bus_errors(&self, lane: usize) -> &AtomicU64 {
        self.0.atomic(lane, 3)
    }

    fn total(&self, which: Total) -> &AtomicU64 {
        self.0.atomic(0, which as usize)
    }

    /// Counts a copy failure that is about to be injected.
    pub fn arm(&self) {
        self.total(Total::Armed).fetch_add(1, SeqCst);
    }

    /// Takes back [`Self::arm`]: the failure was replaced before it occurred.
    pub fn disarm(&self) {
        self.total(Total::Armed).fetch_sub(1, SeqCst);
    }

    /// Number of copy failures injected so far, whether or not they have occurred.
    pub fn armed(&self) -> u64 {
        self.total(Total::Armed).load(SeqCst)
    }

    /// Consumes one injected copy failure. `false` if there is none left, or if the run is calm.
    pub fn claim(&self) -> bool {
        let before = self.total(Total::Claimed).fetch_add(1, SeqCst);
        before < self.armed() && self.calm().load(SeqCst) == 0
    }

    /// Records a bus error that no injected failure explains.
    pub fn bad_bus_error(&self, lane: usize, addr: usize) {
        self.total(Total::BadAddress).store(addr as u64, SeqCst);
        self.total(Total::BadLane).store(lane as u64 + 1, SeqCst);
    }

    /// Lane and address of a bus error that no injected failure explains.
    pub fn bad_bus(&self) -> Option<(u64, u64)> {
        let lane = self.total(Total::BadLane).load(SeqCst).checked_sub(1)?;
        Some((lane, self.total(Total::BadAddress).load(SeqCst)))
    }

    /// Counts a lane that has completed its operations.
    pub fn rest(&self) {
        self.total(Total::Resting).fetch_add(1, SeqCst);
    }

    /// Number of lanes that have completed their operations.
    pub fn resting(&self) -> u64 {
        self.total(Total::Resting).load(SeqCst)
    }

    /// 1 if only the lanes use the devices.
    pub fn alone(&self) -> &AtomicU64 {
        self.total(Total::Alone)
    }

    /// 1 if copies neither fail nor are delayed.
    pub fn calm(&self) -> &AtomicU64 {
        self.total(Total::Calm)
    }

    /// 0; 1: a device is being unplugged; 2: it has been unplugged.
    pub fn unplugged(&self) -> &AtomicU64 {
        self.total(Total::Unplugged)
    }
}

/// Pages of address space kept free for mappings that the kernel places.
const CLEARING: usize = 1 << 16;

/// Address space above the memory of all lanes, free when the lanes begin.
///
/// mmap() without an address uses the highest gap that is large enough. With this gap it never
/// places a mapping where a lane has unmapped memory, which must stay unmapped.
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

    /// Whether `map` lies below the reserved range.
    pub fn is_above(&self, map: &Mapping) -> bool {
        map.addr() < self.start
    }

    /// Frees the reserved range.
    pub fn open(&self) {
        drop(self.reserved.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// State shared by the lanes of a process.
#[derive(Debug)]
pub struct Env {
    /// Number of devices in use.
    pub devices: usize,
    /// The devices are `qemu_gpu`.
    pub hardware: bool,
    /// Number of lanes of all processes.
    pub lanes: usize,
    /// Common memory of this process.
    pub narrow: Common,
    /// Common memory of all processes. `None` in a process that is killed at random: it could leave
    /// a half-done addition.
    pub wide: Option<Common>,
    /// Address space for mappings that the kernel places.
    pub clearing: Clearing,
    /// Progress and totals, shared with all processes.
    pub board: Board,
    /// Set when a lane has failed: the other lanes end.
    pub stop: AtomicBool,
    /// Set when the time is over: no further operations begin.
    pub early: AtomicBool,
}

impl Env {
    /// Common memory of all processes (`wide`) or of this one, if this process has it.
    pub fn common(&self, wide: bool) -> Option<&Common> {
        if wide {
            self.wide.as_ref()
        } else {
            Some(&self.narrow)
        }
    }

    /// Whether no further operations may begin.
    pub fn is_over(&self) -> bool {
        self.stopped() || self.early.load(SeqCst)
    }

    /// Whether a lane has failed, so that all lanes end.
    pub fn stopped(&self) -> bool {
        self.stop.load(SeqCst)
    }
}
