// SPDX-License-Identifier: GPL-2.0

//! The page table, which is walked while it changes: with 16 entries in a table page, and two levels.

use super::{Entry, Flusher, Format, Leaf, Reader, Slot, Spares, Table};
use crate::{
    harness::{full, Test},
    locks,
    mm::{addr::PageRange, shrinker::Shrink},
};
use core::marker::PhantomData;
use kernel::{
    model::{spawn, Memory},
    prelude::*,
    sync::{Arc, SpinLock},
};

pub(crate) const TESTS: &[Test] = &[
    full("pgtable_walk_during_an_install", install),
    full("pgtable_walk_during_a_split", split),
    full(
        "pgtable_walk_never_sees_a_page_that_is_used_again",
        used_again,
    ),
    full("pgtable_walk_during_a_shrink", shrink),
    full("pgtable_reserve_during_a_shrink", reserve_and_shrink),
];

/// As `Radix4`, smaller.
enum Small {}

const TABLE: u64 = 1 << 11;

// SAFETY: As that of `Radix4`.
unsafe impl Format for Small {
    type Word = u64;

    const LEVELS: u32 = 2;
    const BITS: u32 = 4;

    fn has_leaves(level: u32) -> bool {
        level <= 1
    }

    fn table(index: u32) -> u64 {
        u64::from(index) << 12 | TABLE
    }

    fn leaf(_level: u32, entry: Entry) -> u64 {
        entry.bits()
    }

    fn decode(_level: u32, word: u64) -> Slot {
        match word {
            0 => Slot::Empty,
            word if word & TABLE != 0 => Slot::Table((word >> 12) as u32),
            word => Slot::Leaf(Entry::from_bits(word)),
        }
    }
}

/// Flushes by taking the lock that walkers hold.
struct Walkers(SpinLock<()>);

impl Flusher for Walkers {
    type Pending = ();

    fn start(&self, _range: PageRange) {}

    fn wait(&self, (): ()) {
        drop(self.0.lock());
    }
}

fn walkers() -> Arc<Walkers> {
    let (name, key) = locks::walker();
    Arc::new(Walkers(SpinLock::new((), name, key)), GFP_KERNEL).unwrap()
}

fn page(index: usize) -> PageRange {
    pages(index, 1)
}

fn pages(index: usize, count: usize) -> PageRange {
    PageRange::from_pages(index << 12, count).unwrap()
}

/// Installs entries from page `number` on in `range`.
fn put(table: &mut Table<Small>, spares: &mut Spares<Small>, range: PageRange, number: usize) {
    let mut batch = table.batch();
    table
        .install(range, spares, &mut batch, |addr, slot| {
            *slot = Entry::device(number + range.index_of(addr).unwrap(), true);
        })
        .unwrap();
    assert!(batch.is_empty());
}

fn number(leaf: Option<Leaf>) -> Option<usize> {
    leaf.map(|leaf| leaf.entry.number())
}

/// The table page is allocated, filled and put into the table while somebody walks. Who finds the
/// entry finds what the page held then.
fn install() {
    let mut table = Table::<Small>::new().unwrap();
    let reader = table.reader();
    let contents = Arc::new(Memory::new(0), GFP_KERNEL).unwrap();
    let theirs = contents.clone();
    let thread = spawn(move || {
        let mut spares = table.reader().spares();
        spares.refill().unwrap();
        theirs.write(1);
        put(&mut table, &mut spares, page(3), 7);
        (table, spares)
    });
    let first = number(reader.walk(3 << 12));
    assert!(matches!(first, None | Some(7)));
    if first.is_some() {
        assert_eq!(contents.read(), 1);
        assert_eq!(number(reader.walk(3 << 12)), Some(7));
    }
    thread.join();
}

/// A huge leaf is split, and one of its pages removed: the others are there all the time.
fn split() {
    let mut table = Table::<Small>::new().unwrap();
    let mut spares = table.reader().spares();
    spares.refill().unwrap();
    put(&mut table, &mut spares, pages(0, 16), 16);
    assert_eq!(table.leaf(0).unwrap().order, 4);
    spares.refill().unwrap();
    let reader = table.reader();
    let thread = spawn(move || {
        let mut batch = table.batch();
        table.for_each(page(1), &mut batch, |span, slot| {
            assert_eq!(span, page(1));
            *slot = Entry::NONE;
        });
        batch.start(&*walkers()).wait(&*walkers());
        (table, spares)
    });
    assert_eq!(number(reader.walk(2 << 12)), Some(18));
    assert!(matches!(number(reader.walk(1 << 12)), None | Some(17)));
    thread.join();
}

/// A table page is emptied, flushed and used for other addresses. A walker that was not waited for would see these.
fn used_again() {
    let mut table = Table::<Small>::new().unwrap();
    let mut spares = table.reader().spares();
    spares.refill().unwrap();
    put(&mut table, &mut spares, page(3), 7);
    let (reader, locked) = (table.reader(), walkers());
    let theirs = locked.clone();
    let thread = spawn(move || {
        let mut batch = table.batch();
        table.remove_all(page(3), &mut batch, |_, _| ());
        batch.start(&*theirs).wait(&*theirs);
        let page = table.pool.take_kept().unwrap();
        let mut list = super::pool::List::EMPTY;
        table.pool.push(&mut list, page);
        // Spares are taken from the end.
        core::mem::swap(&mut spares.pages, &mut list);
        put(&mut table, &mut spares, self::page(16 + 3), 8);
        core::mem::swap(&mut spares.pages, &mut list);
        (table, spares, list)
    });
    {
        let _walks = locked.0.lock();
        assert!(matches!(number(reader.walk(3 << 12)), None | Some(7)));
    }
    let (_table, _spares, list) = thread.join();
    assert!(list.is_empty());
}

/// A chunk of free table pages is given back to the kernel, while a walk goes through another one.
fn shrink() {
    let mut table = Table::<Small>::new().unwrap();
    let mut spares = table.reader().spares();
    spares.refill().unwrap();
    put(&mut table, &mut spares, page(3), 7);
    drop(spares);
    let (reader, pool) = (table.reader(), table.pool.clone());
    let locked = walkers();
    let theirs = locked.clone();
    let thread = spawn(move || {
        let mut batch = table.batch();
        table.remove_all(page(3), &mut batch, |_, _| ());
        batch.start(&*theirs).wait(&*theirs);
        pool.scan(64);
        table
    });
    // Not locked: it may be late, and then finds nothing.
    assert!(matches!(number(reader.walk(3 << 12)), None | Some(7)));
    thread.join();
}

/// Pages are reserved while chunks are given back.
fn reserve_and_shrink() {
    let table = Table::<Small>::new().unwrap();
    let mut spares = table.reader().spares();
    spares.refill().unwrap();
    drop(spares);
    let pool = table.pool.clone();
    let thread = spawn(move || pool.scan(64));
    let mut spares = table.reader().spares();
    spares.refill().unwrap();
    thread.join();
    let mut table = table;
    put(&mut table, &mut spares, page(3), 7);
    assert_eq!(number(table.leaf(3 << 12)), Some(7));
    let mut batch = table.batch();
    table.remove_all(page(3), &mut batch, |_, _| ());
    batch.start(&*walkers()).wait(&*walkers());
}
