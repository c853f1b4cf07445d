// SPDX-License-Identifier: GPL-2.0

//! Documented properties of the policies, for any history of faults.

use crate::{
    attributes::Attributes,
    harness::{
        Property,
        Trial, //
    },
    mm::addr::{
        PMD_PAGES,
        PMD_SIZE,
        PageRange, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use super::{
    Bounces,
    Decision,
    Density,
    FaultInfo,
    PageSet,
    Parameters,
    Policy,
    density::region,
    fault_around::FaultWindows,
    immovable::Immovable,
    prefetch::Streams,
    thrash::{
        ThrashDetector,
        ThrashHint, //
    }, //
};

#[path = "policy/density.rs"]
mod default;

pub(crate) const ALL: &[Property] = &[
    Property {
        name: "density_bounds_moves_of_a_page",
        cases: 5000,
        variants: &[("density", default::density_bounces)],
    },
    Property {
        name: "density_migrates_all_pages_that_never_left",
        cases: 2000,
        variants: &[("density", default::density_calm)],
    },
    Property {
        name: "thrash_bounds_moves_of_a_page",
        cases: 5000,
        variants: &[("detector", bounces)],
    },
    Property { name: "thrash_pins_and_naps_end", cases: 5000, variants: &[("detector", ends)] },
    Property {
        name: "density_region_is_the_largest_dense_subtree",
        cases: 20000,
        variants: &[("region", default::dense)],
    },
    Property {
        name: "density_places_within_its_limits",
        cases: 3000,
        variants: &[("density", default::places)],
    },
    Property {
        name: "stream_follows_no_jumps_and_is_bounded",
        cases: 5000,
        variants: &[("stream", streams)],
    },
    Property {
        name: "cpu_window_doubles_and_halves",
        cases: 10000,
        variants: &[("windows", windows)],
    },
    Property {
        name: "immovable_remembers_pages_until_they_expire",
        cases: 5000,
        variants: &[("immovable", immovable)],
    },
];

/// Address of the first block.
const BASE: usize = 0x4000_0000;
const BLOCKS: usize = 3;

fn pages(first: usize, count: usize) -> PageRange {
    PageRange::from_pages(BASE + first * PAGE_SIZE, count).unwrap()
}

/// Pages within a block: the first one, and their number.
fn within_block() -> impl Strategy<Value = (usize, usize)> {
    let first = prop_oneof![3 => 0usize..4, 1 => 0..PMD_PAGES, 1 => Just(PMD_PAGES - 1)];
    let count = prop_oneof![3 => Just(1usize), 1 => 1usize..20, 1 => Just(PMD_PAGES)];
    (0..BLOCKS, first, count)
        .prop_map(|(block, first, count)| (block * PMD_PAGES + first, count.min(PMD_PAGES - first)))
}

/// A device fault on some pages, a number of ms after the previous one.
#[derive(Clone, Copy, Debug)]
struct Fault {
    first: usize,
    count: usize,
    after: u64,
    full: bool,
    /// Whether the pages are migrated, if permitted.
    moves: bool,
}

fn faults() -> impl Strategy<Value = Fault> {
    let after = prop_oneof![4 => 0u64..4, 2 => 0u64..60, 1 => 0u64..700];
    let rare = |weight| prop_oneof![weight => Just(false), 1 => Just(true)];
    (within_block(), after, rare(9), rare(9)).prop_map(|((first, count), after, full, fails)| {
        Fault { first, count, after, full, moves: !fails }
    })
}

/// The detection window is not shorter than the pin time, because slow thrashing would otherwise
/// not be detected.
fn parameters() -> impl Strategy<Value = Parameters> {
    let delay = prop_oneof![Just(0u64), 1u64..10];
    (1u32..5, 1u64..300, 0u64..300, delay).prop_map(|(count, pin, more, delay)| Parameters {
        thrash_count: count,
        thrash_lapse: pin + more,
        thrash_pin: pin,
        thrash_delay: delay,
        ..Parameters::DEFAULT
    })
}

/// Within the pin time, a page is migrated at most `thrash_count` times. It leaves the device
/// immediately each time, and faults on it occur at any time. Blocks may be at any address.
fn bounces(trial: &Trial<'_>) {
    trial.run_with(parameters(), faults(), 1..80, |parameters, faults| {
        // The history of a block is dropped as early as possible.
        let mut detector = ThrashDetector::with_kept(1);
        let mut moved: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        let mut now = 1000;
        for fault in faults {
            now += fault.after;
            let address = match fault.first / PMD_PAGES {
                0 => BASE,
                1 => BASE + (1 << 31),
                _ => BASE + (1 << 46),
            };
            let address = address + fault.first % PMD_PAGES * PAGE_SIZE;
            let range = PageRange::from_pages(address, fault.count).unwrap();
            if detector.fault(range, &PageSet::EMPTY, fault.full, now, parameters)
                != ThrashHint::Move
                || !fault.moves
            {
                continue;
            }
            detector.moved(range, now);
            for page in fault.first..fault.first + fault.count {
                let times = moved.entry(page).or_default();
                times.push(now);
                let lately = times.iter().filter(|time| now - **time < parameters.thrash_pin);
                let count = lately.count();
                assert!(
                    count <= parameters.thrash_count as usize,
                    "page {page} has moved {count} times until {now}"
                );
            }
        }
    });
}

/// Memory is pinned for at most `thrash_pin` ms each time, and is left to other devices for
/// `thrash_delay`. Memory that has not been migrated may be migrated.
fn ends(trial: &Trial<'_>) {
    trial.run_with(parameters(), faults(), 1..80, |parameters, faults| {
        let mut detector = ThrashDetector::new();
        // For each block: pages that were migrated since, the end of the pin time, and the end of
        // the delay.
        let mut known: BTreeMap<usize, ([bool; PMD_PAGES], u64, u64)> = BTreeMap::new();
        let mut now = 1000;
        for fault in faults {
            now += fault.after;
            let range = pages(fault.first, fault.count);
            let verdict = detector.fault(range, &PageSet::EMPTY, fault.full, now, parameters);
            let block = fault.first / PMD_PAGES;
            let first = fault.first % PMD_PAGES;
            let (has_moved, stays, rests) =
                known.entry(block).or_insert(([false; PMD_PAGES], 0, 0));
            let again = has_moved[first..first + fault.count].contains(&true);
            match verdict {
                ThrashHint::Stay if now < *stays => {}
                ThrashHint::Stay => {
                    assert!(again && now >= *rests, "it stays, and has not bounced");
                    *stays = now + parameters.thrash_pin;
                    // Afterwards migrations are permitted again.
                    *has_moved = [false; PMD_PAGES];
                }
                ThrashHint::Wait(ms) if now < *rests => assert_eq!(ms, *rests - now),
                ThrashHint::Wait(ms) => {
                    assert!(again && now >= *stays, "it waits, and has not bounced");
                    assert_eq!(ms, parameters.thrash_delay);
                    *rests = now + ms;
                    has_moved[first..first + fault.count].fill(false);
                }
                ThrashHint::Move => {
                    assert!(now >= *stays, "it moves, and stays until {stays}");
                    assert!(now >= *rests, "it moves, and rests until {rests}");
                    assert!(!again || parameters.thrash_delay == 0, "it bounces without a delay");
                    assert!(!again || !fault.full, "other ranges lose pages for it");
                    has_moved[first..first + fault.count].fill(fault.moves);
                    if fault.moves {
                        detector.moved(range, now);
                    }
                }
            }
        }
    });
}

/// A device fault, sequential or not.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// This number of pages behind the last fault, or behind the pages prefetched by it.
    On(usize),
    /// At an unrelated address.
    Jump,
    /// Before the last fault.
    Back(usize),
}

/// A stream prefetches nothing before its third fault, then twice as many blocks each time, up to
/// `ahead`. Without sequential faults there is no prefetch.
fn streams(trial: &Trial<'_>) {
    let step = prop_oneof![
        6 => (0usize..33).prop_map(Step::On),
        1 => (33usize..60).prop_map(Step::On),
        1 => Just(Step::Jump),
        1 => (1usize..600).prop_map(Step::Back),
    ];
    trial.run_with(0usize..10, step, 1..40, |ahead, steps| {
        let mut stream = Streams::new();
        let mut next = 1 << 20;
        let mut far = 1 << 24;
        // Number of faults since the start, as long as all are sequential.
        let mut length = Some(0);
        // Ends of all accessed or prefetched ranges.
        let mut known: Vec<usize> = Vec::new();
        for step in steps {
            let at = match *step {
                Step::On(gap) => next + gap,
                Step::Jump => {
                    far += 1 << 16;
                    far
                }
                Step::Back(pages) => next - pages,
            };
            let goes_on = known.iter().any(|end| at >= *end && at - end <= 32);
            let blocks = stream.fault(PageRange::from_pages(at << 12, 1).unwrap(), *ahead);
            assert!(blocks <= *ahead, "{blocks} blocks ahead");
            assert!(blocks == 0 || goes_on, "a jump is no stream");
            length = length.filter(|_| matches!(step, Step::On(0..=32))).map(|it| it + 1);
            if let Some(faults) = length.filter(|faults| *faults > 2) {
                let expected = (1usize << (faults - 3).min(10)).min(*ahead);
                assert_eq!(blocks, expected, "fault {faults} of a stream");
            }
            assert!(blocks == 0 || known.len() >= 2, "two faults are no stream");
            let brought = if blocks == 0 { 16 } else { blocks * PMD_PAGES };
            stream.moved(PageRange::from_pages(at << 12, brought).unwrap());
            known.push(at + 1);
            known.push(at + brought);
            next = at + brought;
        }
    });
}

/// A CPU fault.
#[derive(Clone, Copy, Debug)]
enum Touch {
    /// At the end of the last window.
    On,
    /// At this page of the block with the last page of the last window.
    Same(usize),
    /// This number of pages behind the end of the last window, or before it.
    Near(isize),
    Far(usize),
    Forget,
}

/// A window has a power of 2 of pages, up to 2 MiB. It doubles if CPU faults are sequential, or in
/// one of the 64 last blocks of 2 MiB that came back in part, and halves after a jump.
fn windows(trial: &Trial<'_>) {
    let touch = prop_oneof![
        4 => Just(Touch::On),
        2 => (0..PMD_PAGES).prop_map(Touch::Same),
        2 => (-1500isize..1500).prop_map(Touch::Near),
        2 => (0usize..1 << 35).prop_map(Touch::Far),
        1 => Just(Touch::Forget),
    ];
    trial.run(touch, 1..60, |touches| {
        let mut windows = FaultWindows::new().unwrap();
        // The page behind the last window, and its number of pages.
        let mut last: Option<(usize, usize)> = None;
        // The last block with each remainder, and its number of pages.
        let mut blocks = BTreeMap::new();
        for touch in touches {
            let next = last.map_or(1 << 30, |(next, _)| next);
            let page = match *touch {
                Touch::On => next,
                Touch::Same(page) => (next - 1) / PMD_PAGES * PMD_PAGES + page,
                Touch::Near(pages) => next.saturating_add_signed(pages),
                Touch::Far(page) => page,
                Touch::Forget => {
                    windows = FaultWindows::new().unwrap();
                    last = None;
                    blocks.clear();
                    continue;
                }
            };
            let size = windows.record_fault(7, page << 12) / PAGE_SIZE;
            let block = page / PMD_PAGES;
            let earlier = match blocks.get(&(block % 64)) {
                Some((old, count)) if *old == block => *count,
                _ => 0,
            };
            let follows =
                last.is_some_and(|(next, _)| page == next || block == (next - 1) / PMD_PAGES);
            let usual = match last {
                None => 16,
                Some((_, size)) if follows => (2 * size).min(PMD_PAGES),
                Some((next, size)) if page.abs_diff(next) <= PMD_PAGES => size,
                Some((_, size)) => (size / 2).max(1),
            };
            let expected = match earlier {
                0 => usual,
                _ => {
                    let of_block = (16 << (earlier - 1)).min(PMD_PAGES);
                    if follows {
                        usual.max(of_block)
                    } else {
                        of_block
                    }
                }
            };
            match size {
                PMD_PAGES => blocks.remove(&(block % 64)),
                _ => blocks.insert(block % 64, (block, (earlier + 1).min(15))),
            };
            assert_eq!(size, expected, "pages for {touch:?}");
            last = Some(((page / size + 1) * size, size));
        }
    });
}

/// An event for the cache of unmovable memory.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Add(usize, usize),
    Forget(usize, usize),
    Wait(u64),
    Ask(usize, usize),
}

