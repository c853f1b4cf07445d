// SPDX-License-Identifier: GPL-2.0
//! Operations: plain data, drawn from a seed before anything runs, so that the
//! seed alone determines them, and a part of them is a script.
//!
//! To add one: a variant of [`Op`], a line in `draw.rs`, an arm in
//! `Lane::dispatch` with what the model makes of it.

use serde::{Deserialize, Serialize};

/// Pages of a region, which are numbered as in [`REGIONS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Region.
    pub r: usize,
    /// First page.
    pub page: usize,
    /// Number of pages, at least 1.
    pub n: usize,
}

impl Span {
    /// The numbers of its pages.
    pub fn pages(self) -> std::ops::Range<usize> {
        self.page..self.page + self.n
    }
}

/// What memory a region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Private anonymous, small pages.
    Anon,
    /// Private anonymous, huge pages wanted.
    Huge,
    /// A memfd, shared, also seen through a second mapping.
    Shared,
    /// A memfd, private.
    File,
    /// hugetlb, private.
    Hugetlb,
    /// Private anonymous; a userfaultfd handler fills what is missing.
    Uffd,
}

/// The regions of each lane and their pages.
pub const REGIONS: [(Kind, usize); 6] = [
    (Kind::Anon, 256),
    (Kind::Huge, 1024),
    (Kind::Shared, 64),
    (Kind::File, 64),
    (Kind::Hugetlb, 512),
    (Kind::Uffd, 32),
];

/// Pages of memory that all lanes of a process, or of all processes, share.
pub const COMMON_PAGES: usize = 16;

/// What an engine does, see `dmirror_uapi.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Sum of all words.
    Read,
    /// Counts up from a value.
    Write,
    /// One value.
    Fill,
    /// Adds to the words at each multiple of a stride.
    Add,
    /// Copies from another place.
    Copy,
    /// Checksum of all words.
    Checksum,
    /// Sum of the words at each multiple of a stride.
    Strided,
    /// Follows pointers from page to page.
    Chase,
}

/// Access rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rights {
    /// None.
    None,
    /// To read.
    Read,
    /// All.
    Write,
}

/// `madvise`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Advice {
    /// Contents go, now.
    DontNeed,
    /// Contents may go, until written.
    Free,
    /// To swap.
    PageOut,
    /// To the end of the lists.
    Cold,
    /// Into huge pages.
    Collapse,
    /// Huge pages are welcome.
    HugePage,
    /// They are not.
    NoHugePage,
    /// Equal pages may be merged.
    Mergeable,
    /// Not any more.
    Unmergeable,
    /// Make pages present, writable.
    Populate,
}

/// What a forked child does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fork {
    /// Reads, writes, reads with the CPU.
    Cpu,
    /// Opens a device and does it with that.
    Device,
    /// Migrates its copy there and back in an endless loop, and is killed.
    Killed,
    /// Becomes another program, which opens the device.
    Exec,
}

