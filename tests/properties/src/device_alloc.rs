// SPDX-License-Identifier: GPL-2.0

//! The allocator of one chunk of device memory, compared with the state of each page.
//!
//! A submodule of the KUnit suite's module, whose page states and free map it uses.

use crate::harness::{
    Property,
    Trial, //
};
use proptest::prelude::*;
use super::*;

/// Sizes of maps in pages: the last block of the third one has no more than 77 pages.
const ONE: usize = PMD_PAGES;
const THREE: usize = 3 * PMD_PAGES;
const PART: usize = 2 * PMD_PAGES + 77;

pub(crate) const ALL: &[Property] = &[
    Property {
        name: "device_alloc_pages_have_one_state",
        cases: 600,
        variants: &[("1-block", states::<ONE>), ("3-blocks", states::<THREE>), ("part", states::<PART>)],
    },
    Property {
        name: "device_alloc_finds_each_free_folio",
        cases: 600,
        variants: &[("1-block", folios::<ONE>), ("3-blocks", folios::<THREE>), ("part", folios::<PART>)],
    },
    Property {
        name: "device_alloc_offline_pages_return_when_online",
        cases: 300,
        variants: &[
            ("1-block", withdrawn::<ONE>),
            ("3-blocks", withdrawn::<THREE>),
            ("part", withdrawn::<PART>),
        ],
    },
];

#[derive(Clone, Copy, Debug)]
enum Op {
    Take(u32),
    TakeAt(usize, u32),
    /// A part of the first run of used pages at or behind this page.
    GiveBack(usize, usize),
    Withdraw(usize, usize),
    Restore(usize, usize),
    RestoreAll,
}

fn ops() -> impl Strategy<Value = Op> {
    // The last one is too large.
    let order = || prop_oneof![2 => Just(0), 3 => 0..PMD_ORDER, 3 => PMD_ORDER..PMD_ORDER + 2];
    let page =
        || prop_oneof![0usize..40, 0..4 * PMD_PAGES, (0usize..24).prop_map(|word| word * 64)];
    let count = || prop_oneof![1usize..4, 1usize..100, Just(64usize), Just(PMD_PAGES)];
    prop_oneof![
        8 => order().prop_map(Op::Take),
        2 => (page(), order()).prop_map(|(page, order)| Op::TakeAt(page, order)),
        5 => (page(), count()).prop_map(|(page, count)| Op::GiveBack(page, count)),
        2 => (page(), count()).prop_map(|(page, count)| Op::Withdraw(page, count)),
        2 => (page(), count()).prop_map(|(page, count)| Op::Restore(page, count)),
        1 => Just(Op::RestoreAll),
    ]
}

/// The state of each page, and whether it was withdrawn.
struct Model(Vec<(Page, bool)>);

impl Model {
    fn is(&self, index: usize, count: usize, state: Page) -> bool {
        let pages = self.0.get(index..index + count);
        pages.is_some_and(|pages| pages.iter().all(|(page, _)| *page == state))
    }

    fn count(&self, state: Page) -> usize {
        self.0.iter().filter(|(page, _)| *page == state).count()
    }

    /// Whether there is a free folio of this order.
    fn fits(&self, order: u32) -> bool {
        let pages = 1 << order;
        (0..self.0.len()).step_by(pages).any(|at| self.is(at, pages, Page::Free))
    }

    fn set(&mut self, index: usize, count: usize, state: Page) {
        for (page, _) in &mut self.0[index..index + count] {
            *page = state;
        }
    }

    fn release(&mut self, index: usize, count: usize) {
        for (page, out) in &mut self.0[index..index + count] {
            *page = if *out { Page::Out } else { Page::Free };
        }
    }

    /// Withdraws pages. Returns the number of those that are in use.
    fn offline(&mut self, index: usize, count: usize) -> usize {
        let mut left = 0;
        for (page, out) in &mut self.0[index..index + count] {
            *out = true;
            match *page {
                Page::Used => left += 1,
                _ => *page = Page::Out,
            }
        }
        left
    }

    fn online(&mut self, index: usize, count: usize) {
        for (page, out) in &mut self.0[index..index + count] {
            *out = false;
            if *page == Page::Out {
                *page = Page::Free;
            }
        }
    }

    /// The first run of at most `count` used pages, from `index` on.
    fn used_run(&self, index: usize, count: usize) -> Option<(usize, usize)> {
        let is_used = |index: &usize| self.0[*index].0 == Page::Used;
        let first = (index..self.0.len()).find(is_used)?;
        let run = (first..self.0.len()).take(count).take_while(is_used).count();
        Some((first, run))
    }
}

/// Argument and result of `take`, and the block from which small folios were taken before.
struct Taken {
    order: u32,
    index: Option<usize>,
    last: usize,
}

