// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of tables of several formats against a model.

use super::*;
use crate::{
    alarm::{
        Alarm,
        ExpectedAlarm, //
    },
    kernel::shrinker::Shrink,
    mm::{
        addr::{
            PageRange,
            PMD_PAGES,
            PMD_SIZE, //
        },
        table_memory::TableMemory, //
    }, //
};
use core::cell::Cell;
use kernel::{
    page::{
        PAGE_MASK,
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*, //
};

mod image;
mod memory;
mod sizes;
mod suite;
mod walkers;

/// A small one: three levels of 6 bits, entries of 32 bits, leaves of 4 KiB and 256 KiB, a leaf's
/// kind in its top bits.
type Narrow = FormatOf<NarrowBits>;

enum NarrowBits {}

impl Layout for NarrowBits {
    type Word = u32;

    const LEVELS: u32 = 3;
    const BITS_PER_LEVEL: u32 = 6;
    const LEAVES: &'static [u32] = &[0, 6];
    const BITS: Bits = Bits {
        valid: 31,
        write: 30,
        device: 29,
        exclusive: Some(28),
        table: 27,
        number: 0,
        number_bits: 27,
    };
}

/// Records the range of the last flush.
#[derive(Default)]
struct TestFlusher {
    started: Cell<Option<PageRange>>,
    waited: Cell<usize>,
}

impl Flusher for TestFlusher {
    type Pending = ();

    fn start(&self, range: PageRange) {
        self.started.set(Some(range));
    }

    fn wait(&self, (): ()) {
        self.waited.set(self.waited.get() + 1);
    }
}

/// Completes the flush of a batch. Returns the flushed range.
fn flush<F: Format>(batch: FlushBatch<F>) -> Option<PageRange> {
    let flusher = TestFlusher::default();
    let _proof = batch.start(&flusher).wait(&flusher);
    flusher.started.get()
}

/// Installs consecutive pages of system memory from `number` on.
fn fill<F: Format>(
    table: &mut Table<F>,
    range: PageRange,
    number: usize,
    writable: bool,
) -> Result<Option<PageRange>> {
    let mut prealloc = table.reader().prealloc();
    prealloc.refill()?;
    let mut batch = table.batch();
    let result = table.install(range, &mut prealloc, &mut batch, |addr, entry| {
        let index = range.index_of(addr).unwrap_or(0);
        *entry = DevicePte::system(number + index, writable);
    });
    let flushed = flush(batch);
    result.map(|()| flushed)
}

/// Removes all entries in `range`. Returns the number of removed pages and the flushed range.
fn clear<F: Format>(table: &mut Table<F>, range: PageRange) -> (usize, Option<PageRange>) {
    let mut batch = table.batch();
    let mut pages = 0;
    table.for_each(range, &mut batch, |span, entry| {
        pages += span.pages();
        *entry = DevicePte::NONE;
    });
    (pages, flush(batch))
}

fn all() -> Result<PageRange> {
    PageRange::new(0, 1 << 47)
}

/// Pseudo-random numbers (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// Number of pages that a leaf of level 1 maps, which are those of a table of level 0.
const fn leaf_pages<F: Format>() -> usize {
    format::slots::<F>(0)
}

/// Pages of a leaf of [`Radix4`] and [`Radix5`].
const LEAF_PAGES: usize = leaf_pages::<Radix4>();

/// Size of such a leaf in bytes, 2 MiB.
const LEAF_SIZE: usize = LEAF_PAGES * PAGE_SIZE;

/// Log2 of the number of pages of such a leaf.
const LEAF_ORDER: u32 = LEAF_PAGES.ilog2();

/// Pages of the model's address space, from 0 on: at least four tables of [`Radix4`], and two
/// blocks that are installed at once.
const PAGES: usize = if PMD_PAGES < 2048 { 4 } else { 2 } * PMD_PAGES;

/// Random updates of a table and of a model array. After each update both must be equal, and all
/// removed translations must have been flushed.
fn agrees_with_model<F: Format>(seed: u64) -> Result {
    agrees_with_model_and::<F>(seed, TableMemory::none(), None)
}

/// Compares the image of a table with the model.
type Judge<F> = fn(&Table<F>, &[DevicePte]) -> bool;

/// The same, with a table in `memory`, and with what `judge` finds there.
fn agrees_with_model_and<F: Format>(
    seed: u64,
    memory: TableMemory,
    judge: Option<Judge<F>>,
) -> Result {
    let mut random = Random(seed);
    let mut table = Table::<F>::with(None, memory)?;
    let reader = table.reader();
    let mut prealloc = reader.prealloc();
    let mut model = KVec::from_elem(DevicePte::NONE, PAGES, GFP_KERNEL)?;
    for round in 0..150 {
        let piece = random.below(PAGES / PMD_PAGES) * PMD_PAGES;
        let (first, count) = match random.below(3) {
            0 => (piece, PMD_PAGES),
            1 => (piece + random.below(PMD_PAGES), 1),
            _ => {
                let first = random.below(PMD_PAGES);
                (piece + first, 1 + random.below(PMD_PAGES - first))
            }
        };
        let range = PageRange::from_pages(first * PAGE_SIZE, count)?;
        let number = random.below(64) * 512 + random.below(2) * random.below(512);
        let what = random.below(6);
        let change = |index: usize, old: DevicePte| match what {
            0 | 1 => DevicePte::system(number + index % 512, what == 1),
            2 => DevicePte::device(number + index % 512, true),
            3 => old.write_protected(),
            4 => DevicePte::NONE,
            _ if index % 7 == 0 => DevicePte::exclusive(number + index),
            _ => old,
        };
        let mut batch = table.batch();
        if what == 3 || what == 4 {
            let split = |_| round % 4 == 0;
            // As each fault and migration does.
            prealloc.refill()?;
            if what == 4 && round % 3 == 0 {
                let mut pages = 0;
                table.remove_all(range, &mut batch, |_, count| pages += count);
                assert!(pages <= count);
            }
            table.for_each_split(range, &mut batch, split, |span, entry| {
                assert!(range.intersect(&span) == Some(span));
                *entry = change(0, *entry);
            });
        } else {
            prealloc.refill()?;
            table.install(range, &mut prealloc, &mut batch, |addr, entry| {
                *entry = change(addr / PAGE_SIZE, *entry);
            })?;
        }
        let flushed = flush(batch);
        let mut live = 0;
        for (index, entry) in model.iter_mut().enumerate() {
            let old = *entry;
            if (first..first + count).contains(&index) && (what != 3 || old.is_valid()) {
                *entry = change(index, old);
            }
            let addr = index * PAGE_SIZE;
            let found = reader.walk(addr).map_or(DevicePte::NONE, |leaf| leaf.entry);
            let covered = flushed.is_some_and(|range| range.index_of(addr).is_some());
            let right = found == *entry && (covered || !old.is_outdated_by(*entry));
            if !right {
                pr_err!("seed {seed:#x} round {round} page {index}: {found:?} {entry:?}\n");
                return Err(EINVAL);
            }
            live += usize::from(entry.is_valid());
        }
        if table.live() != live {
            pr_err!(
                "seed {seed:#x} round {round}: {} live, not {live}\n",
                table.live()
            );
            return Err(EINVAL);
        }
        if judge.is_some_and(|agrees| !agrees(&table, &model)) {
            pr_err!("seed {seed:#x} round {round}: the image is wrong\n");
            return Err(EINVAL);
        }
    }
    let (_, _) = clear(&mut table, all()?);
    assert_eq!(table.live(), 0);
    Ok(())
}

/// A table of addresses of `bits` bits has entries at both ends, and none beyond. No other address
/// leads to those at the upper end.
fn both_ends<F: Format>(bits: u32) -> Result {
    let mut table = Table::<F>::new()?;
    fill(&mut table, PageRange::from_pages(0, 1)?, 0, true)?;
    let top = PageRange::from_pages((1 << bits) - PMD_SIZE, PMD_PAGES)?;
    fill(&mut table, top, 0, true)?;
    let beyond = PageRange::from_pages(1 << bits, 1)?;
    let refused = fill(&mut table, beyond, 0, true);
    let found = [0, top.end() - 1].map(|addr| table.get(addr).is_valid());
    let none = (PMD_SIZE.ilog2()..usize::BITS)
        .map(|bit| (top.end() - 1) ^ (1 << bit))
        .all(|addr| !table.get(addr).is_valid());
    let (removed, _) = clear(&mut table, PageRange::new(0, usize::MAX & PAGE_MASK)?);
    let none = none && !table.get(usize::MAX).is_valid();
    const REMOVED: usize = PMD_PAGES + 1;
    match (refused, found, none, removed, table.live()) {
        (Err(EINVAL), [true, true], true, REMOVED, 0) => Ok(()),
        what => {
            pr_err!("{bits} bits: {what:?}\n");
            Err(EINVAL)
        }
    }
}

/// A scan that stops at any page, and continues from there, sees each page exactly once.
fn scan_sees_all<F: Format>() -> Result {
    let mut table = Table::<F>::new()?;
    let reader = table.reader();
    let small = PageRange::from_pages(PMD_SIZE + 3 * PAGE_SIZE, 100)?;
    let huge = PageRange::from_pages(2 * PMD_SIZE, PMD_PAGES)?;
    let last = PageRange::from_pages(4 * PMD_SIZE - PAGE_SIZE, 1)?;
    for (number, range) in [(5, small), (PMD_PAGES, huge), (7, last)] {
        fill(&mut table, range, number, true)?;
    }
    // Parts at a time, and translations that are taken at once.
    for (parts, most) in [(1, usize::MAX), (1000, usize::MAX), (3, 1), (1000, 7)] {
        let mut from = Some(0);
        let mut pages = 0;
        let mut behind = 0;
        let mut calls = 0;
        while let Some(addr) = from {
            let mut taken = 0;
            from = reader.scan(addr, parts, |range, entry, is_huge| {
                if taken == most {
                    return false;
                }
                taken += 1;
                let same = (0..range.pages()).all(|index| {
                    let found = reader.walk(range.address(index));
                    found.is_some_and(|leaf| {
                        leaf.entry == entry.plus(index) && (leaf.order != 0) == is_huge
                    })
                });
                assert!(same && range.start() >= behind);
                behind = range.end();
                pages += range.pages();
                true
            });
            calls += 1;
            assert!(calls < 10_000);
        }
        assert_eq!(pages, 100 + PMD_PAGES + 1);
    }
    // A scan that starts inside a huge leaf.
    let mut first = None;
    reader.scan(huge.address(9), 1, |range, entry, _| {
        first.get_or_insert((range.start(), entry));
        true
    });
    assert_eq!(
        first,
        Some((huge.address(9), DevicePte::system(PMD_PAGES + 9, true)))
    );
    let (_, _) = clear(&mut table, all()?);
    let mut any = false;
    let mut from = Some(0);
    while let Some(addr) = from {
        from = reader.scan(addr, 1000, |_, _, _| {
            any = true;
            true
        });
    }
    assert!(!any);
    Ok(())
}