/// An operation of one lane: `dev` is a device's number, `at` are the pages, `value` is what is added
/// or written, and what else an operation needs is said with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// The CPU writes the pattern `seed`.
    CpuWrite { at: Span, seed: u64 },
    /// The CPU reads and compares.
    CpuRead { at: Span },
    /// The CPU adds to a word of each page.
    CpuAdd { at: Span, word: usize, value: u64 },
    /// The device writes the pattern `seed`.
    DevWrite { dev: usize, at: Span, seed: u64 },
    /// The device reads, and it is compared; `unlocked`: by `HMM_DMIRROR_READ_UNLOCKED`.
    DevRead { dev: usize, at: Span, unlocked: bool },
    /// Exclusive access of the device, until the CPU touches the page.
    Exclusive { dev: usize, at: Span },
    /// The device's view of its own page table.
    Snapshot { dev: usize, at: Span },
    /// Migrates to the device by the call of `test_hmm`, which copies the contents out, too.
    ToDevice { dev: usize, at: Span },
    /// Migrates back by the call of `test_hmm`.
    ToSystem { dev: usize, at: Span },
    /// Evicts everything from the device.
    Release { dev: usize },
    /// A command of one round, waited for.
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
    /// An engine reads until it is told to stop, while other things happen.
    Watch { dev: usize, at: Span },
    /// An engine adds until it is told to stop, while other things happen.
    Count { dev: usize, at: Span, value: u64 },
    /// Stops all commands in flight and compares.
    Finish,
    /// Migrates, best effort; `ordinary`: the device loses its entries first; `outcomes`: of each page.
    Migrate { dev: usize, at: Span, back: bool, ordinary: bool, outcomes: bool },
    /// The device does not need the pages any more.
    Discard { dev: usize, at: Span },
    /// `munmap`.
    Unmap { at: Span },
    /// `mmap` where pages were removed.
    MapAgain { at: Span },
    /// `mremap` from one place to another.
    Move { from: Span, to: Span },
    /// `mprotect`.
    Protect { at: Span, rights: Rights },
    /// `madvise`.
    Advise { at: Span, advice: Advice },
    /// `mlock`.
    Lock { at: Span },
    /// `munlock`.
    Unlock { at: Span },
    /// A child process with a copy of the memory.
    Fork { how: Fork, dev: usize, at: Span, seed: u64 },
    /// Closes the device, with what is in flight, and opens it again.
    Reopen { dev: usize },
    /// The next allocation of device memory fails.
    FailAlloc { dev: usize },
    /// The copy after so many fails.
    CopyFail { dev: usize, after: u64 },
    /// Each copy takes so many ns at least.
    CopyDelay { dev: usize, ns: u64 },
    /// Each flush takes so many ns at least.
    FlushDelay { dev: usize, ns: u64 },
    /// The CPU adds to a common word; `wide`: one that all processes share.
    CommonAdd { wide: bool, page: usize, value: u64 },
    /// The device adds to a common word.
    CommonDevAdd { wide: bool, dev: usize, page: usize, value: u64 },
    /// The CPU or the device writes a word of the lane's own in a common page.
    CommonOwn { wide: bool, dev: usize, page: usize, by_device: bool, value: u64 },
    /// Migrates the common pages.
    CommonMove { dev: usize, back: bool, ordinary: bool },
    /// `madvise` on the common pages.
    CommonAdvise { advice: Advice },
    /// Writes so many MiB and gives them up again, which presses on the others.
    Squeeze { mib: usize },
    /// Who decides about faults of engines.
    Policy { dev: usize, which: usize },
    /// Sets all attributes of a range, and asks for them.
    Attributes { dev: usize, at: Span, preferred: usize, values: u32, order: Option<u32> },
    /// There by a queue, and after that there by another one, and back.
    Queued { dev: usize, other: usize, at: Span },
    /// From one device to another.
    Pull { dev: usize, other: usize, at: Span },
    /// Locks memory, tries to move it, and unlocks it.
    HostLock { dev: usize, at: Span, fine: bool },
    /// Allocates managed memory, uses it, and frees it.
    Managed { dev: usize, pages: usize, populate: bool, seed: u64 },
    /// Managed memory of any kind at a place of the lane's own; `bits` are its flags.
    ManagedBeside { dev: usize, pages: usize, bits: u64, seed: u64 },
    /// Managed memory that a queue populates.
    ManagedLater { dev: usize, pages: usize, bits: u64, seed: u64 },
    /// A queue fills memory, or copies it, after a fence of the host, which may fail.
    QueueWork { dev: usize, at: Span, from: Option<Span>, value: u64, fails: bool },
    /// Best connection of a device to the others.
    Connect { dev: usize, which: usize },
    /// Takes device pages out of use, or brings all back.
    Resize { dev: usize, block: usize, restore: bool },
    /// Reads events, and asks for others.
    Events { dev: usize, mask: u64 },
    /// Asks whether exclusive entries are in the way.
    CheckExclusive { dev: usize, at: Span },
    /// Locks memory for a device, and keeps it locked while other operations follow.
    Hold { dev: usize, at: Span, fine: bool },
    /// The same with common pages.
    HoldCommon { dev: usize, wide: bool, page: usize, n: usize },
    /// The device accesses what it holds by its own address, and it is compared.
    UseHeld { which: usize, write: bool, value: u64 },
    /// Unlocks one of those.
    Unhold { which: usize },
    /// The device copies between locked memory; another one waits for that by a sync file.
    Blit { dev: usize, other: usize, at: Span, from: Span, slow: bool },
    /// An eventfd, `poll` and another device's queue are told of the end of a queued migration.
    Notify { dev: usize, other: usize, at: Span, fails: bool },
    /// Counters of an engine, before and after a command.
    EngineStatus { dev: usize, engine: u32, at: Span },
    /// What policies did.
    Placement { dev: usize },
    /// Asks how memory reaches another device.
    AskPull { dev: usize, other: usize },
    /// Events of a migration of the same process by another open file; `all`: they are asked for.
    EventsOf { dev: usize, at: Span, all: bool },
}

/// Pages of an operation on hardware, which takes 200 ms for each.
const SLOW_PAGES: usize = 32;

impl Op {
    /// What is done instead on a device that has the ioctls of `test_hmm` and host memory locks, if anything.
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

    /// Its name, for tables.
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
