// SPDX-License-Identifier: GPL-2.0

//! Page tables of all formats: one list of operations, and one model, a map from pages to entries.
//!
//! A module below the text of the KUnit suite, of which it has the small format, the flusher, and
//! the test with random numbers.

use super::*;
use crate::{
    harness::{Property, Trial},
    inject::{arm, Point},
    mm::dma::{DmaDevice, Windows},
    pgtable::{
        format::{fan, last_address, shift},
        pool::List,
    },
};
use kernel::sync::{rcu, Arc};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A format of the samples.
#[path = "../../samples/engines/format.rs"]
mod sample;

/// As many levels as there can be, of as many bits; no huge leaves.
enum DeepBits {}

impl Layout for DeepBits {
    type Word = u64;

    const LEVELS: u32 = 5;
    const BITS_PER_LEVEL: u32 = 10;
    const BITS: Bits = Bits {
        valid: 63,
        table: 62,
        write: 61,
        device: 60,
        exclusive: Some(59),
        number: 0,
        number_bits: 40,
    };
}

/// Without exclusive pages.
enum PlainBits {}

impl Layout for PlainBits {
    type Word = u32;

    const LEVELS: u32 = 3;
    const BITS_PER_LEVEL: u32 = 5;
    const HIGHEST_LEAF: u32 = 1;
    const BITS: Bits = Bits {
        valid: 0,
        table: 1,
        write: 2,
        device: 3,
        exclusive: None,
        number: 4,
        number_bits: 28,
    };
}

/// As few levels as there can be, of as few bits, with an index that just fits.
enum TinyBits {}

impl Layout for TinyBits {
    type Word = u32;

    const LEVELS: u32 = 2;
    const BITS_PER_LEVEL: u32 = 4;
    const HIGHEST_LEAF: u32 = 1;
    const BITS: Bits = Bits {
        valid: 0,
        table: 19,
        write: 20,
        device: 30,
        exclusive: Some(31),
        number: 1,
        number_bits: 18,
    };
}

/// As `Radix4`, without room for device pages beyond the first 512.
enum Tight {}

// SAFETY: That of `Radix4`, with less.
unsafe impl Format for Tight {
    type Word = u64;

    const LEVELS: u32 = Radix4::LEVELS;
    const BITS: u32 = Radix4::BITS;

    fn has_leaves(level: u32) -> bool {
        Radix4::has_leaves(level)
    }

    fn can_hold(entry: Entry) -> bool {
        !entry.is_device() || entry.number() < PMD_PAGES
    }

    fn table(index: u32) -> u64 {
        Radix4::table(index)
    }

    fn leaf(level: u32, entry: Entry) -> u64 {
        Radix4::leaf(level, entry)
    }

    fn decode(level: u32, word: u64) -> Slot {
        Radix4::decode(level, word)
    }
}

type Engines = FormatOf<sample::Pte>;
type Deep = FormatOf<DeepBits>;
type Plain = FormatOf<PlainBits>;
type Tiny = FormatOf<TinyBits>;

macro_rules! variants {
    ($function:ident) => {
        &[
            ("radix4", $function::<Radix4>),
            ("narrow", $function::<Narrow>),
            ("engines", $function::<Engines>),
            ("tiny", $function::<Tiny>),
            ("deep", $function::<Deep>),
            ("plain", $function::<Plain>),
            ("tight", $function::<Tight>),
            ("dma-radix4", $function::<OfDma<Radix4>>),
            ("dma-narrow", $function::<OfDma<Narrow>>),
            ("dma-tiny", $function::<OfDma<Tiny>>),
            ("dma-deep", $function::<OfDma<Deep>>),
        ]
    };
}

pub(crate) const ALL: &[Property] = &[
    Property {
        name: "table_walks_find_what_was_installed",
        cases: 128,
        variants: variants!(walks),
    },
    Property {
        name: "table_runs_become_huge_and_parts_split",
        cases: 160,
        variants: variants!(shapes),
    },
    Property {
        name: "table_flushes_cover_what_was_taken_away",
        cases: 300,
        variants: variants!(flushes),
    },
    Property { name: "table_counts_are_those_of_entries", cases: 250, variants: variants!(counts) },
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
            ("dma-radix4", dma::<OfDma<Radix4>>),
            ("dma-narrow", dma::<OfDma<Narrow>>),
            ("dma-tiny", dma::<OfDma<Tiny>>),
            ("dma-deep", dma::<OfDma<Deep>>),
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
    Property { name: "format_decodes_what_it_encodes", cases: 1000, variants: variants!(encoding) },
];

