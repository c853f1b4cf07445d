// SPDX-License-Identifier: GPL-2.0

//! The hardware of the mock GPU: walkers according to the manuals, the TLB, and accesses during
//! changes of the table.

use super::{
    bus::{
        Access,
        Action,
        Answer,
        Lane, //
    },
    counters::{
        Count,
        Counted,
        Counters, //
    },
    mmu::{
        self,
        Context, //
    },
    monitor::{
        Monitor,
        Seen, //
    },
    tlb::Tlb,
    walk::{
        Bus,
        Format,
        Miss,
        Translation, //
    }, //
};
use crate::{
    harness::{
        Property,
        Trial, //
    },
    mm::addr::PageRange, //
};
use core::cell::Cell;
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};
use proptest::prelude::*;
use std::collections::{
    BTreeMap,
    HashMap, //
};

pub(crate) const ALL: &[Property] = &[
    Property {
        name: "hardware_decodes_as_the_manuals_specify",
        cases: 1,
        variants: &[
            ("radix4", radix4),
            ("radix5", radix5),
            ("lpae", lpae),
            ("lpae16k", lpae16k),
            ("gfx9", gfx9),
        ],
    },
    Property { name: "hardware_tlb_drops_flushed_entries", cases: 2000, variants: &[("tlb", tlb)] },
    Property {
        name: "hardware_monitor_finds_translated_pages",
        cases: 200,
        variants: &[("monitor", monitor), ("walks", walks)],
    },
    Property {
        name: "hardware_accesses_stable_pages_without_a_fault",
        cases: 4000,
        variants: &[("mmu", accesses)],
    },
];

/// Words, by bus address.
struct Memory(HashMap<u64, u64>);

impl Bus for Memory {
    fn read(&self, address: u64) -> Result<u64, Miss> {
        self.0.get(&address).copied().ok_or(Miss::Bus(address))
    }
}

/// Three levels of tables that lead to a table at 0x4000 or, if there is a leaf of 2 MiB, end at
/// 0x3000. `ADDR` has the indices 1, 2, 3 and 5, beginning with the root.
const ADDR: u64 = 1 << 39 | 2 << 30 | 3 << 21 | 5 << 12;

fn tables(link: u64, large: Option<u64>, leaf: u64) -> Memory {
    Memory(HashMap::from([
        (0x1008, 0x2000 | link),
        (0x2010, 0x3000 | link),
        (0x3018, large.unwrap_or(0x4000 | link)),
        (0x4028, leaf),
    ]))
}

fn found(address: u64, order: u32, writable: bool) -> Result<Translation, Miss> {
    Ok(Translation { address, order, writable })
}

fn radix4(trial: &Trial<'_>) {
    trial.run(Just(()), 1..2, |_| {
        let walk = |large, leaf| Format::Radix4.walk(&tables(3, large, leaf), 0x1000, ADDR);
        assert_eq!(walk(None, 0x9003), found(0x9000, 0, true));
        assert_eq!(walk(None, 0x9001), found(0x9000, 0, false));
        assert_eq!(walk(None, 0x9002), Err(Miss::NotPresent));
        assert_eq!(walk(Some(0x60_0081), 0), found(0x60_5000, 9, false));
        assert_eq!(walk(Some(0x60_1081), 0), Err(Miss::Malformed(0x60_1081)));
        assert_eq!(walk(Some(0x8003), 0), Err(Miss::Bus(0x8028)));
        // Nothing is present beyond 48 bits.
        let beyond = Format::Radix4.walk(&tables(3, None, 0x9003), 0x1000, ADDR | 1 << 48);
        assert_eq!(beyond, Err(Miss::NotPresent));
    });
}

/// [`tables`], below a root at 0x5000.
fn five_levels(leaf: u64) -> Memory {
    let mut memory = tables(3, None, leaf);
    memory.0.insert(0x5030, 0x1003);
    memory
}

/// The address of the page of [`five_levels`].
const ADDR_OF_5: u64 = 6 << 48 | ADDR;

