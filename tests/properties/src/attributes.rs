// SPDX-License-Identifier: GPL-2.0

//! The attributes of an address space with three devices, compared with an array of pages.

use crate::{
    attributes::{
        AttributeUpdate,
        Attributes,
        CommonAttributes,
        Map,
        PreferredLocation,
        Relocated,
        VmaAnchor, //
    },
    harness::{
        Property,
        Trial, //
    },
    inject::{
        FailPoint,
        arm, //
    },
    kernel::identity::DeviceId,
    mm::addr::PageRange, //
};
use kernel::prelude::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

pub(crate) const ALL: &[Property] = &[
    Property {
        name: "attributes_match_the_last_change",
        cases: 600,
        variants: &[("map", changes)],
    },
    Property {
        name: "attributes_follow_a_mapping_that_moves",
        cases: 600,
        variants: &[("map", moves)],
    },
    Property {
        name: "attributes_of_a_moved_mapping_are_watched_at_once",
        cases: 600,
        variants: &[("map", moves_out_of_sight)],
    },
];

/// Number of pages used, from [`BASE`] on.
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
    fn change(self) -> AttributeUpdate {
        let mut change = AttributeUpdate::default();
        match self {
            Self::Preferred(to) => {
                let all =
                    [PreferredLocation::Any, PreferredLocation::Device, PreferredLocation::System];
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

/// Index of a device.
type Device = usize;

const DEVICES: usize = 3;

/// Identity of a device.
fn name(device: Device) -> DeviceId {
    DeviceId(0x1000 * (device + 1))
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Set(usize, usize, What, Device),
    /// The last mirror of a device is closed.
    Close(Device),
    /// The range is unmapped.
    Lose(usize, usize),
    /// The pages are moved to an address behind all others.
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
        6 => (part(), what(), 0..DEVICES)
            .prop_map(|((first, pages), what, device)| Op::Set(first, pages, what, device)),
        1 => (0..DEVICES).prop_map(Op::Close),
        1 => part().prop_map(|(first, pages)| Op::Lose(first, pages)),
        1 => part().prop_map(|(first, pages)| Op::Move(first, pages)),
        2 => part().prop_map(|(first, pages)| Op::Look(first, pages)),
    ]
}

fn range(first: usize, pages: usize) -> PageRange {
    PageRange::from_pages((BASE + first) << 12, pages).unwrap()
}

/// Attributes of a page, for all devices.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    /// The attributes shared by all devices. The preferred location is as seen by the device that
    /// set it.
    all: Attributes,
    preferred: Option<Device>,
    accessed: [bool; DEVICES],
}

impl Page {
    fn set(&mut self, change: &AttributeUpdate, device: Device) {
        if let Some(to) = change.preferred {
            self.preferred = (to == PreferredLocation::Device).then_some(device);
        }
        if let Some(yes) = change.accessed_by {
            self.accessed[device] = yes;
        }
        let change = AttributeUpdate { accessed_by: None, ..*change };
        self.all = change.apply(self.all).unwrap();
    }

    fn close(&mut self, device: Device) {
        if self.preferred == Some(device) {
            self.preferred = None;
            self.all = prefer(PreferredLocation::Any).apply(self.all).unwrap();
        }
        self.accessed[device] = false;
    }

    /// The attributes that `device` sees, without the preferred location.
    fn seen_by(&self, device: Device) -> Attributes {
        let change = AttributeUpdate {
            accessed_by: Some(self.accessed[device]),
            preferred: Some(PreferredLocation::Any),
            ..AttributeUpdate::default()
        };
        change.apply(self.all).unwrap()
    }

    /// The preferred location that `device` sees.
    fn place(&self, device: Device) -> PreferredLocation {
        match self.preferred {
            Some(other) if other != device => PreferredLocation::Other,
            _ => self.all.preferred(),
        }
    }

    fn is_default(&self) -> bool {
        self.all == Attributes::DEFAULT && self.accessed == [false; DEVICES]
    }
}

fn prefer(to: PreferredLocation) -> AttributeUpdate {
    AttributeUpdate { preferred: Some(to), ..AttributeUpdate::default() }
}

/// `attributes` without the preferred location, and that location.
fn apart(attributes: Attributes) -> (Attributes, PreferredLocation) {
    let other = prefer(PreferredLocation::Any).apply(attributes).unwrap();
    (other, attributes.preferred())
}

type Model = BTreeMap<usize, Page>;

fn of(model: &Model, page: usize) -> Page {
    model.get(&page).copied().unwrap_or_default()
}

fn set(
    map: &Map,
    model: &mut Model,
    (first, pages): (usize, usize),
    (what, device): (What, Device),
    anchor: VmaAnchor,
) {
    let change = what.change();
    let result = map.change(range(first, pages), anchor, &change, name(device));
    let works = change.apply(Attributes::DEFAULT).is_ok();
    assert_eq!(result.is_ok(), works);
    if works {
        for page in first..first + pages {
            model.entry(page).or_default().set(&change, device);
        }
    }
}

fn close(map: &Map, model: &mut Model, device: Device) {
    map.remove_device(name(device));
    model.values_mut().for_each(|page| page.close(device));
}

fn look(map: &Map, model: &Model, first: usize, pages: usize) {
    let limits = range(first, pages);
    let all: Vec<_> = (first..first + pages).map(|page| of(model, page)).collect();
    // After a device has closed, ranges with default attributes may remain.
    assert!(map.any(limits) || all.iter().all(Page::is_default));
    for device in 0..DEVICES {
        let seen = all[0].seen_by(device);
        let mut common = CommonAttributes::of(seen);
        for page in &all {
            common = common.and(page.seen_by(device));
        }
        let place = all[0].place(device);
        let same = all.iter().all(|page| page.place(device) == place);
        common.preferred = same.then_some(place);
        assert_eq!(map.common(limits, name(device)), common, "device {device}");
        for page in first..first + pages {
            let (found, same) = map.at((BASE + page) << 12, limits, name(device));
            let expected = |page| (of(model, page).seen_by(device), of(model, page).place(device));
            assert_eq!(apart(found), expected(page), "page {page}");
            assert!(same.contains((BASE + page) << 12) && limits.intersect(&same) == Some(same));
            for other in (first..first + pages).filter(|it| same.contains((BASE + it) << 12)) {
                assert_eq!(expected(other), apart(found), "page {other}");
            }
        }
    }
}

fn new() -> std::pin::Pin<KBox<Map>> {
    KBox::pin_init(Map::new(), GFP_KERNEL).unwrap()
}

/// The whole range that notifiers cover.
fn watched() -> Option<PageRange> {
    PageRange::new(0, 1 << 46).ok()
}

/// Each page has the attributes set last, and common attributes of a range hold for each of its
/// pages.
fn changes(trial: &Trial<'_>) {
    trial.run(ops(), 1..30, |ops| {
        let map = new();
        let mut model = Model::new();
        let anchor = VmaAnchor::new(BASE, 0, 0x1000);
        for op in ops {
            match *op {
                Op::Set(first, pages, what, device) => {
                    set(&map, &mut model, (first, pages), (what, device), anchor)
                }
                Op::Close(device) => close(&map, &mut model, device),
                Op::Lose(first, pages) | Op::Move(first, pages) => {
                    map.orphan(range(first, pages));
                    // The lost range is not found again.
                    map.resolve_orphans(watched(), |_, _| None).unwrap();
                    model.retain(|page, _| !(first..first + pages).contains(page));
                }
                Op::Look(first, pages) => look(&map, &model, first, pages),
            }
            look(&map, &model, 0, PAGES);
        }
    });
}

/// Moved pages have their attributes at the new addresses, and none at the old ones.
fn moves(trial: &Trial<'_>) {
    trial.run(ops(), 1..20, |ops| {
        let map = new();
        let mut model = Model::new();
        // Mappings in order: first page, number of pages, and offset.
        let mut mappings = vec![(0, PAGES, 0)];
        let mut behind = 2 * PAGES;
        // The first page of a mapping may have a smaller number than its offset.
        let anchor = |first: usize, offset: usize| VmaAnchor::new(BASE + first, offset, 0x1000);
        for op in ops {
            match *op {
                Op::Close(device) => close(&map, &mut model, device),
                Op::Set(first, pages, what, device) => {
                    for (start, count, offset) in &mappings {
                        let low = first.max(*start);
                        let high = (first + pages).min(start + count);
                        if low < high {
                            let anchor = anchor(*start, *offset);
                            set(&map, &mut model, (low, high - low), (what, device), anchor);
                        }
                    }
                }
                Op::Lose(first, pages) | Op::Move(first, pages) => {
                    let moves = matches!(op, Op::Move(..));
                    map.orphan(range(first, pages));
                    let mut rest = Vec::new();
                    let mut moved = Vec::new();
                    for (start, count, offset) in mappings {
                        let end = start + count;
                        let low = first.max(start);
                        let high = (first + pages).min(end);
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
                    let settled = map.resolve_orphans(watched(), |offset, from| {
                        let is_it = |(start, count, first): &&(usize, usize, usize)| {
                            BASE + start + count > from && (*first..first + count).contains(&offset)
                        };
                        let (start, count, first) = mappings.iter().find(is_it)?;
                        Some(Relocated {
                            first: BASE + start,
                            pages: *count,
                            offset: *first,
                            anchor: anchor(*start, *first),
                        })
                    });
                    assert!(settled.is_ok() && !map.is_unsettled());
                }
                Op::Look(first, pages) => look(&map, &model, first, pages),
            }
            look(&map, &model, 0, behind);
        }
    });
}

/// A mapping that moves below the covered range is covered as a whole, also if it has several
/// parts.
fn moves_out_of_sight(trial: &Trial<'_>) {
    const FAR: usize = 10 * PAGES;
    trial.run(ops(), 1..20, |ops| {
        let map = new();
        let mut model = Model::new();
        let anchor = |first: usize| VmaAnchor::new(BASE + first, 0, 0x1000);
        for op in ops {
            if let Op::Set(first, pages, what, device) = *op {
                set(&map, &mut model, (FAR + first, pages), (what, device), anchor(FAR));
            }
        }
        map.orphan(range(FAR, PAGES));
        let find = |offset: usize, from: usize| {
            (from < BASE + PAGES && offset < PAGES).then_some(Relocated {
                first: BASE,
                pages: PAGES,
                offset: 0,
                anchor: anchor(0),
            })
        };
        let watched = range(FAR, PAGES);
        if let Err(place) = map.resolve_orphans(Some(watched), find) {
            map.resolve_orphans(Some(watched.union(&place)), find).unwrap();
        }
        let moved = model.into_iter().map(|(page, had)| (page - FAR, had)).collect();
        look(&map, &moved, 0, PAGES);
    });
}