/// What a page is given.
#[derive(Clone, Copy, Debug)]
enum Kind {
    ReadOnly,
    Writable,
    Device,
    ReadOnlyDevice,
    Exclusive,
}

/// How numbers follow each other.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// As the addresses do, so that they may become huge.
    Aligned,
    /// In a row, and not aligned.
    Shifted,
    /// In no row.
    Scattered,
}

/// Entries for the pages of a range.
#[derive(Clone, Copy, Debug)]
struct Entries {
    kind: Kind,
    order: Order,
    /// The number in units of 1024 pages.
    base: usize,
    /// Each such page is left as it is; 0: none.
    leave: usize,
}

impl Entries {
    fn of(&self, page: usize) -> Entry {
        let low = page % 1024;
        let number = self.base * 1024
            + match self.order {
                Order::Aligned => low,
                Order::Shifted => low + 1,
                Order::Scattered => low * 7 % 1024,
            };
        match self.kind {
            Kind::ReadOnly => Entry::system(number, false),
            Kind::Writable => Entry::system(number, true),
            Kind::Device => Entry::device(number, true),
            Kind::ReadOnlyDevice => Entry::device(number, false),
            Kind::Exclusive => Entry::exclusive(number),
        }
    }
}

/// Pages: an area, the first one in it, and how many.
#[derive(Clone, Copy)]
struct At(usize, usize, usize);

impl core::fmt::Debug for At {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self(area, first, count) = *self;
        let area = ["bottom", "middle", "top", "end"][area];
        write!(f, "{area}+{first}..{}", first + count)
    }
}

/// What is done with a table.
#[derive(Clone, Copy, Debug)]
enum Op {
    /// New entries.
    Install(At, Entries),
    /// Pages that are there may be written from now on.
    Upgrade(At),
    /// `install` removes entries.
    Take(At),
    /// `install` without room for what it needs.
    Starve(At, Entries),
    /// Pages must not be written any more; whether huge leaves are to be split.
    Protect(At, bool),
    /// Entries of leaves that are there are replaced; whether huge leaves are to be split.
    Replace(At, Entries, bool),
    /// Entries are removed; whether by `remove_all`.
    Remove(At, bool),
    /// All entries are removed; whether by `remove_all`.
    RemoveAll(bool),
    /// Table pages are reserved, and those for splits made up for.
    Refill,
    /// A failure is injected before the next operation.
    Fail(Point),
    /// The flush of what was changed since the last one starts.
    Start,
    /// Waits for the flush that started first, or, if false, last.
    Wait(bool),
    /// The kernel needs memory.
    Shrink,
}

fn entries() -> impl Strategy<Value = Entries> {
    let kind = prop_oneof![
        Just(Kind::Writable),
        Just(Kind::ReadOnly),
        Just(Kind::Device),
        Just(Kind::ReadOnlyDevice),
        Just(Kind::Exclusive),
    ];
    let order = prop_oneof![
        4 => Just(Order::Aligned),
        1 => Just(Order::Shifted),
        2 => Just(Order::Scattered),
    ];
    // The last one is more than small formats hold.
    let base = prop_oneof![12 => 0usize..3, 1 => Just(1 << 17)];
    let leave = prop_oneof![4 => Just(0usize), 1 => 2usize..5];
    (kind, order, base, leave).prop_map(|(kind, order, base, leave)| Entries {
        kind,
        order,
        base,
        leave,
    })
}

fn at() -> impl Strategy<Value = At> {
    let area =
        prop_oneof![6 => Just(0usize), 2 => Just(1usize), 2 => Just(2usize), 1 => Just(3usize)];
    let first = prop_oneof![
        3 => Just(0usize),
        3 => (0usize..2).prop_map(|block| block * 512),
        2 => (0usize..64).prop_map(|block| block * 16),
        2 => 0usize..1024,
    ];
    let count = prop_oneof![
        2 => Just(1usize),
        1 => Just(16usize),
        1 => Just(64usize),
        3 => Just(512usize),
        1 => Just(1024usize),
        3 => 1usize..600,
    ];
    (area, first, count).prop_map(|(area, first, count)| At(area, first, count))
}

