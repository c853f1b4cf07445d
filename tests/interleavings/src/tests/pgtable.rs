// SPDX-License-Identifier: GPL-2.0

//! The page table, walked while it changes: with 16 entries in a table page, and two levels.

use core::marker::PhantomData;
use crate::{
    harness::{
        Test,
        full, //
    },
    kernel::{
        lock_classes,
        shrinker::Shrink, //
    },
    mm::{
        addr::PageRange,
        table_memory::TableMemory, //
    }, //
};
use kernel::{
    model::{
        Memory,
        spawn, //
    },
    prelude::*,
    sync::{
        Arc,
        SpinLock,
        rcu, //
    }, //
};
use std::collections::BTreeMap;
use super::{
    DevicePte,
    Flusher,
    Format,
    Leaf,
    Prealloc,
    Table,
    TableReader, //
};

pub(crate) const TESTS: &[Test] = &[
    full("pgtable_walk_during_an_install", install),
    full("pgtable_walk_during_a_split", split),
    full("pgtable_walk_never_reads_a_reused_page", used_again),
    full("pgtable_walk_during_a_shrink", shrink),
    full("pgtable_reserve_during_a_shrink", reserve_and_shrink),
    full("pgtable_device_walks_during_an_install", device_install),
    full("pgtable_device_walks_during_a_split", device_split),
    full("pgtable_device_walks_while_a_page_leaves_a_run", device_run),
    full("pgtable_device_walks_while_a_pass_breaks_a_run", device_run_by_pass),
    full("pgtable_device_walk_never_reads_a_reused_page", device_used_again),
];

/// Like `Radix4`, but smaller.
enum Small {}

/// Bits of an entry of the image: it refers to a table; it belongs to a contiguous run of 4.
const TABLE: u64 = 1 << 11;
const RUN: u64 = 1 << 10;

impl Format for Small {
    type Word = u64;

    const LEVELS: u32 = 2;
    const BITS: u32 = 4;

    const LEAVES: &'static [u32] = &[0, 2, 4];

    fn table(_level: u32, address: u64) -> u64 {
        address | TABLE
    }

