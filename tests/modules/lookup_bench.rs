// SPDX-License-Identifier: GPL-2.0

//! Benchmark of data structures that find the region of an address. It runs when the module is
//! loaded and prints one line for each row:
//!
//! ```text
//! lookup_bench: STRUCTURE REGIONS LAYOUT HIT_NS MISS_NS INSERT_NS BYTES
//! ```
//!
//! `-` stands for an unknown figure. Only the size of the sorted array is known, because the
//! kernel's types do not report their allocations.
//!
//! Regions are 64 KiB. They are dense (adjacent) or sparse (at pseudo-random places in 128 TiB).
//!
//! All structures except the page table refuse overlapping regions. Structures that need a lock for
//! concurrent changes are used with that lock held, so that the figures compare equal work.

#![deny(unsafe_code)]

use core::{
    borrow::Borrow,
    hint::black_box,
    mem::swap, //
};
use kernel::{
    maple_tree::{
        InsertErrorKind,
        MapleTree, //
    },
    new_spinlock,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::SpinLock,
    time::{
        Instant,
        Monotonic, //
    },
    xarray::{
        AllocKind,
        XArray, //
    }, //
};
use rust_hmm::{
    mm::addr::PageRange,
    pgtable::{
        DevicePte,
        FlushBatch,
        Flusher,
        Prealloc,
        Radix4,
        Table,
        TableReader, //
    }, //
};

module! {
    type: Bench,
    name: "lookup_bench",
    authors: ["The rust_hmm authors"],
    description: "Lookups of regions, compared",
    license: "GPL",
    params: {
        regions_max: u64 {
            default: 1_000_000,
            description: "Largest number of regions",
        },
    },
}

/// Size of a region, and distance between possible places.
const REGION: usize = 16 * 4096;
const PLACES: usize = (128 << 40) / REGION;
/// First place of dense regions, with room for misses before it.
const DENSE: usize = 1 << 20;
/// Number of measured lookups.
const LOOKUPS: usize = 20_000;

/// Returns the place of region `index`. Each step is a permutation, so that all places differ; a
/// multiplication alone would distribute them evenly, hence the shifts.
fn place(index: usize, sparse: bool) -> usize {
    let mut at = index.wrapping_add(1);
    if sparse {
        at = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) % PLACES;
        at ^= at >> 15;
        at = at.wrapping_mul(0xd6e8_feb8_6659_fd93) % PLACES;
        at ^= at >> 16;
    } else {
        at = at.wrapping_add(DENSE);
    }
    at * REGION
}

/// Returns a place without a region: between sparse regions, or on either side of dense ones.
fn free_place(n: usize, count: usize, sparse: bool) -> usize {
    if sparse || n % 2 == 0 {
        place(count + n, sparse)
    } else {
        (DENSE - n) * REGION
    }
}

/// A data structure under test.
trait Regions: Sized {
    const NAME: &'static str;

    fn new(count: usize) -> Result<Self>;

    /// Adds the region at `start`.
    fn insert(&mut self, start: usize) -> Result;

    /// Called after the last insertion.
    fn finish(&mut self) -> Result {
        Ok(())
    }

    /// Memory footprint in bytes, if known.
    fn bytes(&self) -> Option<usize> {
        None
    }

    /// Returns the start of the region that contains `addr`.
    fn find(&mut self, addr: usize) -> Option<usize>;
}

struct Maple(Pin<KBox<MapleTree<KBox<usize>>>>);

impl Regions for Maple {
    const NAME: &'static str = "maple_tree";

    fn new(_count: usize) -> Result<Self> {
        Ok(Self(KBox::pin_init(MapleTree::new(), GFP_KERNEL)?))
    }

    fn insert(&mut self, start: usize) -> Result {
        let value = KBox::new(start, GFP_KERNEL)?;
        self.0
            .insert_range(start..start + REGION, value, GFP_KERNEL)
            .map_err(|error| match error.cause {
                InsertErrorKind::Occupied => EEXIST,
                InsertErrorKind::AllocError(_) => ENOMEM,
                InsertErrorKind::InvalidRequest => EINVAL,
            })
    }

    fn find(&mut self, addr: usize) -> Option<usize> {
        self.0.lock().load(addr).map(|start| *start)
    }
}

/// XArray. It has no ranges, so it stores an entry for each place.
struct ByPlace(Pin<KBox<XArray<KBox<usize>>>>);

impl Regions for ByPlace {
    const NAME: &'static str = "xarray";

    fn new(_count: usize) -> Result<Self> {
        let array = XArray::new(AllocKind::Alloc);
        Ok(Self(KBox::pin_init(array, GFP_KERNEL)?))
    }

