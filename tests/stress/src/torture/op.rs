// SPDX-License-Identifier: GPL-2.0
//! Operations are plain data. They are drawn from a seed before the run starts, so that the seed
//! alone determines them and a subset of them is a script.
//!
//! A new operation needs a variant of [`Op`], a line in `draw.rs`, and an arm in `Lane::dispatch`
//! that also updates the model.

use hmm::HUGE_PAGES;
use serde::{
    Deserialize,
    Serialize, //
};

/// A range of pages of a region, as numbered in [`REGIONS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Index of the region.
    pub r: usize,
    /// First page.
    pub page: usize,
    /// Number of pages, at least 1.
    pub n: usize,
}

impl Span {
    /// The page numbers.
    pub fn pages(self) -> std::ops::Range<usize> {
        self.page..self.page + self.n
    }
}

/// Type of the memory of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Private anonymous, base pages.
    Anon,
    /// Private anonymous, with MADV_HUGEPAGE.
    Huge,
    /// A memfd, mapped shared twice.
    Shared,
    /// A memfd, mapped private.
    File,
    /// hugetlb, mapped private.
    Hugetlb,
    /// Private anonymous; a userfaultfd handler fills missing pages.
    Uffd,
}

/// The regions of each lane, with their size in pages.
pub const REGIONS: [(Kind, usize); 6] = [
    (Kind::Anon, 256),
    (Kind::Huge, 2 * HUGE_PAGES),
    (Kind::Shared, 64),
    (Kind::File, 64),
    (Kind::Hugetlb, HUGE_PAGES),
    (Kind::Uffd, 32),
];

/// Number of common pages, which all lanes of a process or of all processes share.
pub const COMMON_PAGES: usize = 16;

/// Operation of an engine, see `dmirror_uapi.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Sums all words.
    Read,
    /// Writes consecutive numbers.
    Write,
    /// Writes the same value to all words.
    Fill,
    /// Adds to the words at multiples of a stride.
    Add,
    /// Copies from another range.
    Copy,
    /// Computes a checksum of all words.
    Checksum,
    /// Sums the words at multiples of a stride.
    Strided,
    /// Follows pointers from page to page.
    Chase,
}

/// Access rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rights {
    /// None.
    None,
    /// Read-only.
    Read,
    /// Read and write.
    Write,
}

/// Advice of `madvise`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Advice {
    /// `MADV_DONTNEED`: drops the contents immediately.
    DontNeed,
    /// `MADV_FREE`: the contents may be dropped until they are written.
    Free,
    /// `MADV_PAGEOUT`.
    PageOut,
    /// `MADV_COLD`.
    Cold,
    /// `MADV_COLLAPSE`.
    Collapse,
    /// `MADV_HUGEPAGE`.
    HugePage,
    /// `MADV_NOHUGEPAGE`.
    NoHugePage,
    /// `MADV_MERGEABLE`.
    Mergeable,
    /// `MADV_UNMERGEABLE`.
    Unmergeable,
    /// `MADV_POPULATE_WRITE`.
    Populate,
}

/// Behaviour of a forked child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fork {
    /// Reads, writes and reads again with the CPU.
    Cpu,
    /// Opens a device, and does the same with it.
    Device,
    /// Migrates its copy back and forth in an endless loop, and is killed.
    Killed,
    /// Executes this program again, which opens the device.
    Exec,
}

