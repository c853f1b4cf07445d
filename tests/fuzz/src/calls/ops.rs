// SPDX-License-Identifier: GPL-2.0
//! The kinds of calls, and the random choice among them.

use super::nodes::{
    is_loaded,
    ENGINES,
    SAMPLES,
    TEMPLATE, //
};
use hmm::rng::Rng;

macro_rules! ops {
    ($($op:ident $name:literal $weight:literal,)*) => {
        /// Kinds of calls.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Op {
            $(#[doc = $name] $op,)*
        }
        /// Names, as in the headers.
        pub const NAMES: [&str; OPS] = [$($name,)*];
        /// All of them.
        pub const ALL: [Op; OPS] = [$(Op::$op,)*];
        const WEIGHTS: [u64; OPS] = [$($weight,)*];
        /// Number of kinds.
        pub const OPS: usize = [$($weight,)*].len();
    };
}

ops! {
    Read "HMM_DMIRROR_READ" 30,
    Write "HMM_DMIRROR_WRITE" 30,
    MigrateToDev "HMM_DMIRROR_MIGRATE_TO_DEV" 30,
    MigrateToSys "HMM_DMIRROR_MIGRATE_TO_SYS" 30,
    Snapshot "HMM_DMIRROR_SNAPSHOT" 40,
    Exclusive "HMM_DMIRROR_EXCLUSIVE" 30,
    CheckExclusive "HMM_DMIRROR_CHECK_EXCLUSIVE" 40,
    Release "HMM_DMIRROR_RELEASE" 10,
    Flags "HMM_DMIRROR_FLAGS" 10,
    ReadUnlocked "HMM_DMIRROR_READ_UNLOCKED" 30,
    Info "DMIRROR_INFO" 60,
    Counters "DMIRROR_COUNTERS" 60,
    Submit "DMIRROR_SUBMIT" 60,
    Wait "DMIRROR_WAIT" 120,
    Stop "DMIRROR_STOP" 80,
    Engine "DMIRROR_ENGINE" 60,
    Migrate "DMIRROR_MIGRATE" 40,
    Set "DMIRROR_SET" 20,
    Discard "DMIRROR_DISCARD" 40,
    SetAttributes "DMIRROR_SET_ATTRIBUTES" 30,
    GetAttributes "DMIRROR_GET_ATTRIBUTES" 20,
    Placement "DMIRROR_PLACEMENT" 10,
    Policy "DMIRROR_POLICY" 10,
    Memory "DMIRROR_MEMORY" 5,
    Unplug "DMIRROR_UNPLUG" 10,
    QueueCreate "DMIRROR_QUEUE_CREATE" 10,
    QueueDestroy "DMIRROR_QUEUE_DESTROY" 5,
    QueueSubmit "DMIRROR_QUEUE_SUBMIT" 40,
    QueueRecord "DMIRROR_QUEUE_RECORD" 20,
    QueueWait "DMIRROR_QUEUE_WAIT" 20,
    QueueWaits "DMIRROR_QUEUE_WAITS" 10,
    FenceCreate "DMIRROR_FENCE_CREATE" 20,
    FenceSignal "DMIRROR_FENCE_SIGNAL" 40,
    FenceCheck "DMIRROR_FENCE_CHECK" 20,
    FenceSync "DMIRROR_FENCE_SYNC" 2,
    FenceRelease "DMIRROR_FENCE_RELEASE" 20,
    FenceExport "DMIRROR_FENCE_EXPORT" 10,
    FenceImport "DMIRROR_FENCE_IMPORT" 20,
    FenceNotify "DMIRROR_FENCE_NOTIFY" 20,
    Blit "DMIRROR_BLIT" 20,
    Lock "DMIRROR_LOCK" 20,
    Unlock "DMIRROR_UNLOCK" 20,
    Locked "DMIRROR_LOCKED" 20,
    Pull "DMIRROR_PULL" 10,
    Alloc "DMIRROR_ALLOC" 5,
    Events "DMIRROR_EVENTS" 20,
    Template "rust_template" 20,
    Engines "rust_engines" 20,
    Sample "other drivers" 60,
    Unknown "unknown ioctl" 90,
    Mmap "mmap" 1,
    Mremap "mremap" 1,
    Munmap "munmap" 1,
    Poll "poll" 20,
    ReadFd "read" 20,
    WriteFd "write" 20,
    Lseek "lseek" 20,
    Other "other calls on the file" 30,
    Open "open" 2,
    Dup "dup" 3,
    Close "close" 1,
    Pass "SCM_RIGHTS" 2,
}

impl Op {
    /// Whether its argument begins with its size.
    pub fn is_extension(self) -> bool {
        (Op::Info as usize..=Op::Events as usize).contains(&(self as usize))
    }
}

/// The kinds of calls that are drawn, with their weights.
#[derive(Clone, Copy, Debug)]
pub struct Drawn {
    weights: [u64; OPS],
    total: u64,
    /// The loaded ones of the nodes with the calls of [`Op::Sample`], as a bit mask.
    samples: u32,
}

impl Drawn {
    /// The calls of the loaded drivers, and those that no driver implements.
    pub fn new(hardware: bool) -> Drawn {
        let is_there = |op| match op {
            Op::Template => is_loaded(TEMPLATE),
            Op::Engines => is_loaded(ENGINES),
            Op::Lock | Op::Unlock | Op::Locked | Op::Pull => true,
            Op::Sample => !hardware && (0..SAMPLES).any(is_loaded),
            op => !(hardware && op.is_extension()),
        };
        let weights = std::array::from_fn(|op| if is_there(ALL[op]) { WEIGHTS[op] } else { 0 });
        let loaded = (0..SAMPLES).filter(|index| is_loaded(*index));
        let samples = loaded.fold(0, |mask, index| mask | (1 << index));
        Drawn { weights, total: weights.iter().sum(), samples }
    }

    /// Index of a loaded node with the calls of [`Op::Sample`].
    pub(super) fn sample(&self, rng: &mut Rng) -> usize {
        let mut left = rng.below(self.samples.count_ones().max(1) as usize);
        let mut mask = self.samples;
        while left > 0 {
            mask &= mask - 1;
            left -= 1;
        }
        mask.trailing_zeros() as usize % SAMPLES
    }

    pub(super) fn draw(&self, rng: &mut Rng) -> Op {
        let mut at = rng.below_u64(self.total);
        for (op, weight) in ALL.iter().zip(self.weights) {
            if at < weight {
                return *op;
            }
            at -= weight;
        }
        Op::Read
    }
}

/// Valid calls of these kinds take long: makes only one in so many valid.
pub(super) fn serve_one_in(op: Op) -> usize {
    match op {
        Op::Read | Op::Write | Op::ReadUnlocked | Op::Snapshot => 12,
        Op::MigrateToDev | Op::MigrateToSys | Op::Migrate | Op::Exclusive => 24,
        Op::Release => 40,
        Op::Submit => 6,
        _ => 1,
    }
}