fn ops() -> BoxedStrategy<Op> {
    let op = prop_oneof![
        8 => (at(), entries()).prop_map(|(at, entries)| Op::Install(at, entries)),
        2 => at().prop_map(Op::Upgrade),
        1 => at().prop_map(Op::Take),
        2 => (at(), any::<bool>()).prop_map(|(at, split)| Op::Protect(at, split)),
        2 => (at(), entries(), any::<bool>())
            .prop_map(|(at, entries, split)| Op::Replace(at, entries, split)),
        5 => (at(), any::<bool>()).prop_map(|(at, fast)| Op::Remove(at, fast)),
        1 => any::<bool>().prop_map(Op::RemoveAll),
        2 => Just(Op::Refill),
        2 => Just(Op::Start),
        2 => any::<bool>().prop_map(Op::Wait),
        1 => Just(Op::Shrink),
    ];
    op.boxed()
}

fn failing_ops() -> BoxedStrategy<Op> {
    let op = prop_oneof![
        4 => ops(),
        1 => (at(), entries()).prop_map(|(at, entries)| Op::Starve(at, entries)),
        1 => Just(Op::Fail(Point::Install)),
        1 => Just(Op::Fail(Point::TablePage)),
    ];
    op.boxed()
}

/// Pages of an area.
const AREA: usize = 1024;

/// Pages that a table of format `F` can hold.
fn total<F: Format>() -> usize {
    (last_address::<F>() >> 12) + 1
}

/// The first page of area `area`. In a small table all are the same one.
fn base<F: Format>(area: usize) -> usize {
    let total = total::<F>();
    match area {
        _ if total < 4 * AREA => 0,
        0 => 0,
        1 => total / 2 / AREA * AREA,
        2 => total - AREA,
        // The second block is beyond the end.
        _ => total - 512,
    }
}

/// Pages that are looked at.
fn looked_at<F: Format>() -> impl Iterator<Item = usize> {
    let areas: BTreeSet<_> = (0..3).map(base::<F>).collect();
    areas.into_iter().flat_map(|first| first..first + AREA)
}

/// First page and count of pages, within one area.
fn resolve<F: Format>(at: At) -> (usize, usize) {
    let At(area, first, count) = at;
    let first = first % AREA;
    (base::<F>(area) + first, count.min(AREA - first))
}

fn range(first: usize, count: usize) -> PageRange {
    PageRange::from_pages(first * PAGE_SIZE, count).unwrap()
}

fn everything() -> PageRange {
    PageRange::new(0, usize::MAX & PAGE_MASK).unwrap()
}

fn is_system(entry: Entry) -> bool {
    entry.is_valid() && !entry.is_device()
}

fn upgraded(entry: Entry) -> Entry {
    match entry {
        _ if !entry.is_valid() || entry.is_exclusive() => entry,
        _ if entry.is_device() => Entry::device(entry.number(), true),
        _ => Entry::system(entry.number(), true),
    }
}

/// A page of a table of DMA addresses, for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mapped {
    /// The frame.
    Live(usize),
    /// Until the flush with this number.
    Dying(u32),
}

/// What a table of format `F` should be.
struct Model<F: Format> {
    pages: BTreeMap<usize, Entry>,
    /// Tables of the lowest level of which a huge leaf takes the place, by their numbers.
    huge: BTreeSet<usize>,
    /// Pages of which the device may have more than the table says, until the next flush, and how
    /// often they changed.
    lost: BTreeMap<usize, usize>,
    mapped: BTreeMap<usize, Mapped>,
    /// Number of the next flush.
    tick: u32,
    _format: core::marker::PhantomData<F>,
}

impl<F: Format> Model<F> {
    fn new() -> Self {
        Self {
            pages: BTreeMap::new(),
            huge: BTreeSet::new(),
            lost: BTreeMap::new(),
            mapped: BTreeMap::new(),
            tick: 0,
            _format: core::marker::PhantomData,
        }
    }

    fn get(&self, page: usize) -> Entry {
        self.pages.get(&page).copied().unwrap_or(Entry::NONE)
    }

    fn set(&mut self, page: usize, new: Entry) {
        let old = self.get(page);
        if old.is_outdated_by(new) {
            *self.lost.entry(page).or_default() += 1;
        }
        match new.is_valid() {
            true => self.pages.insert(page, new),
            false => self.pages.remove(&page),
        };
    }

    /// The entry as the table has it.
    fn raw(entry: Entry) -> Entry {
        match F::DMA && is_system(entry) {
            true => entry.with_number(entry.number() + crate::bindings::OFFSET),
            false => entry,
        }
    }