    fn insert(&mut self, start: usize) -> Result {
        let value = KBox::new(start, GFP_KERNEL)?;
        match self.0.lock().store(start / REGION, value, GFP_KERNEL)? {
            Some(_) => Err(EEXIST),
            None => Ok(()),
        }
    }

    fn find(&mut self, addr: usize) -> Option<usize> {
        self.0.lock().get(addr / REGION).copied()
    }
}

/// Red-black tree keyed by the last address of each region. The region of an address has the lowest
/// key that is not below it.
struct Ordered(Pin<KBox<SpinLock<RBTree<usize, usize>>>>);

impl Regions for Ordered {
    const NAME: &'static str = "rbtree";

    fn new(_count: usize) -> Result<Self> {
        let tree = new_spinlock!(RBTree::new());
        Ok(Self(KBox::pin_init(tree, GFP_KERNEL)?))
    }

    fn insert(&mut self, start: usize) -> Result {
        let last = start + (REGION - 1);
        // Allocate before taking the spinlock.
        let node = RBTreeNode::new(last, start, GFP_KERNEL)?;
        let mut tree = self.0.lock();
        if let Some(next) = tree.cursor_lower_bound(&start) {
            if *next.current().1 <= last {
                return Err(EEXIST);
            }
        }
        // The key is unique: another region with it would overlap.
        tree.insert(node);
        Ok(())
    }

    fn find(&mut self, addr: usize) -> Option<usize> {
        let tree = self.0.lock();
        let cursor = tree.cursor_lower_bound(&addr)?;
        let (_, start) = cursor.current();
        (*start <= addr).then_some(*start)
    }
}

/// Sorted array, for tables that never change after the last insertion. Used without a lock.
struct Sorted(KVVec<usize>);

impl Sorted {
    /// Merge sort. The sorts of `core` may panic in a function that objtool does not recognise as
    /// noreturn.
    fn sort(&mut self) -> Result {
        let mut merged = KVVec::with_capacity(self.0.len(), GFP_KERNEL)?;
        let mut width = 1;
        while width < self.0.len() {
            merged.clear();
            for pair in self.0.chunks(2 * width) {
                let (mut left, mut right) = pair.split_at_checked(width).unwrap_or((pair, &[]));
                loop {
                    let least = match (left.split_first(), right.split_first()) {
                        (Some((a, rest)), None) => {
                            left = rest;
                            a
                        }
                        (Some((a, rest)), Some((b, _))) if a <= b => {
                            left = rest;
                            a
                        }
                        (_, Some((b, rest))) => {
                            right = rest;
                            b
                        }
                        (None, None) => break,
                    };
                    merged.push(*least, GFP_KERNEL)?;
                }
            }
            swap(&mut self.0, &mut merged);
            width *= 2;
        }
        Ok(())
    }
}

impl Regions for Sorted {
    const NAME: &'static str = "sorted_array";

    fn new(count: usize) -> Result<Self> {
        Ok(Self(KVVec::with_capacity(count, GFP_KERNEL)?))
    }

    fn insert(&mut self, start: usize) -> Result {
        self.0.push(start, GFP_KERNEL)?;
        Ok(())
    }

    fn finish(&mut self) -> Result {
        self.sort()?;
        if !self.0.is_sorted_by(|a, b| b.wrapping_sub(*a) >= REGION) {
            return Err(EEXIST);
        }
        Ok(())
    }

    fn bytes(&self) -> Option<usize> {
        Some(self.0.capacity() * size_of::<usize>())
    }

    fn find(&mut self, addr: usize) -> Option<usize> {
        let after = self.0.partition_point(|start| *start <= addr);
        let start = *self.0.get(after.checked_sub(1)?)?;
        (addr - start < REGION).then_some(start)
    }
}

/// Maximum number of 2 MiB blocks with regions in the device page table. Each block needs a table
/// page, and most sparse blocks need another one, which bounds the memory footprint.
const BLOCKS: usize = 160_000;

/// Device page table, with an entry for each page.
struct Radix {
    blocks: usize,
    last: Option<usize>,
    table: Table<Radix4>,
    reader: TableReader<Radix4>,
    prealloc: Prealloc<Radix4>,
}

struct NoFlush;

impl Flusher for NoFlush {
    type Pending = ();

    fn start(&self, _range: PageRange) {}

    fn wait(&self, (): ()) {}
}

impl Regions for Radix {
    const NAME: &'static str = "page_table";

