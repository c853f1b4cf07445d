// SPDX-License-Identifier: GPL-2.0

//! Page tables of all formats: one list of operations, and one model, a map from pages to entries.
//!
//! A module below the text of the KUnit suite, of which it has the small format, the flusher, and
//! the test with random numbers.

use super::*;
use crate::{
    harness::{
        Property,
        Trial, //
    },
    inject::{
        arm,
        FailPoint, //
    },
    mm::dma::{
        DmaDevice,
        DmaWindows, //
    },
    pgtable::{
        format::{
            can_hold,
            fan,
            group_order,
            has_leaves,
            last_address,
            order,
            shift,
            slots,
            unit, //
        },
        formats::{
            Gfx9,
            Lpae,
            Lpae16k, //
        },
        list::PageList,
        tree::{
            self,
            Slot, //
        },
        BreakBeforeMake, //
    }, //
};
use kernel::{
    page::PAGE_SHIFT,
    sync::{
        rcu,
        Arc, //
    }, //
};
use proptest::prelude::*;
use std::collections::{
    BTreeMap,
    BTreeSet, //
};

#[path = "pgtable/both.rs"]
mod both;
#[path = "pgtable/decode.rs"]
mod decode;
#[path = "pgtable/formats.rs"]
mod formats;
#[path = "pgtable/image.rs"]
mod image;
#[path = "pgtable/model.rs"]
mod model;
#[path = "pgtable/ops.rs"]
mod ops;
#[path = "pgtable/sizes.rs"]
mod sizes;

use both::{
    Both,
    Look, //
};
use decode::{
    Decode,
    Decoded, //
};
use formats::{
    Deep,
    Engines,
    Many,
    Plain,
    Quarter,
    Runs,
    Smaller,
    Tight,
    Tiny,
    Whole, //
};
use model::{
    Mapped,
    Model, //
};
use ops::*;
use sizes::{
    Tlb,
    Waiting, //
};

macro_rules! variants {
    ($function:ident) => {
        &[
            ("radix4", $function::<Radix4>),
            ("radix5", $function::<Radix5>),
            ("narrow", $function::<Narrow>),
            ("engines", $function::<Engines>),
            ("tiny", $function::<Tiny>),
            ("deep", $function::<Deep>),
            ("plain", $function::<Plain>),
            ("tight", $function::<Tight>),
            ("quarter-radix4", $function::<Quarter<Radix4>>),
            ("quarter-tiny", $function::<Quarter<Tiny>>),
            ("dma-radix4", $function::<DmaFormat<Radix4>>),
            ("dma-quarter", $function::<DmaFormat<Quarter<Narrow>>>),
            ("dma-narrow", $function::<DmaFormat<Narrow>>),
            ("dma-tiny", $function::<DmaFormat<Tiny>>),
            ("dma-deep", $function::<DmaFormat<Deep>>),
        ]
    };
}

pub(crate) const ALL: &[Property] = &[
    Property {
        name: "table_walks_find_installed_entries",
        cases: 128,
        variants: variants!(walks),
    },
    Property {
        name: "table_runs_become_huge_and_parts_split",
        cases: 160,
        variants: variants!(shapes),
    },
    Property {
        name: "table_flushes_cover_removed_entries",
        cases: 300,
        variants: variants!(flushes),
    },
    Property { name: "table_counts_match_entries", cases: 250, variants: variants!(counts) },
    Property { name: "table_pages_are_not_lost", cases: 300, variants: variants!(pages) },
    Property { name: "table_searches_agree_with_walks", cases: 120, variants: variants!(searches) },
    Property {
        name: "table_failed_installs_change_nothing",
        cases: 100,
        variants: variants!(failures),
    },
    Property {
        name: "table_dma_pages_are_mapped_until_their_flush",
        cases: 300,
        variants: &[
            ("dma-radix4", dma::<DmaFormat<Radix4>>),
            ("dma-narrow", dma::<DmaFormat<Narrow>>),
            ("dma-tiny", dma::<DmaFormat<Tiny>>),
            ("dma-deep", dma::<DmaFormat<Deep>>),
            ("dma-plain", dma::<DmaFormat<Plain>>),
        ],
    },
    Property {
        name: "table_agrees_with_the_model_of_kunit",
        cases: 12,
        variants: &[
            ("radix4", kunit_model::<Radix4>),
            ("narrow", kunit_model::<Narrow>),
            ("engines", kunit_model::<Engines>),
        ],
    },
    Property {
        name: "table_has_more_pages_than_512_gib_need",
        cases: 2,
        variants: &[("many", many::<Many>)],
    },
    Property {
        name: "image_is_valid_at_every_write",
        cases: 50,
        variants: &[
            ("radix4", images::<Radix4>),
            ("radix5", images::<Radix5>),
            ("lpae", images::<Lpae>),
            ("lpae-16k", images::<Whole<Lpae16k>>),
            ("gfx9", images::<Gfx9>),
            ("narrow", images::<Narrow>),
            ("runs", images::<Runs>),
            ("quarter-radix4", images::<Quarter<Radix4>>),
            ("quarter-lpae", images::<Quarter<Lpae>>),
            ("quarter-runs", images::<Quarter<Runs>>),
            ("dma-lpae", images::<DmaFormat<Lpae>>),
            ("dma-gfx9", images::<DmaFormat<Gfx9>>),
            ("dma-quarter", images::<DmaFormat<Quarter<Lpae>>>),
        ],
    },
    Property {
        name: "image_has_one_size_until_a_flush",
        cases: 50,
        variants: &[
            ("lpae", sizes::<BreakBeforeMake<Lpae>>),
            ("lpae-16k", sizes::<BreakBeforeMake<Whole<Lpae16k>>>),
            ("gfx9", sizes::<BreakBeforeMake<Gfx9>>),
            ("runs", sizes::<BreakBeforeMake<Runs>>),
            ("narrow", sizes::<BreakBeforeMake<Narrow>>),
            ("quarter-lpae", sizes::<BreakBeforeMake<Quarter<Lpae>>>),
            ("quarter-runs", sizes::<BreakBeforeMake<Quarter<Runs>>>),
            ("dma-lpae", sizes::<DmaFormat<BreakBeforeMake<Lpae>>>),
        ],
    },
];

