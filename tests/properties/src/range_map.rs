// SPDX-License-Identifier: GPL-2.0

//! The map of ranges, compared with a map of pages.

use super::range_map::{
    RangeMap,
    Wait,
    MAX_VALUE, //
};
use crate::{
    harness::{
        Property,
        Trial, //
    },
    inject::{
        arm,
        FailPoint, //
    }, //
};
use core::num::NonZeroU64;
use kernel::prelude::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

pub(crate) const ALL: &[Property] = &[Property {
    name: "range_map_agrees_with_a_map_of_pages",
    cases: 500,
    variants: &[("range-map", pages)],
}];

#[derive(Clone, Copy, Debug)]
enum Op {
    Store(usize, usize, u64),
    Remove(usize, usize),
    /// A store that fails for lack of memory.
    Fail(usize, usize, u64),
    Find(usize, usize),
    Clear,
}

fn index() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 0usize..60, 1 => (0usize..8).prop_map(|back| usize::MAX - back)]
}

fn ops() -> impl Strategy<Value = Op> {
    let value = || prop_oneof![6 => 1u64..5, 1 => Just(MAX_VALUE), 1 => Just(MAX_VALUE + 1)];
    prop_oneof![
        8 => (index(), index(), value()).prop_map(|(a, b, value)| Op::Store(a, b, value)),
        4 => (index(), index()).prop_map(|(a, b)| Op::Remove(a, b)),
        1 => (index(), index(), value()).prop_map(|(a, b, value)| Op::Fail(a, b, value)),
        4 => (index(), index()).prop_map(|(a, b)| Op::Find(a, b)),
        1 => Just(Op::Clear),
    ]
}

/// Indices that are checked; all others have the same values as their neighbours.
fn looked_at() -> impl Iterator<Item = usize> {
    (0..62).chain(usize::MAX - 9..=usize::MAX)
}

/// Each page has the value stored last. Ranges do not overlap, and are found in order.
fn pages(trial: &Trial<'_>) {
    trial.run(ops(), 1..40, |ops| {
        let map = KBox::pin_init(RangeMap::new(), GFP_KERNEL).unwrap();
        let mut model: BTreeMap<usize, u64> = BTreeMap::new();
        for op in ops {
            match *op {
                Op::Store(first, last, value) | Op::Fail(first, last, value) => {
                    let fails = matches!(op, Op::Fail(..));
                    arm(fails.then_some(FailPoint::Attributes));
                    let wait = if value % 2 == 0 { Wait::Yes } else { Wait::No };
                    let result = map.store(first..=last, NonZeroU64::new(value), wait);
                    arm(None);
                    let expected = match () {
                        () if first > last || value > MAX_VALUE => Err(EINVAL),
                        () if fails => Err(ENOMEM),
                        () => Ok(()),
                    };
                    assert_eq!(result, expected);
                    if result.is_ok() {
                        for index in looked_at().filter(|index| (first..=last).contains(index)) {
                            model.insert(index, value);
                        }
                    }
                }
                Op::Remove(first, last) => {
                    let result = map.store(first..=last, None, Wait::Yes);
                    assert_eq!(result.is_ok(), first <= last);
                    model.retain(|index, _| !(first..=last).contains(index));
                }
                Op::Find(from, to) => {
                    let found = map.find(from, to);
                    let expected = looked_at()
                        .filter(|index| from <= *index && *index <= to)
                        .find_map(|index| Some((index, *model.get(&index)?)));
                    // The range may begin before.
                    let seen = found.map(|piece| (piece.first.max(from), piece.value.get()));
                    assert_eq!(seen, expected, "find from {from} to {to}");
                }
                Op::Clear => {
                    map.clear();
                    model.clear();
                }
            }
            let mut pieces = Vec::new();
            let mut from = Some(0);
            while let Some(piece) = from.and_then(|from| map.find(from, usize::MAX)) {
                assert!(piece.first <= piece.last && piece.first >= from.unwrap_or(0));
                pieces.push(piece);
                from = piece.last.checked_add(1);
            }
            for index in looked_at() {
                let value = model.get(&index).copied();
                let piece = pieces.iter().find(|it| (it.first..=it.last).contains(&index));
                assert_eq!(piece.map(|piece| piece.value.get()), value, "index {index}");
                let (same, found) = map.at(index);
                assert_eq!(found.map(NonZeroU64::get), value);
                assert!(same.contains(&index));
                for other in looked_at().filter(|other| same.contains(other)) {
                    assert_eq!(model.get(&other).copied(), value);
                }
            }
        }
    });
}