    fn is_run(new: &[Entry]) -> bool {
        let first = new[0];
        first.is_valid()
            && first.number() % new.len() == 0
            && (0..new.len()).all(|index| new[index] == first.plus(index))
    }

    fn retire(&mut self, page: usize, old: Entry) {
        if F::DMA && is_system(old) {
            self.mapped.insert(page, Mapped::Dying(self.tick));
        }
    }

    /// Whether pages from `first` on, which are mapped together, can have addresses for `new` and
    /// what follows it.
    fn can_map(&self, first: usize, count: usize, new: Entry) -> bool {
        (0..count).all(|index| match self.mapped.get(&(first + index)) {
            None => true,
            Some(mapped) => *mapped == Mapped::Live(new.number() + index),
        }) && F::can_hold(Self::raw(new))
    }

    fn map(&mut self, first: usize, count: usize, new: Entry) {
        if F::DMA && is_system(new) {
            for index in 0..count {
                let live = Mapped::Live(new.number() + index);
                self.mapped.insert(first + index, live);
            }
        }
    }

    /// Replaces the entries of pages that one leaf maps. Returns whether the new ones are there.
    fn replace(&mut self, first: usize, count: usize, old: Entry, new: Entry) -> bool {
        let same = is_system(old) && is_system(new) && old.number() == new.number();
        let mut new = new;
        if F::DMA && !same {
            for index in 0..count {
                self.retire(first + index, old);
            }
            if is_system(new) && !self.can_map(first, count, new) {
                new = Entry::NONE;
            }
            self.map(first, count, new);
        }
        for index in 0..count {
            self.set(first + index, new.plus(index));
        }
        new.is_valid()
    }

    /// `install` of pages of one table.
    fn install_part(
        &mut self,
        first: usize,
        count: usize,
        f: &dyn Fn(usize, Entry) -> Entry,
    ) -> bool {
        let new: Vec<_> = (first..first + count).map(|page| f(page, self.get(page))).collect();
        let changed = |this: &Self, index: usize| new[index] != this.get(first + index);
        let is_refused = |entry: Entry| {
            entry.is_valid() && (!F::DMA || entry.is_device()) && !F::can_hold(entry)
        };
        if (0..count).any(|index| changed(self, index) && is_refused(new[index])) {
            return false;
        }
        if (0..count).all(|index| !changed(self, index)) {
            return true;
        }
        let block = first / fan::<F>();
        if count == fan::<F>() && F::has_leaves(1) && Self::is_run(&new) {
            let maps = F::DMA && is_system(new[0]);
            if !maps || self.can_map(first, count, new[0]) {
                for index in 0..count {
                    let old = self.get(first + index);
                    if !maps {
                        self.retire(first + index, old);
                    }
                    self.set(first + index, new[index]);
                }
                self.map(first, count, new[0]);
                self.huge.insert(block);
                return true;
            }
        }
        self.huge.remove(&block);
        let mut done = true;
        for index in 0..count {
            let (page, old) = (first + index, self.get(first + index));
            if old != new[index] {
                done &= self.replace(page, 1, old, new[index]) || !new[index].is_valid();
            }
        }
        done
    }

    /// `install` of pages within 2 MiB. Returns whether it works.
    fn install(&mut self, first: usize, count: usize, f: &dyn Fn(usize, Entry) -> Entry) -> bool {
        if first + count > total::<F>() {
            return false;
        }
        let mut at = first;
        while at < first + count {
            let border = (at / fan::<F>() + 1) * fan::<F>();
            let end = border.min(first + count);
            if !self.install_part(at, end - at, f) {
                return false;
            }
            at = end;
        }
        true
    }

    /// A pass over leaves. `free` pages are there to split huge ones. Returns the leaves that `f`
    /// is called with.
    fn pass(
        &mut self,
        first: usize,
        last: usize,
        mut free: usize,
        split: bool,
        f: &dyn Fn(usize, Entry) -> Entry,
    ) -> Vec<(usize, usize, Entry)> {
        let mut seen = Vec::new();
        let mut at = first;
        while let Some(page) = self.next(at, last) {
            let block = page / fan::<F>();
            let (low, high) = (block * fan::<F>(), (block + 1) * fan::<F>());
            if self.huge.contains(&block) {
                let whole = first <= low && high - 1 <= last;
                if (whole && !split) || free == 0 {
                    let old = self.get(low);
                    let new = f(low, old);
                    seen.push((low, fan::<F>(), old));
                    if new != old && !self.replace(low, fan::<F>(), old, new) {
                        self.huge.remove(&block);
                    }
                    at = high;
                    continue;
                }
                free -= 1;
                self.huge.remove(&block);
            }
            let old = self.get(page);
            let new = f(page, old);
            seen.push((page, 1, old));
            if new != old {
                self.replace(page, 1, old, new);
            }
            at = page + 1;
        }
        seen
    }