fn radix5(trial: &Trial<'_>) {
    trial.run(Just(()), 1..2, |_| {
        let walk = |addr| Format::Radix5.walk(&five_levels(0x9003), 0x5000, addr);
        assert_eq!(walk(ADDR_OF_5), found(0x9000, 0, true));
        assert_eq!(walk(ADDR), Err(Miss::Bus(0x5000)));
        assert_eq!(walk(ADDR_OF_5 | 1 << 57), Err(Miss::NotPresent));
    });
}

/// Two levels of tables of 16 KiB that lead to a table at 0xc000 or, if there is a block, end at
/// 0x8000. `ADDR_OF_16K` has the indices 1, 2 and 3, beginning with the root at 0x4000.
const ADDR_OF_16K: u64 = 1 << 36 | 2 << 25 | 3 << 14;

fn tables_of_16k(block: Option<u64>, leaf: u64) -> Memory {
    let all = [(0x4008, 0x8003), (0x8010, block.unwrap_or(0xc003)), (0xc018, leaf)];
    Memory(HashMap::from(all))
}

fn lpae16k(trial: &Trial<'_>) {
    trial.run(Just(()), 1..2, |_| {
        let walk = |block, leaf| {
            let memory = tables_of_16k(block, leaf);
            Format::Lpae16k.walk(&memory, 0x4000, ADDR_OF_16K | 0x1000)
        };
        let page = 1 << 10 | 1 << 6;
        assert_eq!(walk(None, 0x2_0003 | page), found(0x2_1000, 2, true));
        assert_eq!(walk(None, 0x2_0083 | page), found(0x2_1000, 2, false));
        assert_eq!(walk(None, 0x2_0003 | page | 1 << 52), found(0x2_1000, 9, true));
        // A page of 4 KiB.
        assert_eq!(walk(None, 0x2_1003 | page), Err(Miss::Malformed(0x2_1003 | page)));
        assert_eq!(walk(Some(0x600_0001 | page), 0), found(0x600_d000, 13, true));
        assert_eq!(walk(Some(0x602_0001 | page), 0), Err(Miss::Malformed(0x602_0001 | page)));
        let beyond = Format::Lpae16k.walk(&tables_of_16k(None, 0), 0x4000, 1 << 47);
        assert_eq!(beyond, Err(Miss::NotPresent));
    });
}

fn lpae(trial: &Trial<'_>) {
    trial.run(Just(()), 1..2, |_| {
        let walk = |large, leaf| Format::Lpae.walk(&tables(3, large, leaf), 0x1000, ADDR);
        let page = 1 << 10 | 1 << 6;
        assert_eq!(walk(None, 0x9003 | page), found(0x9000, 0, true));
        assert_eq!(walk(None, 0x9083 | page), found(0x9000, 0, false));
        assert_eq!(walk(None, 0x9003 | page | 1 << 52), found(0x9000, 4, true));
        assert_eq!(walk(None, 0x9001 | page), Err(Miss::Malformed(0x9001 | page)));
        // Without the access flag, or for the kernel only.
        for bits in [1 << 6, 1 << 10] {
            assert_eq!(walk(None, 0x9003 | bits), Err(Miss::Malformed(0x9003 | bits)));
        }
        assert_eq!(walk(Some(0x60_0001 | page), 0), found(0x60_5000, 9, true));
    });
}

fn gfx9(trial: &Trial<'_>) {
    trial.run(Just(()), 1..2, |_| {
        let walk = |large, leaf| Format::Gfx9.walk(&tables(1, large, leaf), 0x1000, ADDR);
        assert_eq!(walk(None, 0x9061), found(0x9000, 0, true));
        assert_eq!(walk(None, 0x9021 | 4 << 7), found(0x9000, 4, false));
        assert_eq!(walk(None, 0x9001), Err(Miss::Malformed(0x9001)));
        let large = 0x60_0061 | 9 << 7 | 1 << 54;
        assert_eq!(walk(Some(large), 0), found(0x60_5000, 9, true));
    });
}

