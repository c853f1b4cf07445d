// SPDX-License-Identifier: GPL-2.0

//! Address ranges, and arithmetic without overflow.

use super::addr::{
    PageRange,
    PMD_PAGES,
    PMD_SIZE, //
};
use crate::harness::{
    Property,
    Trial, //
};
use kernel::{
    page::{
        PAGE_MASK,
        PAGE_SIZE, //
    },
    prelude::*, //
};
use proptest::prelude::*;

pub(crate) const ALL: &[Property] = &[
    Property {
        name: "range_with_bad_bounds_is_refused",
        cases: 10000,
        variants: &[("range", refused)],
    },
    Property {
        name: "range_parts_match_their_addresses",
        cases: 10000,
        variants: &[("range", parts)],
    },
    Property {
        name: "range_pieces_end_at_block_boundaries",
        cases: 10000,
        variants: &[("range", pieces)],
    },
];

/// Addresses near boundaries: the ends of the address space, and multiples of 2 MiB.
fn address() -> impl Strategy<Value = usize> {
    let near = prop_oneof![
        Just(0usize),
        Just(usize::MAX),
        Just(usize::MAX & PAGE_MASK),
        Just(usize::MAX & !(PMD_SIZE - 1)),
        (1usize..5).prop_map(|block| block * PMD_SIZE),
        any::<usize>(),
    ];
    let pages = prop_oneof![-3isize..4, -1100isize..1100];
    let bytes = prop_oneof![3 => Just(0isize), 1 => -5isize..6];
    (near, pages, bytes).prop_map(|(near, pages, bytes)| {
        let aligned = if bytes == 0 { near & PAGE_MASK } else { near };
        aligned.wrapping_add_signed(pages * 4096 + bytes)
    })
}

fn range() -> impl Strategy<Value = PageRange> {
    (address(), prop_oneof![1usize..6, 1usize..1500]).prop_map(|(start, pages)| {
        let start = (start & PAGE_MASK).min((usize::MAX & PAGE_MASK) - PAGE_SIZE);
        let most = ((usize::MAX & PAGE_MASK) - start) / PAGE_SIZE;
        PageRange::from_pages(start, pages.min(most)).unwrap()
    })
}

/// The first address, and the one behind the last page.
fn ends(range: PageRange) -> (u128, u128) {
    (range.start() as u128, range.end() as u128)
}

fn made(start: u128, end: u128) -> Option<(u128, u128)> {
    let good = start < end && end <= usize::MAX as u128 && start % 4096 == 0 && end % 4096 == 0;
    good.then_some((start, end))
}

/// Constructors reject empty, unaligned and too large ranges, and no others.
fn refused(trial: &Trial<'_>) {
    let pages = prop_oneof![0usize..3, 0usize..2000, any::<usize>()];
    trial.run((address(), address(), pages), 1..4, |cases| {
        for (first, second, pages) in cases {
            let start = *first as u128;
            let end = *second as u128;
            let range = PageRange::new(*first, *second);
            assert_eq!(range.ok().map(ends), made(start, end));
            let range = PageRange::from_pages(*first, *pages);
            let end = start + *pages as u128 * 4096;
            assert_eq!(range.ok().map(ends), made(start, end));
            // The smallest range that contains both. Pages at the very end of the address space
            // cannot be mapped.
            let low = first.min(second);
            let high = first.max(second);
            if low < high {
                let start = *low as u128 / 4096 * 4096;
                let last = usize::MAX as u128 / 4096 * 4096;
                let end = ((*high as u128).div_ceil(4096) * 4096).min(last);
                let range = PageRange::covering(*low, *high);
                assert_eq!(range.map(ends), made(start, end), "{low:#x} {high:#x}");
            }
        }
    });
}

/// Pages, indices, addresses, hulls and intersections are those of sets of addresses.
fn parts(trial: &Trial<'_>) {
    trial.run((range(), range(), address(), 0usize..2000), 1..4, |cases| {
        for (range, other, addr, index) in cases {
            let ((start, end), (low, high)) = (ends(*range), ends(*other));
            assert_eq!(range.pages() as u128, (end - start) / 4096);
            assert_eq!(ends(range.union(other)), (start.min(low), end.max(high)));
            let both = made(start.max(low), end.min(high));
            assert_eq!(range.intersect(other).map(ends), both);
            let within = (start..end).contains(&(*addr as u128));
            assert_eq!(range.contains(*addr), within);
            let expected = within.then(|| ((*addr as u128 - start) / 4096) as usize);
            assert_eq!(range.index_of(*addr), expected);
            let last = range.pages() - 1;
            let expected = start + (*index).min(last) as u128 * 4096;
            assert_eq!(range.address(*index) as u128, expected);
            assert_eq!(range.index_of(range.address(*index)), Some((*index).min(last)));
            let page = *addr as u128 / 4096 * 4096;
            let rest = range.from_address(*addr);
            assert_eq!(rest.map(ends), made(start.max(page), end));
            let is_pmd = start % PMD_SIZE as u128 == 0 && range.pages() == PMD_PAGES;
            assert_eq!(range.is_pmd(), is_pmd);
        }
    });
}

/// Pieces are adjacent, none crosses a boundary, and each ends at a boundary or at the end.
fn pieces(trial: &Trial<'_>) {
    trial.run(range(), 1..4, |ranges| {
        for range in ranges {
            let mut next = range.start();
            for piece in range.pmd_pieces() {
                assert_eq!(piece.start(), next);
                let last = piece.end() - 1;
                assert_eq!(piece.start() / PMD_SIZE, last / PMD_SIZE);
                let is_border = piece.end() % PMD_SIZE == 0;
                assert!(is_border || piece.end() == range.end());
                next = piece.end();
            }
            assert_eq!(next, range.end());
        }
    });
}