    /// The first page from `at` to `last` that is there.
    fn next(&self, at: usize, last: usize) -> Option<usize> {
        if at > last {
            return None;
        }
        self.pages.range(at..=last).next().map(|(page, _)| *page)
    }

    /// Whether `page` is one that a huge leaf maps.
    fn is_huge(&self, page: usize) -> bool {
        self.huge.contains(&(page / fan::<F>()))
    }

    /// The flush `tick` of pages in `range` is over.
    fn flushed(&mut self, range: PageRange, tick: u32) {
        self.mapped.retain(|page, mapped| {
            *mapped != Mapped::Dying(tick) || !range.contains(page * PAGE_SIZE)
        });
    }

    /// Pages that stay free for splits of huge leaves.
    fn kept(&self) -> usize {
        self.huge.len().min(8) + self.huge.len() / 512
    }
}

/// What is compared after each operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    Walks,
    Shapes,
    Flushes,
    Counts,
    Pages,
    Searches,
    Dma,
}

/// A flush under way.
struct Started<F: Format> {
    flushing: Flushing<(), F>,
    range: Option<PageRange>,
    tick: u32,
    detached: usize,
    number: usize,
}

/// A table and its model.
struct Both<F: Format> {
    look: Look,
    model: Model<F>,
    table: Table<F>,
    reader: Reader<F>,
    spares: Spares<F>,
    batch: Option<FlushBatch<F>>,
    started: Vec<Started<F>>,
    /// Flushes that were started.
    starts: usize,
    /// Table pages in the tree.
    tree: BTreeSet<u32>,
    /// Table pages that have left it, with the number of the flush that they wait for.
    left: BTreeMap<u32, usize>,
    dma: Option<(Arc<DmaDevice>, Arc<Windows>)>,
}

impl<F: Format> Both<F> {
    fn new(look: Look) -> Self {
        let dma = F::DMA.then(|| {
            let device = DmaDevice::software(c"properties").unwrap();
            let windows = Windows::new(&device).unwrap();
            (device, windows)
        });
        let windows = dma.as_ref().map(|(_, windows)| windows.clone());
        let table = Table::<F>::with_windows(windows).unwrap();
        Self {
            look,
            model: Model::new(),
            reader: table.reader(),
            spares: table.reader().spares(),
            batch: Some(table.batch()),
            tree: BTreeSet::from([table.root]),
            table,
            started: Vec::new(),
            starts: 0,
            left: BTreeMap::new(),
            dma,
        }
    }

    /// Calls `install` for each 2 MiB of the pages.
    fn install(&mut self, at: At, starves: bool, f: &dyn Fn(usize, Entry) -> Entry) {
        let (first, count) = resolve::<F>(at);
        for piece in range(first, count).pmd_pieces() {
            if let Some((_, windows)) = &self.dma {
                windows.prepare(piece).unwrap();
            }
            if self.spares.refill().is_err() {
                // Nobody installs then.
                continue;
            }
            let fails = self.fails(Point::Install);
            let mut none = self.table.reader().spares();
            let spares = match starves {
                true => &mut none,
                false => &mut self.spares,
            };
            let batch = self.batch.as_mut().unwrap();
            let result = self.table.install(piece, spares, batch, |addr, entry| {
                *entry = f(addr / PAGE_SIZE, *entry);
            });
            let (first, last) = (piece.start() / PAGE_SIZE, (piece.end() - 1) / PAGE_SIZE);
            if fails || (starves && last < total::<F>()) {
                assert_eq!(result, Err(ENOMEM));
                continue;
            }
            let works = self.model.install(first, last + 1 - first, f);
            assert_eq!(result.is_ok(), works, "install of {piece:?}: {result:?}");
        }
    }

    /// Whether `point` is about to fail.
    fn fails(&self, point: Point) -> bool {
        let fails = crate::inject::fails(point);
        if fails {
            arm(Some(point));
        }
        fails
    }

