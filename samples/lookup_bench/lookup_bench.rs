// SPDX-License-Identifier: GPL-2.0

//! Measures how fast several structures tell in which region an address lies. It does so when it is
//! loaded, prints a line per row, and stays loaded without a use:
//!
//! ```text
//! lookup_bench: STRUCTURE REGIONS LAYOUT HIT_NS MISS_NS INSERT_NS BYTES
//! ```
//!
//! `-` is a figure that is not known. Only the sorted array knows its bytes: the kernel's types do
//! not tell what they allocate.
//!
//! Regions are 64 KiB: dense, one after the other; or sparse, at pseudo-random places in 128 TiB.
//!
//! All but the page table refuse a region that overlaps another one, and those that need a lock while
//! they can change are used under one, so that the figures compare the same work.

#![deny(unsafe_code)]

use core::{borrow::Borrow, hint::black_box, mem::swap};
use kernel::{
    maple_tree::{InsertErrorKind, MapleTree},
    new_spinlock,
    prelude::*,
    rbtree::{RBTree, RBTreeNode},
    sync::SpinLock,
    time::{Instant, Monotonic},
    xarray::{AllocKind, XArray},
};
use rust_hmm::{
    mm::addr::PageRange,
    pgtable::{Entry, FlushBatch, Flusher, Radix4, Reader, Spares, Table},
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

/// Bytes of a region, and of the places where one can be.
const REGION: usize = 16 * 4096;
const PLACES: usize = (128 << 40) / REGION;
/// First place of dense regions: there is room for misses before it.
const DENSE: usize = 1 << 20;
/// Lookups that are measured.
const LOOKUPS: usize = 20_000;

/// A place of a region. Each step permutes the places, so all differ; the shifts are there because a
/// factor alone spreads the places evenly.
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

/// A place without a region: between sparse ones, on both sides of dense ones.
fn free_place(n: usize, count: usize, sparse: bool) -> usize {
    if sparse || n % 2 == 0 {
        place(count + n, sparse)
    } else {
        (DENSE - n) * REGION
    }
}

/// One structure.
trait Regions: Sized {
    const NAME: &'static str;

    fn new(count: usize) -> Result<Self>;

    /// Adds the region at `start`.
    fn insert(&mut self, start: usize) -> Result;

    /// Everything was added.
    fn finish(&mut self) -> Result {
        Ok(())
    }

    /// Bytes that it takes, if they are known.
    fn bytes(&self) -> Option<usize> {
        None
    }

    /// Start of the region in which `addr` lies.
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

/// It has no ranges: an entry for each place.
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

/// By the last address of each region, so that the first one not before an address is the one.
struct Ordered(Pin<KBox<SpinLock<RBTree<usize, usize>>>>);

impl Regions for Ordered {
    const NAME: &'static str = "rbtree";

    fn new(_count: usize) -> Result<Self> {
        let tree = new_spinlock!(RBTree::new());
        Ok(Self(KBox::pin_init(tree, GFP_KERNEL)?))
    }

    fn insert(&mut self, start: usize) -> Result {
        let last = start + (REGION - 1);
        // Before the lock, under which memory cannot be waited for.
        let node = RBTreeNode::new(last, start, GFP_KERNEL)?;
        let mut tree = self.0.lock();
        if let Some(next) = tree.cursor_lower_bound(&start) {
            if *next.current().1 <= last {
                return Err(EEXIST);
            }
        }
        // No other one has this key: it would overlap.
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

/// Sorted when all are there, and then without a lock: for tables that never change.
struct Sorted(KVVec<usize>);

impl Sorted {
    /// By merging. The sorts of `core` can panic, in a function that objtool does not know to end.
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

/// Most blocks of 2 MiB with regions in the device page table. Each takes a page of memory, and of
/// sparse ones most take another: more would fill the machine.
const BLOCKS: usize = 160_000;

/// The device page table: an entry for each page.
struct Radix {
    blocks: usize,
    last: Option<usize>,
    table: Table<Radix4>,
    reader: Reader<Radix4>,
    spares: Spares<Radix4>,
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
            spares: reader.spares(),
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
        self.spares.refill()?;
        let range = PageRange::new(start, start + REGION)?;
        let mut batch: FlushBatch<Radix4> = self.table.batch();
        let entry = Entry::system(start / REGION, false);
        let result = self
            .table
            .install(range, &mut self.spares, &mut batch, |_, slot| *slot = entry);
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

/// Addresses to look up, and the answer each must have. Made before the clock starts, so that it
/// measures nothing else.
struct Questions(KVVec<(usize, Option<usize>)>);

impl Questions {
    fn new(question: impl Fn(usize) -> (usize, Option<usize>)) -> Result<Self> {
        let mut all = KVVec::with_capacity(LOOKUPS, GFP_KERNEL)?;
        for n in 0..LOOKUPS {
            all.push(question(n), GFP_KERNEL)?;
        }
        Ok(Self(all))
    }

    /// Nanoseconds for each.
    ///
    /// # Errors
    ///
    /// `EIO` if an answer is wrong.
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

/// Inserts `count` regions; nanoseconds for each.
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
        // A structure that cannot hold as many is a result too.
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

/// The value of a parameter, which 7.2 lends and 7.3 copies.
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