    fn leaf(order: u32, entry: DevicePte) -> u64 {
        entry.bits() | if order == 2 { RUN } else { 0 }
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
    let (name, key) = lock_classes::walker();
    Arc::new(Walkers(SpinLock::new((), name, key)), GFP_KERNEL).unwrap()
}

fn page(index: usize) -> PageRange {
    pages(index, 1)
}

fn pages(index: usize, count: usize) -> PageRange {
    PageRange::from_pages(index << 12, count).unwrap()
}

/// Installs entries in `range`, for device pages from `number` on.
fn put(table: &mut Table<Small>, prealloc: &mut Prealloc<Small>, range: PageRange, number: usize) {
    let mut batch = table.batch();
    table
        .install(range, prealloc, &mut batch, |addr, slot| {
            *slot = DevicePte::device(number + range.index_of(addr).unwrap(), true);
        })
        .unwrap();
    assert!(batch.is_empty());
}

fn number(leaf: Option<Leaf>) -> Option<usize> {
    leaf.map(|leaf| leaf.entry.number())
}

/// A table page is allocated, filled and linked while it is walked. A walker that finds the link
/// must find the contents.
fn install() {
    let mut table = Table::<Small>::new().unwrap();
    let reader = table.reader();
    let contents = Arc::new(Memory::new(0), GFP_KERNEL).unwrap();
    let theirs = contents.clone();
    let thread = spawn(move || {
        let mut prealloc = table.reader().prealloc();
        prealloc.refill().unwrap();
        theirs.write(1);
        put(&mut table, &mut prealloc, page(3), 7);
        (table, prealloc)
    });
    let first = number(reader.walk(3 << 12));
    assert!(matches!(first, None | Some(7)));
    if first.is_some() {
        assert_eq!(contents.read(), 1);
        assert_eq!(number(reader.walk(3 << 12)), Some(7));
    }
    thread.join();
}

/// A huge leaf is split, and one of its pages removed. The other pages stay mapped at all times.
fn split() {
    let mut table = Table::<Small>::new().unwrap();
    let mut prealloc = table.reader().prealloc();
    prealloc.refill().unwrap();
    put(&mut table, &mut prealloc, pages(0, 16), 16);
    assert_eq!(table.leaf(0).unwrap().order, 4);
    prealloc.refill().unwrap();
    let reader = table.reader();
    let thread = spawn(move || {
        let mut batch = table.batch();
        table.for_each(page(1), &mut batch, |span, slot| {
            assert_eq!(span, page(1));
            *slot = DevicePte::NONE;
        });
        batch.start(&*walkers()).wait(&*walkers());
        (table, prealloc)
    });
    assert_eq!(number(reader.walk(2 << 12)), Some(18));
    assert!(matches!(number(reader.walk(1 << 12)), None | Some(17)));
    thread.join();
}

/// Removes page 3, and uses the freed table page for page 16 + 3.
fn use_again(table: &mut Table<Small>, prealloc: &mut Prealloc<Small>, walkers: &Walkers) {
    let mut batch = table.batch();
    table.remove_all(page(3), &mut batch, |_, _| ());
    batch.start(walkers).wait(walkers);
    let freed = table.pool.take_kept().unwrap();
    let mut only = super::list::PageList::EMPTY;
    table.pool.push(&mut only, freed);
    core::mem::swap(&mut prealloc.pages.leaves, &mut only);
    put(table, prealloc, page(16 + 3), 8);
    core::mem::swap(&mut prealloc.pages.leaves, &mut only);
    assert!(only.is_empty());
}

/// A table page is emptied, flushed and reused for other addresses. A walker must not see the
/// latter.
fn used_again() {
    let mut table = Table::<Small>::new().unwrap();
    let mut prealloc = table.reader().prealloc();
    prealloc.refill().unwrap();
    put(&mut table, &mut prealloc, page(3), 7);
    let reader = table.reader();
    let locked = walkers();
    let theirs = locked.clone();
    let thread = spawn(move || {
        use_again(&mut table, &mut prealloc, &theirs);
        (table, prealloc)
    });
    {
        let _walks = locked.0.lock();
        assert!(matches!(number(reader.walk(3 << 12)), None | Some(7)));
    }
    thread.join();
}

/// A chunk of free table pages is freed while a walk uses another one.
fn shrink() {
    let mut table = Table::<Small>::new().unwrap();
    let mut prealloc = table.reader().prealloc();
    prealloc.refill().unwrap();
    put(&mut table, &mut prealloc, page(3), 7);
    drop(prealloc);
    let reader = table.reader();
    let pool = table.pool.clone();
    let locked = walkers();
    let theirs = locked.clone();
    let thread = spawn(move || {
        let mut batch = table.batch();
        table.remove_all(page(3), &mut batch, |_, _| ());
        batch.start(&*theirs).wait(&*theirs);
        pool.scan(64);
        table
    });
    // Without the walker's lock, the walk may be late and find nothing.
    assert!(matches!(number(reader.walk(3 << 12)), None | Some(7)));
    thread.join();
}

/// Table pages are reserved while chunks are freed.
fn reserve_and_shrink() {
    let table = Table::<Small>::new().unwrap();
    let mut prealloc = table.reader().prealloc();
    prealloc.refill().unwrap();
    drop(prealloc);
    let pool = table.pool.clone();
    let theirs = pool.clone();
    let thread = spawn(move || theirs.scan(64));
    let mut prealloc = table.reader().prealloc();
    prealloc.refill().unwrap();
    thread.join();
    let mut table = table;
    put(&mut table, &mut prealloc, page(3), 7);
    assert_eq!(number(table.leaf(3 << 12)), Some(7));
    let mut batch = table.batch();
    table.remove_all(page(3), &mut batch, |_, _| ());
    batch.start(&*walkers()).wait(&*walkers());
    drop(prealloc);
    // Each page except the root is free exactly once.
    let pages = pool.pages();
    let free = (0..pages).map_while(|_| pool.take_kept()).count();
    assert_eq!(free + 1, pages);
}

/// A device that walks the image of the table.
struct Device {
    reader: TableReader<Small>,
    /// The indices of the table pages, by address.
    tables: BTreeMap<u64, u32>,
}

impl Device {
    /// A table with preallocated pages, and a device that walks it.
    fn new() -> (Table<Small>, Prealloc<Small>, Self) {
        let table = Table::<Small>::with(None, TableMemory::plain()).unwrap();
        let mut prealloc = table.reader().prealloc();
        prealloc.refill().unwrap();
        let reader = table.reader();
        let tables = {
            let guard = rcu::read_lock();
            let address = |index| Some((reader.pool.address(&guard, index)?, index));
            (0..4 * super::chunk::CHUNK as u32).filter_map(address).collect()
        };
        (table, prealloc, Self { reader, tables })
    }