    /// Calls `for_each_split` or `remove_all`.
    fn pass(
        &mut self,
        range: PageRange,
        split: bool,
        fast: bool,
        f: &dyn Fn(usize, Entry) -> Entry,
    ) {
        let first = range.start() / PAGE_SIZE;
        let last = ((range.end() - 1) / PAGE_SIZE).min(total::<F>() - 1);
        let free = self.table.pool.free_pages();
        let batch = self.batch.as_mut().unwrap();
        let mut seen = Vec::new();
        if fast {
            self.table.remove_all(range, batch, |entry, pages| seen.push((0, pages, entry)));
        } else {
            self.table.for_each_split(
                range,
                batch,
                |_| split,
                |span, entry| {
                    let page = span.start() / PAGE_SIZE;
                    seen.push((page, span.pages(), *entry));
                    *entry = f(page, *entry);
                },
            );
        }
        if first > last {
            assert!(seen.is_empty());
            return;
        }
        let mut expected = self.model.pass(first, last, free, split, f);
        if fast {
            expected.iter_mut().for_each(|(page, _, _)| *page = 0);
        }
        assert!(seen == expected, "a pass over {range:?} sees other leaves");
    }

    fn start(&mut self) {
        let new = self.table.batch();
        let batch = self.batch.replace(new).unwrap();
        let tick = self.dma.as_ref().map_or(0, |(_, windows)| windows.tick());
        if self.look == Look::Flushes {
            self.check_batch(&batch);
        }
        self.model.lost.clear();
        self.model.tick += 1;
        let (range, detached) = (batch.range(), batch.detached.len());
        let flusher = TestFlusher::default();
        let flushing = batch.start(&flusher);
        assert_eq!(flusher.started.get(), range);
        let number = self.starts;
        self.started.push(Started { flushing, range, tick, detached, number });
        self.starts += 1;
    }

    fn check_batch(&self, batch: &FlushBatch<F>) {
        let lost = &self.model.lost;
        for page in lost.keys() {
            let addr = page * PAGE_SIZE;
            let covered = batch.range().is_some_and(|range| range.contains(addr));
            assert!(covered, "page {page} is not flushed: {:?}", batch.range());
        }
        assert_eq!(batch.pages(), lost.values().sum::<usize>());
        if lost.is_empty() && batch.detached.is_empty() {
            assert!(batch.is_empty(), "nothing was taken away, and all is flushed");
        }
    }

    fn wait(&mut self, first: bool) {
        if self.started.is_empty() {
            return;
        }
        let index = if first { 0 } else { self.started.len() - 1 };
        let started = self.started.remove(index);
        let flusher = TestFlusher::default();
        let _proof = started.flushing.wait(&flusher);
        self.left.retain(|_, number| *number != started.number);
        assert_eq!(flusher.waited.get(), usize::from(started.range.is_some()));
        if let Some(range) = started.range {
            if let Some((_, windows)) = &self.dma {
                windows.unmap(range, started.tick);
                self.model.flushed(range, started.tick);
            }
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Install(at, entries) => {
                self.install(at, false, &|page, old| set(entries, page, old))
            }
            Op::Starve(at, entries) => self.install(at, true, &|page, old| set(entries, page, old)),
            Op::Upgrade(at) => self.install(at, false, &|_, old| upgraded(old)),
            Op::Take(at) => self.install(at, false, &|_, _| Entry::NONE),
            Op::Protect(at, split) => {
                let (first, count) = resolve::<F>(at);
                self.pass(range(first, count), split, false, &|_, old| old.write_protected());
            }
            Op::Replace(at, entries, split) => {
                let (first, count) = resolve::<F>(at);
                self.pass(range(first, count), split, false, &|page, old| {
                    let new = entries.of(page);
                    // That of a leaf of any size, which is not checked.
                    let fits = matches!(entries.order, Order::Aligned)
                        && F::can_hold(Model::<F>::raw(new.plus(fan::<F>())));
                    if fits {
                        new
                    } else {
                        old
                    }
                });
            }
            Op::Remove(at, fast) => {
                let (first, count) = resolve::<F>(at);
                self.pass(range(first, count), false, fast, &|_, _| Entry::NONE);
            }
            Op::RemoveAll(fast) => self.pass(everything(), false, fast, &|_, _| Entry::NONE),
            Op::Refill => {
                if self.spares.refill().is_ok() {
                    let (free, kept) = (self.table.pool.free_pages(), self.model.kept());
                    assert!(free >= kept, "{free} pages for splits, not {kept}");
                }
            }
            Op::Fail(point) => arm(Some(point)),
            Op::Start => self.start(),
            Op::Wait(first) => self.wait(first),
            Op::Shrink => {
                self.table.pool.scan(usize::MAX);
            }
        }
    }

