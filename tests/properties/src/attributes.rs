// SPDX-License-Identifier: GPL-2.0

//! The attributes of an address space, and an array of pages.

use crate::{
    attributes::{Attributes, Change, Common, Found, Home, Location, Map},
    harness::{Property, Trial},
    inject::{arm, Point},
    mm::addr::PageRange,
};
use kernel::prelude::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

pub(crate) const ALL: &[Property] = &[
    Property {
        name: "attributes_are_those_that_were_set_last",
        cases: 600,
        variants: &[("map", changes)],
    },
    Property {
        name: "attributes_follow_a_mapping_that_moves",
        cases: 600,
        variants: &[("map", moves)],
    },
];

/// Pages that are used, from [`BASE`] on.
const PAGES: usize = 100;
const BASE: usize = 1 << 20;

#[derive(Clone, Copy, Debug)]
enum What {
    Preferred(u8),
    AccessedBy(bool),
    ReadMostly(bool),
    NeverMigrate(bool),
    Granularity(Option<u32>),
}

impl What {
    fn change(self) -> Change {
        let mut change = Change::default();
        match self {
            Self::Preferred(to) => {
                let all = [Location::Any, Location::Device, Location::System];
                change.preferred = Some(all[to as usize]);
            }
            Self::AccessedBy(set) => change.accessed_by = Some(set),
            Self::ReadMostly(set) => change.read_mostly = Some(set),
            Self::NeverMigrate(set) => change.never_migrate = Some(set),
            Self::Granularity(order) => change.granularity = Some(order),
        }
        change
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Set(usize, usize, What),
    /// The range is unmapped.
    Lose(usize, usize),
    /// The pages are moved to behind all others.
    Move(usize, usize),
    Look(usize, usize),
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![
        (0u8..3).prop_map(What::Preferred),
        any::<bool>().prop_map(What::AccessedBy),
        any::<bool>().prop_map(What::ReadMostly),
        any::<bool>().prop_map(What::NeverMigrate),
        prop_oneof![Just(None), (0u32..11).prop_map(Some)].prop_map(What::Granularity),
    ]
}

fn ops() -> impl Strategy<Value = Op> {
    let part =
        || (0..PAGES, 1usize..40).prop_map(|(first, pages)| (first, pages.min(PAGES - first)));
    prop_oneof![
        6 => (part(), what()).prop_map(|((first, pages), what)| Op::Set(first, pages, what)),
        1 => part().prop_map(|(first, pages)| Op::Lose(first, pages)),
        1 => part().prop_map(|(first, pages)| Op::Move(first, pages)),
        2 => part().prop_map(|(first, pages)| Op::Look(first, pages)),
    ]
}

fn range(first: usize, pages: usize) -> PageRange {
    PageRange::from_pages((BASE + first) << 12, pages).unwrap()
}

type Model = BTreeMap<usize, Attributes>;

fn of(model: &Model, page: usize) -> Attributes {
    model.get(&page).copied().unwrap_or(Attributes::DEFAULT)
}

fn set(map: &Map, model: &mut Model, first: usize, pages: usize, what: What, home: Home) {
    let change = what.change();
    let result = map.change(range(first, pages), home, &change);
    let works = change.apply(Attributes::DEFAULT).is_ok();
    assert_eq!(result.is_ok(), works);
    if works {
        for page in first..first + pages {
            let new = change.apply(of(model, page)).unwrap();
            model.insert(page, new);
        }
    }
}

fn look(map: &Map, model: &Model, first: usize, pages: usize) {
    let limits = range(first, pages);
    let all: Vec<_> = (first..first + pages).map(|page| of(model, page)).collect();
    let mut common = Common::of(all[0]);
    for attributes in &all {
        common = common.and(*attributes);
    }
    assert_eq!(map.common(limits), common);
    let any = all.iter().any(|it| *it != Attributes::DEFAULT);
    assert_eq!(map.any(limits), any);
    for page in first..first + pages {
        let (found, same) = map.at((BASE + page) << 12, limits);
        assert_eq!(found, of(model, page), "page {page}");
        assert!(same.contains((BASE + page) << 12) && limits.intersect(&same) == Some(same));
        for other in (first..first + pages).filter(|it| same.contains((BASE + it) << 12)) {
            assert_eq!(of(model, other), found, "page {other}");
        }
    }
}

/// Each page has what was set last, and what is said of a range is true of each of its pages.
fn changes(trial: &Trial<'_>) {
    trial.run(ops(), 1..30, |ops| {
        let map = Map::new().unwrap();
        let mut model = Model::new();
        let home = Home::new(BASE, 0, 0x1000);
        for op in ops {
            match *op {
                Op::Set(first, pages, what) => set(&map, &mut model, first, pages, what, home),
                Op::Lose(first, pages) | Op::Move(first, pages) => {
                    map.lose(range(first, pages));
                    // Nothing of it is found again.
                    map.settle(|_, _| None);
                    model.retain(|page, _| !(first..first + pages).contains(page));
                }
                Op::Look(first, pages) => look(&map, &model, first, pages),
            }
            look(&map, &model, 0, PAGES);
        }
    });
}

/// Pages that are moved have their attributes where they are now, and none where they were.
fn moves(trial: &Trial<'_>) {
    trial.run(ops(), 1..20, |ops| {
        let map = Map::new().unwrap();
        let mut model = Model::new();
        // Where each mapping is: its first page, how many, and the offset. They are in order.
        let mut mappings = vec![(0, PAGES, 0)];
        let mut behind = 2 * PAGES;
        // Of a mapping the number of its first page may be less than its offset.
        let home = |first: usize, offset: usize| Home::new(BASE + first, offset, 0x1000);
        for op in ops {
            match *op {
                Op::Set(first, pages, what) => {
                    for (start, count, offset) in &mappings {
                        let low = first.max(*start);
                        let high = (first + pages).min(start + count);
                        if low < high {
                            let home = home(*start, *offset);
                            set(&map, &mut model, low, high - low, what, home);
                        }
                    }
                }
                Op::Lose(first, pages) | Op::Move(first, pages) => {
                    let moves = matches!(op, Op::Move(..));
                    map.lose(range(first, pages));
                    let mut rest = Vec::new();
                    let mut moved = Vec::new();
                    for (start, count, offset) in mappings {
                        let end = start + count;
                        let (low, high) = (first.max(start), (first + pages).min(end));
                        if low >= high {
                            rest.push((start, count, offset));
                            continue;
                        }
                        if start < low {
                            rest.push((start, low - start, offset));
                        }
                        if high < end {
                            rest.push((high, end - high, offset + (high - start)));
                        }
                        for page in low..high {
                            let had = model.remove(&page);
                            if let Some(had) = had.filter(|_| moves) {
                                model.insert(behind + page - low, had);
                            }
                        }
                        if moves {
                            moved.push((behind, high - low, offset + (low - start)));
                            behind += high - low + 1;
                        }
                    }
                    rest.extend(moved);
                    rest.sort();
                    mappings = rest;
                    map.settle(|offset, from| {
                        let is_it = |(start, count, first): &&(usize, usize, usize)| {
                            BASE + start + count > from && (*first..first + count).contains(&offset)
                        };
                        let (start, count, first) = mappings.iter().find(is_it)?;
                        Some(Found {
                            first: BASE + start,
                            pages: *count,
                            offset: *first,
                            home: home(*start, *first),
                        })
                    });
                    assert!(!map.is_unsettled());
                }
                Op::Look(first, pages) => look(&map, &model, first, pages),
            }
            look(&map, &model, 0, behind);
        }
    });
}