    fn read(&self, index: u32, slot: usize) -> u64 {
        let guard = rcu::read_lock();
        let (images, at) = self.reader.pool.images(&guard, index).unwrap();
        images.unit(&guard, at).unwrap().read_u64(slot)
    }

    /// The device page number at `index`, and whether its entry belongs to a contiguous run.
    fn walk(&self, index: usize) -> Option<(usize, bool)> {
        let mut word = self.read(self.reader.root, index / 16);
        let mut skip = index % 16;
        if word & TABLE != 0 {
            word = self.read(self.tables[&(word & !0xfff)], index % 16);
            skip = 0;
        }
        (word != 0).then(|| ((word >> 12) as usize + skip, word & RUN != 0))
    }
}

/// A table is written before it is linked: the device finds no entry, or the page.
fn device_install() {
    let (mut table, mut prealloc, device) = Device::new();
    let thread = spawn(move || {
        put(&mut table, &mut prealloc, page(3), 7);
        (table, prealloc)
    });
    let first = device.walk(3);
    assert!(matches!(first, None | Some((7, false))));
    assert!(device.walk(2).is_none());
    if first.is_some() {
        assert_eq!(device.walk(3), first);
    }
    thread.join();
    assert_eq!(device.walk(3), Some((7, false)));
}

/// A huge leaf is split, and one of its pages removed. The device finds the other pages at all
/// times.
fn device_split() {
    let (mut table, mut prealloc, device) = Device::new();
    put(&mut table, &mut prealloc, pages(0, 16), 16);
    prealloc.refill().unwrap();
    assert_eq!(device.walk(2), Some((18, false)));
    let thread = spawn(move || {
        let mut batch = table.batch();
        table.for_each(page(1), &mut batch, |_, slot| *slot = DevicePte::NONE);
        batch.start(&*walkers()).wait(&*walkers());
        (table, prealloc)
    });
    assert_eq!(device.walk(2).map(|found| found.0), Some(18));
    assert!(matches!(device.walk(1), None | Some((17, _))));
    thread.join();
    assert_eq!(device.walk(2), Some((18, false)));
    assert_eq!(device.walk(5), Some((21, true)));
}

/// A page is removed from a contiguous run. As long as another entry has the contiguous bit, the
/// page must still be mapped.
fn device_run() {
    device_run_by(page(6));
}

/// The same, with a pass over the whole run.
fn device_run_by_pass() {
    device_run_by(pages(4, 4));
}

fn device_run_by(range: PageRange) {
    let (mut table, mut prealloc, device) = Device::new();
    put(&mut table, &mut prealloc, pages(4, 4), 4);
    assert_eq!(device.walk(4), Some((4, true)));
    let thread = spawn(move || {
        let mut batch = table.batch();
        table.for_each(range, &mut batch, |span, slot| {
            if span == page(6) {
                *slot = DevicePte::NONE;
            }
        });
        batch.start(&*walkers()).wait(&*walkers());
        (table, prealloc)
    });
    // In this order, so that the first result is the older one.
    let gone = device.walk(6).is_none();
    let other = device.walk(7);
    assert_eq!(other.map(|found| found.0), Some(7));
    assert!(!gone || other == Some((7, false)));
    thread.join();
}

/// Like `used_again`: a table page whose flush waits for the device is not reused before the
/// device's walk has ended.
fn device_used_again() {
    let (mut table, mut prealloc, device) = Device::new();
    put(&mut table, &mut prealloc, page(3), 7);
    let locked = walkers();
    let theirs = locked.clone();
    let thread = spawn(move || {
        use_again(&mut table, &mut prealloc, &theirs);
        (table, prealloc)
    });
    {
        let _walks = locked.0.lock();
        assert!(matches!(device.walk(3), None | Some((7, false))));
    }
    thread.join();
}