#[derive(Clone, Copy, Debug)]
enum Kept {
    Fill { tag: u64, page: usize, order: u32, number: u64 },
    Forget { tag: u64, page: usize },
    Flush { tag: u64, first: usize, count: usize },
}

fn kept() -> impl Strategy<Value = Kept> {
    let page = || prop_oneof![0usize..40, 480usize..1100];
    prop_oneof![
        4 => (1u64..3, page(), prop_oneof![Just(0), Just(2), Just(4), Just(9)], 0u64..1 << 20)
            .prop_map(|(tag, page, order, number)| Kept::Fill { tag, page, order, number }),
        1 => (1u64..3, page()).prop_map(|(tag, page)| Kept::Forget { tag, page }),
        2 => (1u64..3, page(), prop_oneof![1usize..4, 1usize..700])
            .prop_map(|(tag, first, count)| Kept::Flush { tag, first, count }),
    ]
}

/// A TLB may lose translations. A translation that it returns was filled for this address space and
/// page, and was not flushed since.
fn tlb(trial: &Trial<'_>) {
    trial.run(kept(), 1..60, |ops| {
        let mut tlb = Tlb::new(16).unwrap();
        // The possible translations of each page.
        let mut model: BTreeMap<(u64, usize), Vec<u64>> = BTreeMap::new();
        for op in ops {
            match *op {
                Kept::Fill { tag, page, order, number } => {
                    let first = page >> order << order;
                    let address = number << 12;
                    tlb.fill(tag, page << 12, Translation { address, order, writable: true });
                    for other in first..first + (1 << order) {
                        let at = address.wrapping_add((other as u64) << 12);
                        let at = at.wrapping_sub((page as u64) << 12);
                        model.entry((tag, other)).or_default().push(at);
                    }
                    let kept = tlb.lookup(tag, page << 12).map(|kept| kept.address);
                    assert!(model[&(tag, page)].contains(&kept.expect("filled")));
                }
                Kept::Forget { tag, page } => {
                    tlb.forget(tag, page << 12);
                    model.remove(&(tag, page));
                }
                Kept::Flush { tag, first, count } => {
                    tlb.flush(tag, PageRange::from_pages(first << 12, count).unwrap());
                    model.retain(|(of, page), _| {
                        *of != tag || !(first..first + count).contains(page)
                    });
                }
            }
            for page in (0..60).chain(470..1800) {
                for tag in 1..3 {
                    let Some(kept) = tlb.lookup(tag, page << 12) else { continue };
                    let may = model.get(&(tag, page));
                    let right = may.is_some_and(|all| all.contains(&kept.address));
                    assert!(right, "page {page} of {tag} is at {:#x}", kept.address);
                }
            }
        }
    });
}

/// A monitor may forget translations. A page that it returns was translated to this address, and
/// was not flushed since.
fn monitor(trial: &Trial<'_>) {
    trial.run(kept(), 1..60, |ops| {
        let mut monitor = Monitor::new(16).unwrap();
        let mut tlb = Tlb::new(16).unwrap();
        let mut given: Vec<(u64, usize, Translation)> = Vec::new();
        for op in ops {
            match *op {
                Kept::Fill { tag, page, order, number } => {
                    // Few addresses, so that pages share them. Both are aligned.
                    let page = page >> order << order;
                    let address = (number % 64) << order << 12;
                    let found = Translation { address, order, writable: number & 1 == 1 };
                    monitor.record(tag, page << 12, found);
                    let size = [9, 4, 0].into_iter().find(|size| *size <= order).unwrap();
                    for at in 0..1usize << size {
                        let address = address + ((at as u64) << 12);
                        let found = Translation { address, order: size, ..found };
                        given.push((tag, page + at, found));
                    }
                    // As the TLB has it, unless a line of another size is found first.
                    tlb.fill(tag, page << 12, found);
                    let kept = tlb.lookup(tag, page << 12).unwrap();
                    if kept == (Translation { order: size, ..found }) {
                        let kept = Translation { address: address + 0x123, ..kept };
                        assert_eq!(monitor.find(tag, kept), Some((page << 12) + 0x123));
                    }
                }
                Kept::Flush { tag, first, count } => {
                    let range = PageRange::from_pages(first << 12, count).unwrap();
                    monitor.flush(tag, range);
                    tlb.flush(tag, range);
                    given.retain(|(of, page, _)| {
                        *of != tag || !(first..first + count).contains(page)
                    });
                }
                Kept::Forget { .. } => {}
            }
            for (tag, _, found) in &given {
                if let Some(addr) = monitor.find(*tag, *found) {
                    assert!(given.contains(&(*tag, addr >> 12, *found)), "{addr:#x}: {found:x?}");
                }
            }
        }
    });
}

