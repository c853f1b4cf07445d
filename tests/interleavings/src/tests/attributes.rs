// SPDX-License-Identifier: GPL-2.0

//! Attributes of a range that was moved, while another task searches its pages.

use crate::{
    attributes::{
        AttributeUpdate,
        Map,
        PreferredLocation,
        Relocated,
        VmaAnchor, //
    },
    harness::{
        full,
        Test, //
    },
    kernel::identity::DeviceId,
    mm::addr::PageRange, //
};
use kernel::{
    model::spawn,
    page::PAGE_SHIFT,
    prelude::*,
    sync::Arc, //
};

pub(crate) const TESTS: &[Test] = &[
    full("attributes_of_a_moved_range_are_found", moved),
    full("attributes_of_a_range_being_moved_are_found", aside),
];

const PAGES: usize = 10;
/// Identifies the reverse mapping of the VMA.
const ANON: usize = 0x1234_5678;

fn range(first: usize) -> PageRange {
    PageRange::from_pages(first << PAGE_SHIFT, PAGES).unwrap()
}

/// A map with attributes of the pages from `first` on.
fn map(first: usize) -> Arc<Map> {
    let map = Arc::pin_init(Map::new(), GFP_KERNEL).unwrap();
    let update = AttributeUpdate {
        preferred: Some(PreferredLocation::System),
        ..AttributeUpdate::default()
    };
    let anchor = VmaAnchor::new(first, first, ANON);
    map.change(range(first), anchor, &update, DeviceId(1)).unwrap();
    map
}

/// The pages were moved from 1000 to 5000 before. A device looks at them, while another one
/// searches the pages that were set aside.
fn moved() {
    let map = map(1000);
    map.orphan(range(1000));
    let find = |offset: usize, from: usize| {
        let anchor = VmaAnchor::new(5000, 1000, ANON);
        let there = from < 5000 + PAGES && (1000..1000 + PAGES).contains(&offset);
        there.then_some(Relocated { first: 5000, pages: PAGES, offset: 1000, anchor })
    };
    let other = map.clone();
    let search = spawn(move || {
        let all = PageRange::from_pages(0, 1 << 20).unwrap();
        assert!(other.resolve_orphans(Some(all), find).is_ok());
    });
    assert!(map.any(range(5000)));
    search.join();
    assert!(map.any(range(5000)) && !map.any(range(1000)));
}

/// A range is moved while a device looks at it.
fn aside() {
    let map = map(1000);
    let other = map.clone();
    let moves = spawn(move || other.orphan(range(1000)));
    assert!(map.any(range(1000)));
    moves.join();
    assert!(map.any(range(1000)));
}
