// SPDX-License-Identifier: GPL-2.0

//! The default policy: the range migrated by a fault, and the number of migrations of a page,
//! including those by faults on other pages.

use super::*;

fn shared() -> std::pin::Pin<KBox<Bounces>> {
    KBox::pin_init(Bounces::new(), GFP_KERNEL).unwrap()
}

/// A set of pages, as a mask and as an array.
fn mask(parts: &[(usize, usize)]) -> (PageSet, [bool; PMD_PAGES]) {
    let mut mask = PageSet::EMPTY;
    let mut plain = [false; PMD_PAGES];
    for (first, count) in parts {
        let end = (first + count).min(PMD_PAGES);
        mask.add(*first..end);
        plain[*first..end].fill(true);
    }
    (mask, plain)
}

/// The range migrated by a fault is the largest dense subtree that contains the faulting pages, and
/// at least its leaves of 16 pages.
pub(super) fn dense(trial: &Trial<'_>) {
    let touched = (0..PMD_PAGES, prop_oneof![3 => Just(1usize), 1 => 1usize..70]);
    let threshold = prop_oneof![Just(51usize), 1usize..110];
    let part = (0..PMD_PAGES, prop_oneof![1usize..20, 1usize..200]);
    trial.run_with((touched, threshold), part, 0..12, |(touched, threshold), parts| {
        let (resident, mut plain) = mask(parts);
        let first = touched.0;
        let end = (touched.0 + touched.1).min(PMD_PAGES);
        let low = first / 16 * 16;
        let high = end.div_ceil(16) * 16;
        plain[low..high].fill(true);
        let mut expected = low..high;
        for levels in 0..6 {
            let size = 16 << levels;
            let start = low / size * size;
            let node = start..start + size;
            let used = plain[node.clone()].iter().filter(|used| **used).count();
            if node.end >= high && used * 100 > threshold * size {
                expected = node;
            }
        }
        assert_eq!(region(&resident, first..end, *threshold), expected);
    });
}

/// A device fault for the default policy.
#[derive(Clone, Debug)]
struct Asked {
    fault: Fault,
    /// Number of pages of the mapping before the fault, and behind it.
    before: usize,
    behind: usize,
    granularity: Option<u32>,
    free: usize,
    resident: Vec<(usize, usize)>,
}

fn asked() -> impl Strategy<Value = Asked> {
    let around = || prop_oneof![0usize..4, 0usize..3000, Just(1 << 20)];
    let granularity = prop_oneof![4 => Just(None), 1 => (0u32..10).prop_map(Some)];
    let free = prop_oneof![2 => Just(100_000usize), 1 => 0..PMD_PAGES];
    let resident = proptest::collection::vec((0..PMD_PAGES, 1usize..200), 0..4);
    (faults(), around(), around(), granularity, free, resident).prop_map(
        |(fault, before, behind, granularity, free, resident)| Asked {
            fault,
            before,
            behind,
            granularity,
            free,
            resident,
        },
    )
}

/// The migrated range contains the faulting pages, is within the limits, and has at most a quarter
/// of the device memory ahead of the fault. A range left in place is within the block. The duration
/// of a delay is that of the parameters.
pub(super) fn places(trial: &Trial<'_>) {
    let total = prop_oneof![Just(PMD_PAGES), Just(8 * PMD_PAGES), Just(1000 * PMD_PAGES)];
    let given = (parameters(), 0usize..10, total);
    trial.run_with(given, asked(), 1..60, |(parameters, ahead, total), asked| {
        let parameters = Parameters { ahead: *ahead, ..*parameters };
        let policy = Density::new(parameters).unwrap();
        let bounces = shared();
        let mut now = 1000;
        for asked in asked {
            let Fault { first, count, .. } = asked.fault;
            now += asked.fault.after;
            let range = pages(first, count);
            let low = (BASE / PAGE_SIZE + first).saturating_sub(asked.before);
            let high = BASE / PAGE_SIZE + first + count + asked.behind;
            let limits = PageRange::from_pages(low * PAGE_SIZE, high - low).unwrap();
            let mut attributes = Attributes::DEFAULT;
            attributes.set_granularity(asked.granularity).unwrap();
            let (resident, _) = mask(&asked.resident);
            let placement = policy.place(&FaultInfo {
                range,
                write: false,
                limits,
                attributes,
                free: asked.free,
                total: *total,
                now,
                resident: &|_| resident,
                bounces: &bounces,
            });
            let block = range.start() & !(PMD_SIZE - 1);
            let holds = |outer: PageRange, inner: PageRange| outer.union(&inner) == outer;
            match placement {
                Decision::Move { range: moved, .. } => {
                    assert!(holds(moved, range), "{moved:?} does not have {range:?}");
                    assert!(holds(limits, moved), "{moved:?} is not within {limits:?}");
                    assert!(moved.start() >= block);
                    let max_trees = (total / 4 / PMD_PAGES).max(1);
                    let most = match asked.granularity {
                        Some(_) => 1,
                        None => (*ahead).min(max_trees).max(1),
                    };
                    assert!(moved.end() <= block + most * PMD_SIZE, "{moved:?} is too much");
                    if let Some(order) = asked.granularity {
                        let size = PAGE_SIZE << order;
                        for edge in [moved.start(), moved.end()] {
                            let is_limit = edge == limits.start() || edge == limits.end();
                            assert!(edge % size == 0 || is_limit, "{moved:?} splits a folio");
                        }
                    }
                    if asked.fault.moves {
                        bounces.moved(moved, now);
                        policy.moved(moved, now);
                    }
                }
                Decision::Stay(stays) => {
                    assert!(holds(stays, range) && holds(limits, stays));
                    assert!(stays.start() >= block && stays.end() <= block + PMD_SIZE);
                }
                Decision::Later(ms) => assert!(1 <= ms && ms <= parameters.thrash_delay),
                Decision::InPlace(_) => panic!("the default policy moves memory"),
            }
        }
    });
}