/// The monitor knows the virtual address of an access after a walk of any format.
fn walks(trial: &Trial<'_>) {
    struct Watched<'m> {
        memory: &'m Memory,
        format: Format,
        root: u64,
        addr: u64,
        seen: Cell<Seen>,
    }
    impl Bus for Watched<'_> {
        fn read(&self, address: u64) -> Result<u64, Miss> {
            let mut seen = self.seen.get();
            let first = seen.read(self.format, self.root, address).expect("a walk from the root");
            self.seen.set(seen);
            assert_eq!(first & !(self.addr as usize), 0, "{first:#x}");
            self.memory.read(address)
        }
    }
    trial.run(Just(()), 1..2, |_| {
        let page = 1 << 10 | 1 << 6;
        let of_16k = tables_of_16k(None, 0x2_0003 | page);
        for (format, root, addr, memory) in [
            (Format::Radix4, 0x1000, ADDR, tables(3, None, 0x9003)),
            (Format::Radix4, 0x1000, ADDR, tables(3, Some(0x60_0081), 0)),
            (Format::Radix5, 0x5000, ADDR_OF_5, five_levels(0x9003)),
            (Format::Lpae, 0x1000, ADDR, tables(3, None, 0x9003 | page | 1 << 52)),
            (Format::Lpae16k, 0x4000, ADDR_OF_16K, of_16k),
            (Format::Gfx9, 0x1000, ADDR, tables(1, Some(0x60_0061 | 9 << 7 | 1 << 54), 0)),
        ] {
            let seen = Cell::new(Seen::NOTHING);
            let bus = Watched { memory: &memory, format, root, addr, seen };
            assert_eq!(bus.seen.get().address_of(0x9000), None);
            let found = format.walk(&bus, root, addr).unwrap();
            let access = bus.seen.get().address_of(found.address | 0x18);
            assert_eq!(access, Some(addr as usize | 0x18));
            // A read that no walk makes, and a walk that begins elsewhere.
            assert_eq!(Seen::NOTHING.read(format, root, root + 0x4000), None);
        }
    });
}

/// Number of modelled pages of the block.
const PAGES: usize = 3;

/// A page of the tree: its number, and whether it is writable.
type Page = Option<(u64, bool)>;

/// A block of 2 MiB of the tree or the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Block {
    Table { at: u64, pages: [Page; PAGES] },
    Huge { number: u64, writable: bool },
}

impl Block {
    fn page(&self, index: usize) -> Page {
        match *self {
            Self::Table { pages, .. } => pages[index],
            Self::Huge { number, writable } => Some((number + index as u64, writable)),
        }
    }
}

/// The root and the two tables below it, then the two possible tables of the block.
const UPPER: [u64; 3] = [0x1000, 0x2000, 0x3000];
const LOWER: [u64; 2] = [0x4000, 0x5000];

/// The library and a device that walks the image: the tree, the image, and a pending change.
struct Machine {
    tree: Block,
    before: Block,
    /// Words of the image that are not written yet.
    unwritten: Vec<(u64, u64)>,
    image: HashMap<u64, u64>,
    changing: bool,
    tlb: Tlb,
    monitor: Monitor,
    seen: Cell<Seen>,
    /// Page reached by the last access.
    reached: Cell<Option<u64>>,
    alarms: Cell<usize>,
}