    fn check(&mut self) {
        match self.look {
            Look::Walks => self.check_walks(),
            Look::Shapes => self.check_shapes(),
            Look::Flushes => {}
            Look::Counts => self.check_counts(),
            Look::Pages => self.check_pages(),
            Look::Searches => self.check_searches(),
            Look::Dma => self.check_dma(),
        }
    }

    fn check_walks(&self) {
        for page in looked_at::<F>() {
            let expected = self.model.get(page);
            assert_eq!(self.table.get(page * PAGE_SIZE), expected, "page {page}");
            let addr = page * PAGE_SIZE + page % PAGE_SIZE;
            let found = self.reader.walk(addr).map_or(Entry::NONE, |leaf| leaf.entry);
            assert_eq!(found, Model::<F>::raw(expected), "walk to page {page}");
        }
        let beyond = last_address::<F>() + 1;
        assert_eq!(self.reader.walk(beyond), None);
        assert_eq!(self.reader.walk(usize::MAX), None);
    }

    fn check_shapes(&self) {
        for page in looked_at::<F>() {
            let order = self.table.leaf(page * PAGE_SIZE).map(|leaf| leaf.order);
            let expected = match self.model.is_huge(page) {
                true => F::BITS,
                false => 0,
            };
            let expected = self.model.get(page).is_valid().then_some(expected);
            assert_eq!(order, expected, "order at page {page}");
        }
    }

    /// The table pages in the tree, each with its level.
    fn tree(&self) -> Vec<(u32, u32)> {
        let mut found = vec![(self.table.root, F::LEVELS - 1)];
        let mut next = 0;
        let guard = rcu::read_lock();
        while let Some((index, level)) = found.get(next).copied() {
            let page = self.table.pool.page(&guard, index).unwrap();
            for slot in 0..fan::<F>() {
                if let Slot::Table(child) = F::decode(level, page.load(slot)) {
                    found.push((child, level - 1));
                }
            }
            next += 1;
        }
        found
    }

    fn check_counts(&self) {
        assert_eq!(self.table.live(), self.model.pages.len());
        let guard = rcu::read_lock();
        for (index, level) in self.tree() {
            let page = self.table.pool.page(&guard, index).unwrap();
            let used: Vec<_> = (0..fan::<F>())
                .filter(|slot| F::decode(level, page.load(*slot)) != Slot::Empty)
                .collect();
            assert_eq!(page.used() as usize, used.len(), "table page {index}");
            let (low, high) = page.bounds();
            assert!(used.iter().all(|slot| (low..=high).contains(slot)));
            assert!(index == self.table.root || !used.is_empty());
        }
    }

    fn check_pages(&mut self) {
        let tree = self.tree();
        let different: BTreeSet<_> = tree.iter().map(|(index, _)| *index).collect();
        assert_eq!(different.len(), tree.len(), "a table page is in two places");
        for index in self.tree.difference(&different) {
            self.left.insert(*index, self.starts);
        }
        let again = self.left.keys().find(|index| different.contains(index));
        assert_eq!(again, None, "a table page is used again before its flush");
        self.tree = different;
        let detached = self.batch.as_ref().map_or(0, |batch| batch.detached.len())
            + self.started.iter().map(|it| it.detached).sum::<usize>();
        // One operation may put a page into the tree and take it out.
        assert!(detached >= self.left.len(), "table pages wait for no flush");
        assert_eq!(
            tree.len() + detached + self.spares.pages.len() + self.table.pool.free_pages(),
            self.table.pool.all_pages(),
            "table pages in the tree, detached, reserved and free"
        );
    }

    fn check_searches(&self) {
        let model = &self.model;
        let starts: Vec<_> = (0..3).map(base::<F>).collect();
        for (number, start) in starts.iter().enumerate() {
            for (skip, count) in [(0, AREA), (500, 30), (511, 2), (7 * number + 3, 600)] {
                let (first, end) = (start + skip, (start + skip + count).min(total::<F>()));
                if first >= end {
                    continue;
                }
                let range = range(first, end - first);
                let present = (first..end).take_while(|page| model.get(*page).is_valid()).count();
                assert_eq!(self.table.present(range), present, "present in {range:?}");
                let holds = |entry: Entry| entry.is_valid() && entry.is_device();
                // Of a huge leaf only one is asked, but all are alike in this.
                let any = (first..end).any(|page| holds(model.get(page)));
                assert_eq!(self.table.any(range, holds), any, "any in {range:?}");
            }
        }
        for (first, parts) in [(0, 1), (3, 2), (700, 3)] {
            self.check_scan(first, parts);
        }
    }

