// SPDX-License-Identifier: GPL-2.0

//! Accesses of stable pages while the table changes.

use super::super::{
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
        Format,
        Miss,
        Translation, //
    }, //
};
use crate::{
    harness::Trial,
    mm::addr::PageRange, //
};
use core::cell::Cell;
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};
use proptest::prelude::*;
use std::collections::HashMap;

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
            if self.reach(page, action) {
                Answer::Done
            } else {
                Answer::Denied
            }
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
pub(super) fn accesses(trial: &Trial<'_>) {
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

pub(super) fn access(
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