impl Machine {
    fn new() -> Self {
        let start = Block::Table { at: LOWER[0], pages: [Some((0x10, true)), None, None] };
        let links = [(0x1000, 0x2003), (0x2000, 0x3003)];
        let mut machine = Self {
            tree: start,
            before: start,
            unwritten: Vec::new(),
            image: HashMap::from(links),
            changing: false,
            tlb: Tlb::new(8).unwrap(),
            monitor: Monitor::new(8).unwrap(),
            seen: Cell::new(Seen::NOTHING),
            reached: Cell::new(None),
            alarms: Cell::new(0),
        };
        machine.begin(start);
        machine.end();
        machine
    }

    /// Changes the tree. The image is written word by word, a table before its link.
    fn begin(&mut self, new: Block) {
        let right = |writable| 1 | u64::from(writable) << 1;
        let link = match new {
            Block::Huge { number, writable } => number << 12 | 0x80 | right(writable),
            Block::Table { at, pages } => {
                for (index, page) in pages.into_iter().enumerate() {
                    let word = page.map_or(0, |(number, writable)| number << 12 | right(writable));
                    self.unwritten.push((at + 8 * index as u64, word));
                }
                at | 3
            }
        };
        self.unwritten.push((UPPER[2], link));
        self.before = self.tree;
        self.tree = new;
        self.changing = true;
    }

    fn write(&mut self) {
        if !self.unwritten.is_empty() {
            let (address, word) = self.unwritten.remove(0);
            self.image.insert(address, word);
        }
    }

    /// Completes a change: writes the rest of the image, and flushes.
    fn end(&mut self) {
        while !self.unwritten.is_empty() {
            self.write();
        }
        let all = PageRange::from_pages(0, 512).unwrap();
        self.tlb.flush(1, all);
        self.monitor.flush(1, all);
        self.before = self.tree;
        self.changing = false;
    }

    fn reach(&self, page: Page, action: &Action<'_>) -> bool {
        let number = page.filter(|(_, writable)| *writable || !action.writes());
        self.reached.set(number.map(|(number, _)| number));
        number.is_some()
    }
}

impl Lane for Machine {
    fn tlb(&mut self) -> &mut Tlb {
        &mut self.tlb
    }

    fn table_word(&self, address: u64) -> Result<u64, Miss> {
        let mut seen = self.seen.get();
        seen.read(Format::Radix4, UPPER[0], address).expect("a walk from the root");
        self.seen.set(seen);
        let table = address & !0xfff;
        let linked = matches!(self.tree, Block::Table { at, .. } if at == table);
        if linked || UPPER.contains(&table) {
            Ok(self.image.get(&address).copied().unwrap_or(0))
        } else if self.changing {
            Err(Miss::Superseded)
        } else {
            Err(Miss::Bus(address))
        }
    }

    fn request_translation(&self, addr: usize) -> Option<Translation> {
        assert!(self.changing, "the table was not replaced");
        let mut seen = self.seen.get();
        seen.requested(addr);
        self.seen.set(seen);
        let (number, writable) = self.tree.page(addr / PAGE_SIZE)?;
        Some(Translation { address: number << 12, order: 0, writable })
    }

    fn access(&mut self, place: Translation, action: &mut Action<'_>) -> Result<Answer> {
        let translated = self.seen.get().address_of(place.address);
        let addr = match translated {
            Some(addr) => {
                self.monitor.record(1, addr, place);
                addr
            }
            None => match self.monitor.find(1, place) {
                Some(addr) => addr,
                None => return Ok(Answer::Retry),
            },
        };
        let page = self.tree.page(addr / PAGE_SIZE);
        let confirmed = page.is_some_and(|(number, writable)| {
            number == place.address >> 12 && (writable || !place.writable)
        });
        Ok(if confirmed || self.changing && translated.is_some() {
            if self.reach(page, action) { Answer::Done } else { Answer::Denied }
        } else if self.changing {
            Answer::Retry
        } else {
            Answer::Stale
        })
    }

