// SPDX-License-Identifier: GPL-2.0
//! Operations: plain data, drawn from a seed before anything runs, so that the
//! seed alone determines them, and a part of them is a script.
//!
//! To add one: a variant of [`Op`], a line in [`draw`], an arm in
//! `Lane::execute` with what the model makes of it.

use crate::rng::Rng;
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

/// An operation of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Op {
    CpuWrite {
        at: Span,
        seed: u64,
    },
    CpuRead {
        at: Span,
    },
    CpuAdd {
        at: Span,
        word: usize,
        value: u64,
    },
    DevWrite {
        dev: usize,
        at: Span,
        seed: u64,
    },
    DevRead {
        dev: usize,
        at: Span,
        unlocked: bool,
    },
    Exclusive {
        dev: usize,
        at: Span,
    },
    Snapshot {
        dev: usize,
        at: Span,
    },
    ToDevice {
        dev: usize,
        at: Span,
    },
    ToSystem {
        dev: usize,
        at: Span,
    },
    Release {
        dev: usize,
    },
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
    Watch {
        dev: usize,
        at: Span,
    },
    Count {
        dev: usize,
        at: Span,
        value: u64,
    },
    Finish,
    Migrate {
        dev: usize,
        at: Span,
        back: bool,
        ordinary: bool,
        outcomes: bool,
    },
    Discard {
        dev: usize,
        at: Span,
    },
    Unmap {
        at: Span,
    },
    MapAgain {
        at: Span,
    },
    Move {
        from: Span,
        to: Span,
    },
    Protect {
        at: Span,
        rights: Rights,
    },
    Advise {
        at: Span,
        advice: Advice,
    },
    Lock {
        at: Span,
    },
    Unlock {
        at: Span,
    },
    Fork {
        how: Fork,
        dev: usize,
        at: Span,
        seed: u64,
    },
    Reopen {
        dev: usize,
    },
    FailAlloc {
        dev: usize,
    },
    CopyFail {
        dev: usize,
        after: u64,
    },
    CopyDelay {
        dev: usize,
        ns: u64,
    },
    FlushDelay {
        dev: usize,
        ns: u64,
    },
    CommonAdd {
        wide: bool,
        page: usize,
        value: u64,
    },
    CommonDevAdd {
        wide: bool,
        dev: usize,
        page: usize,
        value: u64,
    },
    CommonOwn {
        wide: bool,
        dev: usize,
        page: usize,
        by_device: bool,
        value: u64,
    },
    CommonMove {
        dev: usize,
        back: bool,
        ordinary: bool,
    },
    CommonAdvise {
        advice: Advice,
    },
    Squeeze {
        mib: usize,
    },
    Queued {
        dev: usize,
        other: usize,
        at: Span,
    },
    Pull {
        dev: usize,
        other: usize,
        at: Span,
    },
    HostLock {
        dev: usize,
        at: Span,
        fine: bool,
    },
    Managed {
        dev: usize,
        pages: usize,
        populate: bool,
        seed: u64,
    },
}

impl Op {
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

fn span_in(rng: &mut Rng, r: usize) -> Span {
    let total = REGIONS[r].1;
    match rng.below(40) {
        // Most are small, so that there are many.
        0..=25 => {
            let n = 1 + rng.below(4);
            Span { r, page: rng.below(total - n), n }
        }
        26..=37 => {
            let n = 1 + rng.below(total.min(20) - 1);
            Span { r, page: rng.below(total - n + 1), n }
        }
        38 => {
            // A block that a huge page may fill, or all.
            let n = total.min(512);
            Span { r, page: rng.below(total / n) * n, n }
        }
        _ => {
            let page = rng.below(total);
            Span { r, page, n: 1 + rng.below(total - page) }
        }
    }
}

fn span(rng: &mut Rng) -> Span {
    // Anonymous memory does most of what there is to go wrong.
    let r = rng.pick(&[0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 3, 3, 4, 5]);
    span_in(rng, r)
}

fn anon(rng: &mut Rng) -> Span {
    let r = rng.below(2);
    span_in(rng, r)
}

fn engine(rng: &mut Rng, dev: usize, at: Span) -> Op {
    let work = rng.pick(&[
        Work::Read,
        Work::Write,
        Work::Fill,
        Work::Add,
        Work::Copy,
        Work::Checksum,
        Work::Strided,
        Work::Chase,
    ]);
    let r = rng.below(4);
    let total = REGIONS[r].1;
    let n = at.n.min(total);
    let from = Span { r, page: rng.below(total - n + 1), n };
    let skip = if rng.one_in(2) { 0 } else { rng.below(512) };
    let (value, stride) = (rng.next() >> 20, 8 << rng.below(11));
    Op::Engine {
        dev,
        engine: rng.below(3) as u32,
        work,
        at: Span { n, ..at },
        skip,
        from,
        value,
        stride,
    }
}

fn advice(rng: &mut Rng) -> Advice {
    rng.pick(&[
        Advice::DontNeed,
        Advice::DontNeed,
        Advice::Free,
        Advice::Free,
        Advice::PageOut,
        Advice::PageOut,
        Advice::PageOut,
        Advice::Cold,
        Advice::Collapse,
        Advice::HugePage,
        Advice::NoHugePage,
        Advice::Mergeable,
        Advice::Unmergeable,
        Advice::Unmergeable,
        Advice::Populate,
    ])
}

/// Draws operations.
pub struct Draw {
    rng: Rng,
    devices: usize,
    /// Where an engine was put to work last: moves go there, too.
    busy: Span,
}

impl Draw {
    /// Stream `stream` of `seed`, for so many devices.
    pub fn new(seed: u64, stream: u64, devices: usize) -> Draw {
        Draw { rng: Rng::new(seed, stream), devices, busy: Span { r: 0, page: 0, n: 1 } }
    }
}

impl Iterator for Draw {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        let op = draw(&mut self.rng, self.devices);
        Some(match op {
            Op::Watch { at, .. } | Op::Count { at, .. } => {
                self.busy = at;
                op
            }
            Op::Migrate { dev, back, ordinary, outcomes, .. } if self.rng.one_in(2) => {
                Op::Migrate { dev, at: self.busy, back, ordinary, outcomes }
            }
            _ => op,
        })
    }
}

