// SPDX-License-Identifier: GPL-2.0
//! Draws operations from a seed. Scripts and reports refer to runs by their seed, so that a seed
//! must keep producing the same operations.

use crate::torture::op::{
    Advice,
    Fork,
    Op,
    Rights,
    Span,
    Work,
    COMMON_PAGES,
    REGIONS, //
};
use hmm::rng::Rng;
use hmm::{
    HUGE_PAGES,
    PAGE_WORDS, //
};

fn span_in(rng: &mut Rng, r: usize) -> Span {
    let total = REGIONS[r].1;
    match rng.below(40) {
        // Mostly short ranges, so that a run has many operations.
        0..=25 => {
            let n = 1 + rng.below(4);
            Span { r, page: rng.below(total - n), n }
        }
        26..=37 => {
            let n = 1 + rng.below(total.min(20) - 1);
            Span { r, page: rng.below(total - n + 1), n }
        }
        38 => {
            // A range that one huge page can back, or the whole region.
            let n = total.min(HUGE_PAGES);
            Span { r, page: rng.below(total / n) * n, n }
        }
        _ => {
            let page = rng.below(total);
            Span { r, page, n: 1 + rng.below(total - page) }
        }
    }
}

fn span(rng: &mut Rng) -> Span {
    // Anonymous memory has the highest weight: it has the most states and transitions.
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
    let skip = if rng.one_in(2) { 0 } else { rng.below(PAGE_WORDS) };
    let value = rng.bits() >> 20;
    // At most two pages.
    let stride = 8 << rng.below(PAGE_WORDS.ilog2() as usize + 2);
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
    /// Generator for [`extra`]. Separate, so that operations added later do not change the sequence
    /// of a seed.
    extra: Rng,
    devices: usize,
    /// Range of the last command that runs in the background; half of the migrations use it.
    busy: Span,
}

impl Draw {
    /// Stream `stream` of `seed`, for `devices` devices.
    pub fn new(seed: u64, stream: u64, devices: usize) -> Draw {
        let extra = Rng::new(!seed, stream);
        Draw { rng: Rng::new(seed, stream), extra, devices, busy: Span { r: 0, page: 0, n: 1 } }
    }
}

impl Iterator for Draw {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        if self.extra.one_in(EXTRA) {
            return Some(extra(&mut self.extra, self.devices));
        }
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

/// One of `EXTRA` operations is drawn by [`extra`].
const EXTRA: usize = 12;

/// Draws one of the operations that were added after [`draw`].
fn extra(rng: &mut Rng, devices: usize) -> Op {
    let dev = rng.below(devices);
    let seed = rng.bits() >> 16;
    let other = rng.below(devices);
    let pages = 1 + rng.below(64);
    let bits = rng.bits();
    match rng.below(48) {
        0..4 => Op::ManagedBeside { dev, pages, bits, seed },
        4..6 => Op::ManagedLater { dev, pages, bits, seed },
        6..13 => {
            let (at, from) = alike(rng);
            let from = rng.one_in(2).then_some(from);
            let fails = rng.one_in(8);
            Op::QueueWork { dev, at, from, value: seed, fails }
        }
        13 => Op::Connect { dev, which: rng.below(3) },
        14..17 => Op::Resize { dev, block: rng.below(64), restore: rng.one_in(2) },
        17..19 => Op::Events { dev, mask: bits },
        19..21 => Op::CheckExclusive { dev, at: anon(rng) },
        21..26 => Op::Hold { dev, at: span(rng), fine: rng.one_in(2) },
        26..28 => {
            let page = rng.below(COMMON_PAGES);
            let n = 1 + rng.below(COMMON_PAGES - page);
            Op::HoldCommon { dev, wide: rng.one_in(2), page, n }
        }
        28..34 => Op::UseHeld { which: rng.below(8), write: rng.one_in(2), value: seed },
        34..36 => Op::Unhold { which: rng.below(8) },
        36..40 => {
            let (at, from) = alike(rng);
            Op::Blit { dev, other, at, from, slow: rng.one_in(4) }
        }
        40..43 => Op::Notify { dev, other, at: anon(rng), fails: rng.one_in(8) },
        43 => Op::EngineStatus { dev, engine: rng.below(3) as u32, at: anon(rng) },
        44 => Op::Placement { dev },
        45 => Op::AskPull { dev, other },
        _ => Op::EventsOf { dev, at: anon(rng), all: rng.one_in(2) },
    }
}

/// Two ranges of equal length.
fn alike(rng: &mut Rng) -> (Span, Span) {
    let at = anon(rng);
    let from = anon(rng);
    let n = at.n.min(from.n);
    (Span { n, ..at }, Span { n, ..from })
}

fn draw(rng: &mut Rng, devices: usize) -> Op {
    let dev = rng.below(devices);
    let at = span(rng);
    let seed = rng.bits() >> 16;
    let back = rng.one_in(2);
    let ordinary = rng.one_in(3);
    let wide = rng.one_in(2);
    let page = rng.below(COMMON_PAGES);
    let value = 1 + rng.bits() % 1000;
    // Weights in thousandths.
    match rng.below(1000) {
        0..100 => Op::CpuWrite { at, seed },
        100..180 => Op::CpuRead { at },
        180..184 => Op::Policy { dev, which: rng.below(3) },
        184..200 => Op::Attributes {
            dev,
            at,
            preferred: rng.below(3),
            values: rng.bits() as u32 & if rng.one_in(4) { 0xe } else { 0x6 },
            order: rng.one_in(3).then(|| rng.below(HUGE_PAGES.ilog2() as usize + 1) as u32),
        },
        200..230 => Op::CpuAdd { at, word: rng.below(PAGE_WORDS), value },
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
            let from = anon(rng);
            let mut to = anon(rng);
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
    fn operations_stay_in_bounds_and_round_trip() {
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
                Op::Move { from, to } | Op::Blit { at: to, from, .. } => {
                    assert!(inside(from) && inside(to) && from.n == to.n, "{op:?}")
                }
                Op::HoldCommon { page, n, .. } => {
                    assert!(n > 0 && page + n <= COMMON_PAGES, "{op:?}")
                }
                _ => {}
            }
        }
        // All operations, including each variant of work, advice and fork.
        assert!(names.len() > 50, "{names:?}");
    }
}