fn run<F: Format>(trial: &Trial<'_>, look: Look, op: BoxedStrategy<Op>) {
    trial.run(op, 1..24, |ops| {
        let mut both = Both::<F>::new(look);
        for op in ops {
            both.apply(op);
            both.check();
        }
        both.end();
    });
}

/// A walk to each page finds the entry that the model has, and so does who changes the table.
fn walks<F: Format>(trial: &Trial<'_>) {
    run::<F>(trial, Look::Walks, ops());
}

/// A table of aligned pages in a row becomes a huge leaf, which stays one until a part of it
/// changes; if no table page is left then, it changes as a whole.
fn shapes<F: Format>(trial: &Trial<'_>) {
    run::<F>(trial, Look::Shapes, ops());
}

/// A flush covers each page of which the device may have more than the table says; one that covers
/// nothing is none.
fn flushes<F: Format>(trial: &Trial<'_>) {
    run::<F>(trial, Look::Flushes, ops());
}

/// Each table page knows how many of its entries are used, and in which part of it; none without is
/// in the tree.
fn counts<F: Format>(trial: &Trial<'_>) {
    run::<F>(trial, Look::Counts, ops());
}

/// Each table page is in one place: in the tree, detached until its flush is over, reserved, or
/// free.
fn pages<F: Format>(trial: &Trial<'_>) {
    run::<F>(trial, Look::Pages, ops());
}

/// What searches, counts or looks through a table finds what walks find.
fn searches<F: Format>(trial: &Trial<'_>) {
    run::<F>(trial, Look::Searches, ops());
}

/// After an error no page has changed that the error is not about.
fn failures<F: Format>(trial: &Trial<'_>) {
    run::<F>(trial, Look::Walks, failing_ops());
}

/// A system page has a DMA address as long as its entry, and until the flush that follows.
fn dma<F: Format>(trial: &Trial<'_>) {
    run::<F>(trial, Look::Dma, ops());
}

/// The test with random numbers of the KUnit suite, with many seeds.
fn kunit_model<F: Format>(trial: &Trial<'_>) {
    trial.run(1..u64::MAX, 1..2, |seeds| {
        for seed in seeds {
            assert_eq!(agrees_with_model::<F>(*seed), Ok(()));
        }
    });
    scan_sees_all::<F>().unwrap();
}

/// The number of table pages is only limited by memory: there are more than 512 GiB need, which is
/// 262,144, each with one entry.
fn many<F: Format>(trial: &Trial<'_>) {
    const TABLES: usize = 300_000;
    trial.run(1..u64::MAX, 1..2, |seeds| {
        let mut random = Random(seeds[0]);
        let per_table = leaf_pages::<F>();
        let mut table = Table::<F>::new().unwrap();
        let reader = table.reader();
        let mut prealloc = reader.prealloc();
        let step = last_address::<F>() / PAGE_SIZE / per_table / TABLES;
        assert_ne!(step, 0);
        let pages: Vec<_> = (0..TABLES)
            .map(|number| number * step * per_table + random.below(per_table))
            .collect();
        let mut batch = table.batch();
        for (number, page) in pages.iter().enumerate() {
            let range = PageRange::from_pages(page * PAGE_SIZE, 1).unwrap();
            prealloc.refill().unwrap();
            let result = table.install(range, &mut prealloc, &mut batch, |_, entry| {
                *entry = DevicePte::system(number, true);
            });
            assert_eq!(result, Ok(()), "page {page} in table {number}");
        }
        assert!(batch.is_empty());
        assert_eq!(flush(batch), None);
        assert!(table.pool.pages() > TABLES && table.live() == TABLES);
        for (number, page) in pages.iter().enumerate() {
            let found = reader.walk(page * PAGE_SIZE).map(|leaf| leaf.entry);
            assert_eq!(found, Some(DevicePte::system(number, true)), "page {page}");
        }
        let everything = PageRange::new(0, 1 << 47).unwrap();
        assert_eq!((clear(&mut table, everything).0, table.live()), (TABLES, 0));
        assert!(pages.iter().all(|page| reader.walk(page * PAGE_SIZE).is_none()));
    });
}

/// A walk of the image after any write finds the page from before or after the operation, and so
/// does a TLB that caches translations until the flush.
fn images<F: Decode>(trial: &Trial<'_>) {
    beside::<F>(trial, ops());
}

/// A TLB that caches translations until their flush never holds a page in two sizes. After all
/// flushes each page is found.
fn sizes<F: Decode>(trial: &Trial<'_>) {
    beside::<F>(trial, sized_ops());
}

fn beside<F: Decode>(trial: &Trial<'_>, op: BoxedStrategy<Op>) {
    // Long enough for tables to be flushed and used again.
    trial.run(op, 1..48, |ops| {
        let mut beside = image::Beside::<F>::new();
        for op in ops {
            beside.apply(op);
        }
        beside.end();
    });
}