/// Applies operations to the map and the model. Calls `check` after each, with the model before and
/// after it.
fn each<const PAGES: usize>(
    trial: &Trial<'_>,
    check: impl Fn(&FreeMap, &Model, &Model, Option<Taken>),
) {
    let pages = PAGES;
    trial.run(ops(), 1..80, |ops| {
        let map = free_map(pages).unwrap();
        let mut model = Model(vec![(Page::Free, false); pages]);
        for op in ops {
            let before = Model(model.0.clone());
            let mut taken = None;
            match *op {
                Op::Take(order) => {
                    let last = map.block.load(Relaxed);
                    let index = map.take(order);
                    taken = Some(Taken { order, index, last });
                    if let Some(index) = index {
                        model.set(index, 1 << order, Page::Used);
                    }
                }
                Op::TakeAt(page, order) => {
                    let index = page % pages >> order << order;
                    let free = order <= PMD_ORDER && model.is(index, 1 << order, Page::Free);
                    assert_eq!(map.take_at(index, order), free);
                    if free {
                        model.set(index, 1 << order, Page::Used);
                    }
                    if order != 0 && index + 1 < pages {
                        assert!(!map.take_at(index + 1, order), "not aligned");
                    }
                }
                Op::GiveBack(page, count) => {
                    if let Some((index, count)) = model.used_run(page % pages, count) {
                        map.release(index, count);
                        model.release(index, count);
                    }
                }
                Op::Withdraw(page, count) => {
                    let index = page % pages;
                    let count = count.min(pages - page % pages);
                    assert_eq!(map.offline(index, count), model.offline(index, count));
                }
                Op::Restore(page, count) => {
                    let index = page % pages;
                    let count = count.min(pages - page % pages);
                    map.online(index, count);
                    model.online(index, count);
                }
                Op::RestoreAll => {
                    // More than there are.
                    map.online(0, pages.next_multiple_of(PMD_PAGES));
                    model.online(0, pages);
                }
            }
            check(&map, &before, &model, taken);
        }
    });
}

/// The map agrees with the model on which pages are free, used, and withdrawn, and its counts are
/// those of the pages.
fn states<const PAGES: usize>(trial: &Trial<'_>) {
    each::<PAGES>(trial, |map, _, model, _| {
        assert_eq!(map.used(), model.count(Page::Used));
        assert_eq!(map.withdrawn(), model.count(Page::Out));
        for (index, (page, _)) in model.0.iter().enumerate() {
            assert_eq!(map.is_used(index), *page == Page::Used, "page {index}");
            let free = map.words[index / 64].load(Relaxed) >> (index % 64) & 1 != 0;
            assert_eq!(free, *page == Page::Free, "page {index}");
        }
        // The words of the map cover whole blocks. Pages behind the last one are never free.
        assert_eq!((map.len(), map.words.len() * 64 % PMD_PAGES), (PAGES, 0));
        for index in PAGES..map.words.len() * 64 {
            let free = map.words[index / 64].load(Relaxed) >> (index % 64) & 1 != 0;
            assert!(!free && !map.is_used(index), "page {index}");
        }
        for first in (0..model.0.len()).step_by(PMD_PAGES) {
            let block = first..(first + PMD_PAGES).min(PAGES);
            assert_eq!(map.pages_in_block(first), block.len());
            let used = block.filter(|index| model.0[*index].0 == Page::Used);
            assert_eq!(map.used_in_block(first), used.count());
            let is_free = |first: usize| model.is(first, PMD_PAGES, Page::Free);
            let any = (0..model.0.len()).step_by(PMD_PAGES).any(is_free);
            assert_eq!(map.has_block(), any);
        }
    });
}

/// An allocated folio was free and is aligned, and the allocation succeeds if there is one. A small
/// folio comes from the block that was used last, or from the one with the fewest free pages that
/// fits.
fn folios<const PAGES: usize>(trial: &Trial<'_>) {
    each::<PAGES>(trial, |_, before, _, taken| {
        let Some(Taken { order, index, last }) = taken else {
            return;
        };
        let pages = 1 << order;
        assert_eq!(index.is_some(), order <= PMD_ORDER && before.fits(order));
        let Some(index) = index else { return };
        assert_eq!(index % pages, 0, "folio at {index} of order {order}");
        assert!(before.is(index, pages, Page::Free), "folio at {index} of order {order}");
        if order == PMD_ORDER {
            return;
        }
        let free = |block: usize| {
            let pages = block * PMD_PAGES..((block + 1) * PMD_PAGES).min(PAGES);
            pages.filter(|page| before.0[*page].0 == Page::Free).count()
        };
        let has_room = |block: &usize| {
            let mut places = (block * PMD_PAGES..(block + 1) * PMD_PAGES).step_by(pages);
            places.any(|at| before.is(at, pages, Page::Free))
        };
        let block = index / PMD_PAGES;
        let fewest = (0..PAGES.div_ceil(PMD_PAGES)).filter(has_room).map(free).min();
        let is_right = block == last || Some(free(block)) == fewest;
        assert!(is_right, "block {block} is begun");
    });
}

/// A withdrawn page is not allocated after it is freed. `online` brings back exactly the given
/// pages.
fn withdrawn<const PAGES: usize>(trial: &Trial<'_>) {
    each::<PAGES>(trial, |map, before, model, taken| {
        if let Some(Taken { order, index: Some(index), .. }) = taken {
            for (page, out) in &before.0[index..index + (1 << order)] {
                assert!(*page == Page::Free && !out);
            }
        }
        // Exactly the free pages can be allocated.
        let mut all = Vec::new();
        while let Some(index) = map.take(0) {
            all.push(index);
        }
        let free = model.0.iter().filter(|(page, _)| *page == Page::Free).count();
        assert_eq!(all.len(), free);
        for index in &all {
            assert!(model.0[*index].0 == Page::Free, "page {index}");
            map.release(*index, 1);
        }
    });
}
