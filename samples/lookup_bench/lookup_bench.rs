// SPDX-License-Identifier: GPL-2.0

//! Measures how fast several structures tell in which region an address lies. It does so when it is
//! loaded, prints a line per row, and stays loaded without a use.
//!
//! Regions are 64 KiB: dense, one after the other; or sparse, at pseudo-random places in 64 TiB.

#![deny(unsafe_code)]

use core::{borrow::Borrow, hint::black_box};
use kernel::{
    maple_tree::MapleTree,
    prelude::*,
    rbtree::RBTree,
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
        most: u64 {
            default: 1_000_000,
            description: "Largest number of regions",
        },
    },
}

/// Bytes of a region, and of the places where one can be.
const REGION: usize = 16 * 4096;
const PLACES: usize = (64 << 40) / REGION;
/// Lookups that are measured.
const LOOKUPS: usize = 20_000;

/// A place of a region, so that all differ: an odd factor permutes the places.
fn place(index: usize, sparse: bool) -> usize {
    let at = if sparse {
        index.wrapping_mul(0x9e37_79b9_7f4a_7c15) % PLACES
    } else {
        index + 1024
    };
    at * REGION
}

/// One structure.
trait Regions: Sized {
    const NAME: &'static str;

    fn new(count: usize) -> Result<Self>;

    /// Adds the region at `start`.
    fn insert(&mut self, start: usize) -> Result;

    /// Everything was added.
    fn finish(&mut self) {}

    /// Start of the region in which `addr` lies.
    fn find(&mut self, addr: usize) -> Option<usize>;
}

struct Maple(Pin<KBox<MapleTree<KBox<usize>>>>);

impl Regions for Maple {
    const NAME: &'static str = "maple tree";

    fn new(_count: usize) -> Result<Self> {
        Ok(Self(KBox::pin_init(MapleTree::new(), GFP_KERNEL)?))
    }

    fn insert(&mut self, start: usize) -> Result {
        let value = KBox::new(start, GFP_KERNEL)?;
        self.0
            .insert_range(start..start + REGION, value, GFP_KERNEL)?;
        Ok(())
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
        self.0.lock().store(start / REGION, value, GFP_KERNEL)?;
        Ok(())
    }

    fn find(&mut self, addr: usize) -> Option<usize> {
        self.0.lock().get(addr / REGION).map(|start| *start)
    }
}

struct Ordered(RBTree<usize, usize>);

impl Regions for Ordered {
    const NAME: &'static str = "rbtree";

    fn new(_count: usize) -> Result<Self> {
        Ok(Self(RBTree::new()))
    }

    fn insert(&mut self, start: usize) -> Result {
        // By the end, so that the first one not before an address is the one.
        self.0
            .try_create_and_insert(start + (REGION - 1), start, GFP_KERNEL)?;
        Ok(())
    }

    fn find(&mut self, addr: usize) -> Option<usize> {
        let cursor = self.0.cursor_lower_bound(&addr)?;
        let (_, start) = cursor.current();
        (*start <= addr).then_some(*start)
    }
}

/// Sorted when all are there: for tables that never change.
struct Sorted(KVVec<usize>);

impl Regions for Sorted {
    const NAME: &'static str = "sorted array";

    fn new(count: usize) -> Result<Self> {
        Ok(Self(KVVec::with_capacity(count, GFP_KERNEL)?))
    }

    fn insert(&mut self, start: usize) -> Result {
        self.0.push(start, GFP_KERNEL)?;
        Ok(())
    }

    fn finish(&mut self) {
        self.0.sort_unstable();
    }

    fn find(&mut self, addr: usize) -> Option<usize> {
        let after = self.0.partition_point(|start| *start <= addr);
        let start = *self.0.get(after.checked_sub(1)?)?;
        (addr - start < REGION).then_some(start)
    }
}

/// The device page table: an entry for each page.
struct Radix {
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
    const NAME: &'static str = "device page table";

    fn new(_count: usize) -> Result<Self> {
        let table = Table::new()?;
        let reader = table.reader();
        Ok(Self {
            spares: reader.spares(),
            reader,
            table,
        })
    }

    fn insert(&mut self, start: usize) -> Result {
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

fn measure<R: Regions>(count: usize, sparse: bool) -> Result {
    let layout = if sparse { "sparse" } else { "dense" };
    let mut regions = R::new(count)?;
    let since = Instant::<Monotonic>::now();
    for index in 0..count {
        if let Err(error) = regions.insert(place(index, sparse)) {
            let name = R::NAME;
            pr_info!("row: {name} | {count} | {layout} | - | - | - ({error:?} at {index})\n");
            return Ok(());
        }
    }
    regions.finish();
    let insert = ns_each(since, count);
    let mut wrong = 0;
    let since = Instant::<Monotonic>::now();
    for n in 0..LOOKUPS {
        let start = place(n.wrapping_mul(7919) % count, sparse);
        let found = regions.find(black_box(start + n % REGION));
        wrong += usize::from(found != Some(start));
    }
    let hit = ns_each(since, LOOKUPS);
    let since = Instant::<Monotonic>::now();
    for n in 0..LOOKUPS {
        // Beyond all of them, and between: places of numbers that were not used.
        let start = place(count + 1 + n, sparse);
        wrong += usize::from(regions.find(black_box(start)).is_some());
    }
    let miss = ns_each(since, LOOKUPS);
    if wrong != 0 {
        pr_err!("{}: {wrong} wrong answers\n", R::NAME);
        return Err(EIO);
    }
    let name = R::NAME;
    pr_info!("row: {name} | {count} | {layout} | {hit} | {miss} | {insert}\n");
    Ok(())
}

struct Bench;

/// The value of a parameter, which 7.2 lends and 7.3 copies.
fn number(value: impl Borrow<u64>) -> u64 {
    *value.borrow()
}

impl kernel::Module for Bench {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let most = usize::try_from(number(module_parameters::most.value()))?;
        for count in [10, 1000, 1_000_000] {
            for sparse in [false, true] {
                if count <= most {
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