    fn new(_count: usize) -> Result<Self> {
        let table = Table::new()?;
        let reader = table.reader();
        Ok(Self {
            blocks: 0,
            last: None,
            prealloc: reader.prealloc(),
            reader,
            table,
        })
    }

    fn insert(&mut self, start: usize) -> Result {
        let block = start >> 21;
        if self.last.replace(block) != Some(block) {
            self.blocks += 1;
        }
        if self.blocks > BLOCKS {
            return Err(ENOMEM);
        }
        self.prealloc.refill()?;
        let range = PageRange::new(start, start + REGION)?;
        let mut batch: FlushBatch<Radix4> = self.table.batch();
        let entry = DevicePte::system(start / REGION, false);
        let result = self
            .table
            .install(range, &mut self.prealloc, &mut batch, |_, slot| {
                *slot = entry
            });
        let _flushed = batch.start(&NoFlush).wait(&NoFlush);
        result
    }

    fn find(&mut self, addr: usize) -> Option<usize> {
        self.reader
            .walk(addr)
            .map(|leaf| leaf.entry.number() * REGION)
    }
}

fn ns_each(since: Instant<Monotonic>, count: usize) -> u64 {
    let ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(0);
    ns / (count as u64).max(1)
}

/// Addresses to look up and the expected results. Prepared in advance, so that only the lookups are
/// measured.
struct Questions(KVVec<(usize, Option<usize>)>);

impl Questions {
    fn new(question: impl Fn(usize) -> (usize, Option<usize>)) -> Result<Self> {
        let mut all = KVVec::with_capacity(LOOKUPS, GFP_KERNEL)?;
        for n in 0..LOOKUPS {
            all.push(question(n), GFP_KERNEL)?;
        }
        Ok(Self(all))
    }

    /// Returns the time of a lookup, in ns.
    ///
    /// # Errors
    ///
    /// `EIO` if a result is wrong.
    fn ask<R: Regions>(&self, regions: &mut R) -> Result<u64> {
        let mut wrong = 0;
        let since = Instant::<Monotonic>::now();
        for (addr, answer) in &self.0 {
            wrong += usize::from(regions.find(black_box(*addr)) != *answer);
        }
        let ns = ns_each(since, LOOKUPS);
        if wrong != 0 {
            pr_err!("{} gave {wrong} wrong answers\n", R::NAME);
            return Err(EIO);
        }
        Ok(ns)
    }
}

/// Inserts `count` regions. Returns the time of an insertion, in ns.
fn fill<R: Regions>(regions: &mut R, count: usize, sparse: bool) -> Result<u64> {
    let since = Instant::<Monotonic>::now();
    for index in 0..count {
        if let Err(error) = regions.insert(place(index, sparse)) {
            pr_info!("note: {}: {error:?} after {index} regions\n", R::NAME);
            return Err(error);
        }
    }
    regions.finish()?;
    Ok(ns_each(since, count))
}

fn measure<R: Regions>(count: usize, sparse: bool) -> Result {
    let name = R::NAME;
    let layout = if sparse { "sparse" } else { "dense" };
    let mut regions = R::new(count)?;
    let insert = match fill(&mut regions, count, sparse) {
        Ok(insert) => insert,
        // Report that the structure cannot hold this number of regions.
        Err(ENOMEM) => {
            pr_info!("{name} {count} {layout} - - - -\n");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let inside = Questions::new(|n| {
        let start = place(n.wrapping_mul(7919) % count, sparse);
        (start + n % REGION, Some(start))
    })?;
    let hit = inside.ask(&mut regions)?;
    let outside = Questions::new(|n| (free_place(n, count, sparse) + n % REGION, None))?;
    let miss = outside.ask(&mut regions)?;
    match regions.bytes() {
        Some(bytes) => pr_info!("{name} {count} {layout} {hit} {miss} {insert} {bytes}\n"),
        None => pr_info!("{name} {count} {layout} {hit} {miss} {insert} -\n"),
    }
    Ok(())
}

struct Bench;

/// Returns the value of a module parameter: Linux 7.2 returns a reference, 7.3 a copy.
fn number(value: impl Borrow<u64>) -> u64 {
    *value.borrow()
}

impl kernel::Module for Bench {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let regions_max = usize::try_from(number(module_parameters::regions_max.value()))?;
        for count in [10, 1000, 1_000_000] {
            for sparse in [false, true] {
                if count <= regions_max {
                    measure::<Radix>(count, sparse)?;
                    measure::<Maple>(count, sparse)?;
                    measure::<ByPlace>(count, sparse)?;
                    measure::<Ordered>(count, sparse)?;
                    measure::<Sorted>(count, sparse)?;
                }
            }
        }
        Ok(Self)
    }
}
