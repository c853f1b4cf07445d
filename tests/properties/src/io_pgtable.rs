// SPDX-License-Identifier: GPL-2.0

//! Pages that are put into a table of the kernel's together.

use super::batch::Batch;
use crate::harness::{Property, Trial};
use kernel::page::PAGE_SIZE;
use proptest::prelude::*;

pub(crate) const ALL: &[Property] = &[Property {
    name: "io_pgtable_batch_has_its_pages_in_few_runs",
    cases: 2000,
    variants: &[("batch", batch)],
}];

/// Pages that follow each other: how many, whether their physical addresses do, and their rights.
#[derive(Clone, Copy, Debug)]
struct Pages {
    addr: Option<usize>,
    physical: Option<u64>,
    count: usize,
    rights: u32,
}

fn pages() -> impl Strategy<Value = Pages> {
    let addr = prop_oneof![3 => Just(None), 1 => (1usize..1000).prop_map(Some)];
    let physical = prop_oneof![3 => Just(None), 1 => (1u64..1000).prop_map(Some)];
    let count = prop_oneof![1usize..4, 1usize..200];
    (addr, physical, count, 0u32..2).prop_map(|(addr, physical, count, rights)| Pages {
        addr,
        physical,
        count,
        rights,
    })
}

/// A batch has all pages that it took, in order, in as few runs as can be; it refuses one only if
/// it is full.
fn batch(trial: &Trial<'_>) {
    trial.run(pages(), 1..60, |ops| {
        let mut batch = Batch::new();
        let mut model: Vec<(usize, u64, u32)> = Vec::new();
        let (mut addr, mut physical) = (PAGE_SIZE, 1 << 30);
        'full: for op in ops {
            addr = op.addr.map_or(addr, |addr| addr * PAGE_SIZE);
            physical = op.physical.map_or(physical, |physical| physical << 12);
            for _ in 0..op.count {
                let page = (addr, physical, op.rights);
                let goes_on = model.last().is_some_and(|(addr, physical, rights)| {
                    (addr + PAGE_SIZE, physical + PAGE_SIZE as u64, *rights) == page
                });
                let has_room = model.len() < 512 && (goes_on || batch.runs().len() < 32);
                assert_eq!(batch.add(addr, physical, op.rights), has_room);
                if !has_room {
                    break 'full;
                }
                model.push(page);
                addr += PAGE_SIZE;
                physical += PAGE_SIZE as u64;
            }
        }
        let pages = batch.runs().iter().flat_map(|run| {
            assert_eq!(run.end(), run.addr + run.pages * PAGE_SIZE);
            (0..run.pages).map(|page| {
                let bytes = page * PAGE_SIZE;
                (run.addr + bytes, run.physical + bytes as u64, run.rights)
            })
        });
        assert!(pages.eq(model), "a batch has other pages");
        for two in batch.runs().windows(2) {
            let [one, next] = two else { unreachable!() };
            let behind = one.physical + (one.pages * PAGE_SIZE) as u64;
            let follows =
                (one.end(), behind, one.rights) == (next.addr, next.physical, next.rights);
            assert!(!follows, "two runs that are one");
        }
    });
}