/// An operation of one lane. `dev` is the index of a device, `at` the range of pages, and `value`
/// the number that is added or written. Other fields are described with the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// The CPU writes the pattern `seed`.
    CpuWrite { at: Span, seed: u64 },
    /// The CPU reads and compares with the model.
    CpuRead { at: Span },
    /// The CPU adds to a word of each page.
    CpuAdd { at: Span, word: usize, value: u64 },
    /// The device writes the pattern `seed`.
    DevWrite { dev: usize, at: Span, seed: u64 },
    /// The device reads, and the result is compared; `unlocked`: by `HMM_DMIRROR_READ_UNLOCKED`.
    DevRead { dev: usize, at: Span, unlocked: bool },
    /// Exclusive access of the device, until a CPU access ends it.
    Exclusive { dev: usize, at: Span },
    /// Compares the device's snapshot of the CPU page table with the model.
    Snapshot { dev: usize, at: Span },
    /// Migrates to the device with the ioctl of `test_hmm`, which also returns the contents.
    ToDevice { dev: usize, at: Span },
    /// Migrates to system memory with the ioctl of `test_hmm`.
    ToSystem { dev: usize, at: Span },
    /// Evicts everything from the device.
    Release { dev: usize },
    /// Executes an engine command of one round, and waits for it.
    Engine {
        dev: usize,
        engine: u32,
        work: Work,
        at: Span,
        skip: usize,
        from: Span,
        value: u64,
        stride: usize,
    },
    /// An engine reads in a loop while further operations are executed, until it is stopped.
    Watch { dev: usize, at: Span },
    /// An engine adds in a loop while further operations are executed, until it is stopped.
    Count { dev: usize, at: Span, value: u64 },
    /// Stops all commands in flight, and compares their results.
    Finish,
    /// Migrates, and may fail; `ordinary`: invalidates the device PTEs first; `outcomes`: with a
    /// result for each page.
    Migrate { dev: usize, at: Span, back: bool, ordinary: bool, outcomes: bool },
    /// Discards the device's entries for the range.
    Discard { dev: usize, at: Span },
    /// `munmap`.
    Unmap { at: Span },
    /// `mmap` of unmapped pages.
    MapAgain { at: Span },
    /// `mremap` from one range to another.
    Move { from: Span, to: Span },
    /// `mprotect`.
    Protect { at: Span, rights: Rights },
    /// `madvise`.
    Advise { at: Span, advice: Advice },
    /// `mlock`.
    Lock { at: Span },
    /// `munlock`.
    Unlock { at: Span },
    /// Forks a child with a copy of the memory.
    Fork { how: Fork, dev: usize, at: Span, seed: u64 },
    /// Closes the device, with commands in flight, and opens it again.
    Reopen { dev: usize },
    /// The next allocation of device memory fails.
    FailAlloc { dev: usize },
    /// The copy after `after` further ones fails.
    CopyFail { dev: usize, after: u64 },
    /// Sets the minimum duration of a copy.
    CopyDelay { dev: usize, ns: u64 },
    /// Sets the minimum duration of a flush.
    FlushDelay { dev: usize, ns: u64 },
    /// The CPU adds to a common word; `wide`: one shared by all processes.
    CommonAdd { wide: bool, page: usize, value: u64 },
    /// The device adds to a common word.
    CommonDevAdd { wide: bool, dev: usize, page: usize, value: u64 },
    /// The CPU or the device writes a word of a common page that only this lane writes.
    CommonOwn { wide: bool, dev: usize, page: usize, by_device: bool, value: u64 },
    /// Migrates the common pages.
    CommonMove { dev: usize, back: bool, ordinary: bool },
    /// `madvise` on the common pages.
    CommonAdvise { advice: Advice },
    /// Writes and frees `mib` MiB, which pushes other memory to swap.
    Squeeze { mib: usize },
    /// Sets the policy for faults of engines.
    Policy { dev: usize, which: usize },
    /// Sets all attributes of a range, and reads them back.
    Attributes { dev: usize, at: Span, preferred: usize, values: u32, order: Option<u32> },
    /// Queues a migration to a device, a prefetch by another one, and an eviction.
    Queued { dev: usize, other: usize, at: Span },
    /// Migrates from one device to another.
    Pull { dev: usize, other: usize, at: Span },
    /// Locks memory, tries to move it, and unlocks it.
    HostLock { dev: usize, at: Span, fine: bool },
    /// Allocates managed memory, uses it, and frees it.
    Managed { dev: usize, pages: usize, populate: bool, seed: u64 },
    /// Managed memory of any kind at a reserved address; `bits` are its flags.
    ManagedBeside { dev: usize, pages: usize, bits: u64, seed: u64 },
    /// Managed memory that is populated by a queue.
    ManagedLater { dev: usize, pages: usize, bits: u64, seed: u64 },
    /// A queue fills or copies memory behind a host fence, which may fail.
    QueueWork { dev: usize, at: Span, from: Option<Span>, value: u64, fails: bool },
    /// Sets the best connection of a device to the others.
    Connect { dev: usize, which: usize },
    /// Takes device pages out of use, or brings all back.
    Resize { dev: usize, block: usize, restore: bool },
    /// Reads events, and changes the event mask.
    Events { dev: usize, mask: u64 },
    /// Checks for exclusive entries.
    CheckExclusive { dev: usize, at: Span },
    /// Locks memory for a device, and keeps it locked during further operations.
    Hold { dev: usize, at: Span, fine: bool },
    /// Locks common pages, and keeps them locked.
    HoldCommon { dev: usize, wide: bool, page: usize, n: usize },
    /// The device accesses locked memory by its device address, and the result is compared.
    UseHeld { which: usize, write: bool, value: u64 },
    /// Unlocks one of the held locks.
    Unhold { which: usize },
    /// The device copies between locked ranges; another device waits for the copy by a sync file.
    Blit { dev: usize, other: usize, at: Span, from: Span, slow: bool },
    /// An eventfd, `poll` and a queue of another device wait for a queued migration.
    Notify { dev: usize, other: usize, at: Span, fails: bool },
    /// Reads the counters of an engine before and after a command.
    EngineStatus { dev: usize, engine: u32, at: Span },
    /// Reads the counters of fault policies.
    Placement { dev: usize },
    /// Reads the connection to another device.
    AskPull { dev: usize, other: usize },
    /// Reads the events of a migration of this process through another open file; `all`: they are
    /// enabled.
    EventsOf { dev: usize, at: Span, all: bool },
}