fn draw(rng: &mut Rng, devices: usize) -> Op {
    let dev = rng.below(devices);
    let at = span(rng);
    let seed = rng.next() >> 16;
    let (back, ordinary) = (rng.one_in(2), rng.one_in(3));
    let (wide, page) = (rng.one_in(2), rng.below(COMMON_PAGES));
    let value = 1 + rng.next() % 1000;
    // In thousandths.
    match rng.below(1000) {
        0..100 => Op::CpuWrite { at, seed },
        100..200 => Op::CpuRead { at },
        200..230 => Op::CpuAdd { at, word: rng.below(512), value },
        230..270 => Op::DevWrite { dev, at, seed },
        270..320 => Op::DevRead { dev, at, unlocked: rng.one_in(3) },
        320..330 => Op::Exclusive { dev, at },
        330..345 => Op::Snapshot { dev, at },
        345..385 => Op::ToDevice { dev, at },
        385..405 => Op::ToSystem { dev, at },
        405..406 => Op::Release { dev },
        406..558 => engine(rng, dev, at),
        558..588 => Op::Watch { dev, at },
        588..603 => Op::Count { dev, at, value },
        603..613 => Op::Finish,
        613..621 => Op::Queued { dev, other: rng.below(devices), at: anon(rng) },
        621..629 => Op::Pull { dev, other: rng.below(devices), at: anon(rng) },
        629..635 => Op::HostLock { dev, at, fine: rng.one_in(2) },
        635..639 => Op::Managed { dev, pages: 1 + rng.below(64), populate: rng.one_in(2), seed },
        639..723 => {
            let at = if rng.one_in(5) { at } else { anon(rng) };
            Op::Migrate { dev, at, back, ordinary, outcomes: rng.one_in(2) }
        }
        723..733 => Op::Discard { dev, at },
        733..748 => Op::Unmap { at },
        748..783 => Op::MapAgain { at: Span { page: 0, n: REGIONS[at.r].1, ..at } },
        783..793 => {
            let (from, mut to) = (anon(rng), anon(rng));
            let n = from.n.min(to.n);
            to.n = n;
            Op::Move { from: Span { n, ..from }, to }
        }
        793..813 => {
            Op::Protect { at, rights: rng.pick(&[Rights::None, Rights::Read, Rights::Write]) }
        }
        813..833 => {
            let all = Span { page: 0, n: REGIONS[at.r].1, ..at };
            Op::Protect { at: all, rights: Rights::Write }
        }
        833..888 => Op::Advise { at, advice: advice(rng) },
        888..894 => Op::Lock { at },
        894..902 => Op::Unlock { at },
        902..907 => {
            let how = rng.pick(&[Fork::Cpu, Fork::Device, Fork::Killed, Fork::Exec]);
            Op::Fork { how, dev, at: anon(rng), seed }
        }
        907..910 => Op::Reopen { dev },
        910..912 => Op::FailAlloc { dev },
        912..914 => Op::CopyFail { dev, after: rng.below(50) as u64 },
        914..916 => Op::CopyDelay { dev, ns: rng.pick(&[0, 0, 0, 0, 5_000, 50_000]) },
        916..917 => Op::FlushDelay { dev, ns: rng.pick(&[0, 0, 0, 20_000]) },
        917..937 => Op::CommonAdd { wide, page, value },
        937..962 => Op::CommonDevAdd { wide, dev, page, value },
        962..982 => Op::CommonOwn { wide, dev, page, by_device: rng.one_in(2), value: seed },
        982..994 => Op::CommonMove { dev, back, ordinary },
        994..999 => {
            let advice = rng.pick(&[Advice::PageOut, Advice::Cold, Advice::Collapse]);
            Op::CommonAdvise { advice }
        }
        _ => Op::Squeeze { mib: 8 << rng.below(3) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_stay_inside_and_survive_a_script() {
        let inside = |at: Span| at.n > 0 && at.page + at.n <= REGIONS[at.r].1;
        let mut names = std::collections::BTreeSet::new();
        for op in Draw::new(7, 0, 2).take(200_000) {
            names.insert(op.name());
            let text = serde_json::to_string(&op).unwrap();
            assert_eq!(serde_json::from_str::<Op>(&text).unwrap(), op);
            match op {
                Op::CpuWrite { at, .. } | Op::Migrate { at, .. } | Op::Advise { at, .. } => {
                    assert!(inside(at), "{op:?}")
                }
                Op::Engine { at, from, .. } => assert!(inside(at) && inside(from), "{op:?}"),
                Op::Move { from, to } => assert!(inside(from) && inside(to), "{op:?}"),
                _ => {}
            }
        }
        // All operations, all work, advice and forks.
        assert!(names.len() > 50, "{names:?}");
    }
}