    fn alarm(&self, _addr: usize, _why: Option<Miss>) {
        self.alarms.set(self.alarms.get() + 1);
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A page of the table is replaced, protected or removed.
    Page(usize, Page),
    /// The table becomes a huge leaf, or a huge leaf is replaced.
    Merge(u64, bool),
    /// A huge leaf becomes a table.
    Split,
    /// The next word of the image is written.
    Write,
    /// The change is completed.
    End,
    Access(usize, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let page = || prop_oneof![1 => Just(None), 4 => (1u64..64, any::<bool>()).prop_map(Some)];
    prop_oneof![
        2 => (0..PAGES, page()).prop_map(|(index, page)| Step::Page(index, page)),
        1 => (1u64..4, any::<bool>()).prop_map(|(number, writable)| Step::Merge(number, writable)),
        1 => Just(Step::Split),
        4 => Just(Step::Write),
        2 => Just(Step::End),
        8 => (0..PAGES, any::<bool>()).prop_map(|(index, write)| Step::Access(index, write)),
    ]
}

/// An access at any time of a change reaches the page mapped before or after the change. It faults
/// only if one of both denies it.
fn accesses(trial: &Trial<'_>) {
    trial.run(step(), 1..60, |steps| {
        let mut machine = Machine::new();
        let context = Context::new(1, Some((Format::Radix4, UPPER[0])), false);
        let engine = Counters::new();
        let file = Counters::new();
        let mut accesses = 0;
        for step in steps {
            match *step {
                Step::Write => machine.write(),
                Step::End => machine.end(),
                Step::Access(index, write) => {
                    access(&mut machine, &context, [&engine, &file], index, write);
                    accesses += 1;
                    continue;
                }
                // Only one change at a time.
                _ if machine.changing => machine.end(),
                Step::Page(index, page) => {
                    if let Block::Table { at, mut pages } = machine.tree {
                        pages[index] = page;
                        machine.begin(Block::Table { at, pages });
                    }
                }
                Step::Merge(number, writable) => {
                    machine.begin(Block::Huge { number: number << 9, writable });
                }
                Step::Split => {
                    if let Block::Huge { .. } = machine.tree {
                        let pages = core::array::from_fn(|index| machine.tree.page(index));
                        machine.begin(Block::Table { at: LOWER[1], pages });
                    }
                }
            }
        }
        assert_eq!(machine.alarms.get(), 0, "alarms");
        assert_eq!(engine.get(Count::StaleHits), 0, "stale hits");
        assert_eq!(engine.get(Count::TlbHits) + engine.get(Count::TlbMisses), accesses);
    });
}

fn access(
    machine: &mut Machine,
    context: &Context,
    counters: [&Counters; 2],
    index: usize,
    write: bool,
) {
    let permits = |page: Page| page.is_some_and(|(_, writable)| writable || !write);
    let old = machine.before.page(index);
    let new = machine.tree.page(index);
    let mut bytes = [0; 8];
    let mut action = if write { Action::Write(&[1; 8]) } else { Action::Read(&mut bytes) };
    let [engine, file] = counters;
    machine.reached.set(None);
    machine.seen.set(Seen::NOTHING);
    let counted = Counted { engine, file };
    let moved = [Count::BytesRead, Count::BytesWritten].map(|count| engine.get(count));
    let result = mmu::access(machine, context, counted, index * PAGE_SIZE, &mut action).unwrap();
    let [read, written] = [Count::BytesRead, Count::BytesWritten].map(|count| engine.get(count));
    let reached = machine.reached.get();
    match result {
        Access::Done => {
            let right = [old, new].into_iter().flatten().any(|(number, _)| Some(number) == reached);
            assert!(right, "{reached:x?}, not {old:x?} or {new:x?}");
            assert!(permits(new), "the bus reaches {new:?}");
            let bytes = if write { written - moved[1] } else { read - moved[0] };
            assert_eq!(bytes, 8);
        }
        Access::Fault => {
            assert!(!permits(old) || !permits(new), "a fault, of {old:x?} and {new:x?}");
            assert_eq!([read, written], moved);
        }
    }
}