/// Maximum number of pages of an operation on hardware, which takes up to 200 ms for each.
const SLOW_PAGES: usize = 32;

impl Op {
    /// The operation to execute instead on a device that has only the ioctls of `test_hmm` and host
    /// locks; `None` if there is none.
    pub fn on_hardware(self) -> Option<Op> {
        let few = |at: Span| Span { n: at.n.min(SLOW_PAGES), ..at };
        Some(match self {
            Op::DevWrite { dev, at, seed } => Op::DevWrite { dev, at: few(at), seed },
            Op::DevRead { dev, at, unlocked } => Op::DevRead { dev, at: few(at), unlocked },
            Op::Exclusive { dev, at } => Op::Exclusive { dev, at: few(at) },
            Op::ToDevice { dev, at } => Op::ToDevice { dev, at: few(at) },
            Op::ToSystem { dev, at } => Op::ToSystem { dev, at: few(at) },
            Op::HostLock { dev, at, fine } => Op::HostLock { dev, at: few(at), fine },
            Op::Snapshot { .. }
            | Op::Release { .. }
            | Op::Reopen { .. }
            | Op::FailAlloc { .. }
            | Op::CpuWrite { .. }
            | Op::CpuRead { .. }
            | Op::CpuAdd { .. }
            | Op::Unmap { .. }
            | Op::MapAgain { .. }
            | Op::Move { .. }
            | Op::Protect { .. }
            | Op::Advise { .. }
            | Op::Lock { .. }
            | Op::Unlock { .. }
            | Op::Fork { how: Fork::Cpu | Fork::Exec, .. }
            | Op::CommonAdd { .. }
            | Op::CommonAdvise { .. }
            | Op::Squeeze { .. } => self,
            _ => return None,
        })
    }

    /// Name of the operation, for tables.
    pub fn name(&self) -> String {
        let text = format!("{self:?}");
        let name = text.split([' ', '{']).next().unwrap_or_default().to_string();
        match self {
            Op::Engine { work, .. } => format!("{name}{work:?}"),
            Op::Advise { advice, .. } => format!("{name}{advice:?}"),
            Op::Fork { how, .. } => format!("{name}{how:?}"),
            _ => name,
        }
    }
}