    /// Looks through the table in parts, from page `first` on.
    fn check_scan(&self, first: usize, parts: usize) {
        let mut seen = Vec::new();
        let mut from = Some(first * PAGE_SIZE);
        while let Some(addr) = from {
            from = self.reader.scan(addr, parts, |range, entry, is_huge| {
                for index in 0..range.pages() {
                    let page = range.start() / PAGE_SIZE + index;
                    seen.push((page, entry.plus(index), is_huge));
                }
                true
            });
            // Gaps have too many parts.
            if let Some(addr) = from {
                let next = self.model.pages.range(addr / PAGE_SIZE..).next();
                from = next.map(|(page, _)| page * PAGE_SIZE);
            }
        }
        let expected = self
            .model
            .pages
            .range(first..)
            .map(|(page, entry)| (*page, Model::<F>::raw(*entry), self.model.is_huge(*page)));
        assert!(seen.into_iter().eq(expected), "a scan sees other pages");
    }

    fn check_dma(&self) {
        let Some((device, _)) = &self.dma else { return };
        assert_eq!(device.live(), self.model.mapped.len() as u64);
        for (page, entry) in &self.model.pages {
            if is_system(*entry) {
                let live = Some(Mapped::Live(entry.number()));
                assert_eq!(self.model.mapped.get(page).copied(), live);
            }
        }
    }

    /// Removes everything.
    fn end(mut self) {
        arm(None);
        self.pass(everything(), false, true, &|_, _| Entry::NONE);
        self.check();
        self.start();
        while !self.started.is_empty() {
            self.wait(true);
        }
        self.check();
        assert_eq!(self.table.live(), 0);
        if self.look == Look::Pages {
            assert_eq!(self.tree().len(), 1);
            drop(self.spares);
            let pool = &self.table.pool;
            assert_eq!(pool.free_pages() + 1, pool.all_pages());
            while pool.count() != 0 {
                assert_ne!(pool.scan(usize::MAX), 0, "free pages cannot be given back");
            }
            // That of the root.
            assert_eq!(pool.all_pages(), 32);
        }
        if let Some((device, windows)) = &self.dma {
            assert_eq!(device.live(), 0);
            windows.forget(everything());
            assert_eq!(windows.count(), 0);
        }
    }
}

fn set(entries: Entries, page: usize, old: Entry) -> Entry {
    match entries.leave {
        0 => entries.of(page),
        every if page % every == 0 => old,
        _ => entries.of(page),
    }
}

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

/// What is encoded decodes to itself, and nothing else is empty.
fn encoding<F: Format>(trial: &Trial<'_>) {
    let kind = prop_oneof![
        Just(Kind::Writable),
        Just(Kind::ReadOnly),
        Just(Kind::Device),
        Just(Kind::ReadOnlyDevice),
        Just(Kind::Exclusive),
    ];
    // As many bits as a page number has.
    let number = (0u32..52, any::<u64>()).prop_map(|(bits, number)| number & ((2 << bits) - 1));
    trial.run((kind, number, 0u32..1 << 18), 1..8, |cases| {
        for (kind, number, index) in cases {
            let number = *number as usize;
            let entry = match kind {
                Kind::ReadOnly => Entry::system(number, false),
                Kind::Writable => Entry::system(number, true),
                Kind::Device => Entry::device(number, true),
                Kind::ReadOnlyDevice => Entry::device(number, false),
                Kind::Exclusive => Entry::exclusive(number),
            };
            for level in (0..F::LEVELS).filter(|level| F::has_leaves(*level)) {
                let decoded = F::decode(level, F::leaf(level, entry));
                assert!(decoded == Slot::Leaf(entry) || !F::can_hold(entry), "{entry:?}");
            }
            for level in 1..F::LEVELS {
                let decoded = F::decode(level, F::table(*index));
                assert_eq!(decoded, Slot::Table(*index));
            }
        }
    });
    assert_eq!(F::decode(0, F::Word::EMPTY), Slot::Empty);
}