/// A device fault on a page, and the pages of its block that leave the device before it.
#[derive(Clone, Debug)]
struct Step {
    page: usize,
    after: u64,
    leave: Vec<(usize, usize)>,
}

fn step() -> impl Strategy<Value = Step> {
    let after = prop_oneof![4 => 0u64..3, 1 => 0u64..200];
    let all = Just(vec![(0, PMD_PAGES)]);
    let parts = proptest::collection::vec((0..PMD_PAGES, 1..PMD_PAGES), 0..3);
    let leave = prop_oneof![2 => all, 1 => parts];
    (within_block(), after, leave).prop_map(|((page, _), after, leave)| Step { page, after, leave })
}

/// Within the pin time, a page is migrated at most `thrash_count` times, by a fault on it or on
/// another page. A page that has not left the device does not count.
pub(super) fn density_bounces(trial: &Trial<'_>) {
    trial.run_with(parameters(), step(), 1..80, |parameters, steps| {
        let policy = Density::new(*parameters).unwrap();
        let bounces = shared();
        let limits = pages(0, BLOCKS * PMD_PAGES);
        let mut moved: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        let mut there = [PageSet::EMPTY; BLOCKS];
        let mut now = 1000;
        for step in steps {
            now += step.after;
            for (first, count) in &step.leave {
                there[step.page / PMD_PAGES].remove(*first..first + count);
            }
            let placement = policy.place(&FaultInfo {
                range: pages(step.page, 1),
                write: false,
                limits,
                attributes: Attributes::DEFAULT,
                free: 100_000,
                total: 100_000,
                now,
                resident: &|start| there[(start - BASE) / PMD_SIZE],
                bounces: &bounces,
            });
            let Decision::Move { range, .. } = placement else {
                continue;
            };
            bounces.moved(range, now);
            policy.moved(range, now);
            let first = limits.index_of(range.start()).unwrap();
            for page in first..first + range.pages() {
                let mask = &mut there[page / PMD_PAGES];
                if mask.has(page % PMD_PAGES) {
                    continue;
                }
                mask.insert(page % PMD_PAGES);
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

/// If no page leaves the device, no page is kept off it, and no fault waits.
pub(super) fn density_calm(trial: &Trial<'_>) {
    trial.run(within_block(), 1..200, |faults| {
        let policy = Density::new(Parameters::DEFAULT).unwrap();
        let bounces = shared();
        let limits = pages(0, BLOCKS * PMD_PAGES);
        let mut there = [PageSet::EMPTY; BLOCKS];
        for (page, _) in faults {
            if there[page / PMD_PAGES].has(page % PMD_PAGES) {
                continue;
            }
            let placement = policy.place(&FaultInfo {
                range: pages(*page, 1),
                write: false,
                limits,
                attributes: Attributes::DEFAULT,
                free: 100_000,
                total: 100_000,
                now: 0,
                resident: &|start| there[(start - BASE) / PMD_SIZE],
                bounces: &bounces,
            });
            let Decision::Move { range, .. } = placement else {
                panic!("{placement:?}");
            };
            bounces.moved(range, 0);
            policy.moved(range, 0);
            // The whole region is migrated.
            let block = page / PMD_PAGES;
            let offset = page % PMD_PAGES;
            let region = region(&there[block], offset..offset + 1, Parameters::DEFAULT.threshold);
            let region = pages(block * PMD_PAGES + region.start, region.len());
            assert!(range.start() <= region.start() && region.end() <= range.end());
            let first = limits.index_of(range.start()).unwrap();
            for page in first..first + range.pages() {
                there[page / PMD_PAGES].insert(page % PMD_PAGES);
            }
        }
    });
}
