// SPDX-License-Identifier: GPL-2.0

//! Sets of pages of a block, compared with an array of flags.

use super::{
    addr::PMD_PAGES,
    page_set::PageSet, //
};
use crate::harness::{
    Property,
    Trial, //
};
use core::ops::Range;
use proptest::prelude::*;

pub(crate) const ALL: &[Property] =
    &[Property { name: "mask_agrees_with_an_array", cases: 5000, variants: &[("mask", array)] }];

#[derive(Clone, Debug)]
enum Op {
    Insert(usize),
    Add(Range<usize>),
    Remove(Range<usize>),
    InsertWords([u64; 8]),
    Count(Range<usize>),
    Run(usize, usize),
    Missing(usize),
}

/// Also beyond the block, and reversed.
fn pages() -> impl Strategy<Value = Range<usize>> {
    let page = || prop_oneof![4 => 0..PMD_PAGES + 40, 2 => (0usize..10).prop_map(|word| word * 64)];
    (page(), page(), 0usize..8).prop_map(|(first, second, swap)| match swap {
        0 => first.max(second)..first.min(second),
        _ => first.min(second)..first.max(second),
    })
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0..PMD_PAGES + 2).prop_map(Op::Insert),
        pages().prop_map(Op::Add),
        pages().prop_map(Op::Remove),
        (any::<[u64; 8]>(), any::<[u64; 8]>()).prop_map(|(mut words, other)| {
            words.iter_mut().zip(other).for_each(|(word, other)| *word &= other);
            Op::InsertWords(words)
        }),
        pages().prop_map(Op::Count),
        pages().prop_map(|pages| Op::Run(pages.start, pages.end)),
        (0..PMD_PAGES + 70).prop_map(Op::Missing),
    ]
}

/// A set contains the pages that were added and not removed. Runs, gaps and counts agree with a
/// check of each page.
fn array(trial: &Trial<'_>) {
    trial.run(ops(), 1..40, |ops| {
        let mut mask = PageSet::EMPTY;
        let mut model = [false; PMD_PAGES];
        let has = |model: &[bool], page: usize| model.get(page).copied().unwrap_or(false);
        for op in ops {
            match op.clone() {
                Op::Insert(page) => {
                    mask.insert(page);
                    model.iter_mut().skip(page).take(1).for_each(|it| *it = true);
                }
                Op::Add(pages) => {
                    mask.add(pages.clone());
                    for page in pages.filter(|page| *page < PMD_PAGES) {
                        model[page] = true;
                    }
                }
                Op::Remove(pages) => {
                    mask.remove(pages.clone());
                    for page in pages.filter(|page| *page < PMD_PAGES) {
                        model[page] = false;
                    }
                }
                Op::InsertWords(words) => {
                    mask.insert_words(words);
                    for page in 0..PMD_PAGES {
                        model[page] |= words[page / 64] >> (page % 64) & 1 != 0;
                    }
                }
                Op::Count(pages) => {
                    let expected = pages.clone().filter(|page| has(&model, *page)).count();
                    assert_eq!(mask.count(pages), expected);
                }
                Op::Run(from, end) => {
                    let first = (from..end).find(|page| has(&model, *page));
                    let expected = first.map(|first| {
                        let behind = (first..end).find(|page| !has(&model, *page));
                        first..behind.unwrap_or(end)
                    });
                    assert_eq!(mask.run(from, end), expected);
                }
                Op::Missing(end) => {
                    let expected = (0..end.min(PMD_PAGES)).filter(|page| !model[*page]);
                    assert!(mask.missing(end).eq(expected), "missing before {end}");
                }
            }
            for page in 0..PMD_PAGES + 2 {
                assert_eq!(mask.has(page), has(&model, page), "page {page}");
            }
            assert_eq!(mask.is_empty(), !model.contains(&true));
            let mut again = PageSet::EMPTY;
            again.insert_words(mask.words());
            assert_eq!(again, mask);
        }
    });
}