/// A part counts as unmovable only if it was reported less than 500 ms ago and not changed since.
/// It does count then, unless another block has replaced its entry.
fn immovable(trial: &Trial<'_>) {
    // Block 3 has the same slot as block 0.
    let place = |page: usize| match page / PMD_PAGES {
        3 => page % PMD_PAGES + 64 * PMD_PAGES,
        _ => page,
    };
    let part = || {
        let first = prop_oneof![(0usize..4 * 32).prop_map(|part| part * 16), 0..4 * PMD_PAGES];
        let count = prop_oneof![Just(1usize), Just(16usize), 1usize..40, Just(PMD_PAGES)];
        (first, count).prop_map(|(first, count)| (first, count.min(PMD_PAGES - first % PMD_PAGES)))
    };
    let operations = prop_oneof![
        4 => part().prop_map(|(first, count)| Operation::Add(first, count)),
        1 => part().prop_map(|(first, count)| Operation::Forget(first, count)),
        1 => prop_oneof![0u64..10, 0u64..600].prop_map(Operation::Wait),
        4 => part().prop_map(|(first, count)| Operation::Ask(first, count)),
    ];
    trial.run(operations, 1..50, |operations| {
        let mut known = Immovable::new();
        let mut now = 0;
        // By slot: the block, the expiry time, and the pages.
        let mut model: BTreeMap<usize, (usize, u64, [bool; PMD_PAGES])> = BTreeMap::new();
        for operation in operations {
            match *operation {
                Operation::Add(first, count) => {
                    let first = place(first);
                    known.add(pages(first, count), now);
                    let block = first / PMD_PAGES;
                    let low = (first % PMD_PAGES).div_ceil(16) * 16;
                    let high = (first % PMD_PAGES + count) / 16 * 16;
                    if low < high {
                        let slot = model.entry(block % 64);
                        let entry = slot.or_insert((block, 0, [false; PMD_PAGES]));
                        if entry.0 != block || entry.1 <= now {
                            *entry = (block, now + 500, [false; PMD_PAGES]);
                        }
                        entry.2[low..high].fill(true);
                    }
                }
                Operation::Forget(first, count) => {
                    let first = place(first);
                    known.remove(pages(first, count));
                    model.retain(|_, (block, _, _)| *block != first / PMD_PAGES);
                }
                Operation::Wait(ms) => now += ms,
                Operation::Ask(first, count) => {
                    let first = place(first);
                    let block = first / PMD_PAGES;
                    let entry = model.get(&(block % 64));
                    let entry = entry.filter(|(of, until, _)| *of == block && *until > now);
                    let addr = pages(first, count).start();
                    assert_eq!(known.has_block(addr, now), entry.is_some());
                    let expected = entry.and_then(|(_, _, has)| {
                        let at = first % PMD_PAGES;
                        let all = has[at..at + count].iter().all(|has| *has);
                        let low = (0..at).rev().take_while(|page| has[*page]).count();
                        let high = (at + count..PMD_PAGES).take_while(|page| has[*page]).count();
                        all.then(|| pages(first - low, low + count + high))
                    });
                    assert_eq!(known.around(pages(first, count), now), expected);
                }
            }
        }
    });
}
