// SPDX-License-Identifier: GPL-2.0

//! The image of a table beside the model, write by write.

use super::{
    decode::Leaf,
    *, //
};
use crate::{
    hardware::walk,
    mm::table_memory::{
        notifications,
        writes,
        TableMemory, //
    }, //
};
use std::collections::HashMap;

/// The first device page of CPU page `page`.
fn first_part<F: Format>(page: usize) -> usize {
    page << group_order::<F>()
}

/// The device pages of CPU page `page`, each with its index among them.
fn parts<F: Format>(page: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..1 << group_order::<F>()).map(move |part| (part, first_part::<F>(page) + part))
}

/// The memory of a device that walks.
struct Device<F: Decode> {
    words: HashMap<(u64, usize), u64>,
    root: u64,
    _format: core::marker::PhantomData<F>,
}

impl<F: Decode> Device<F> {
    /// Translation of a device page by a walk of the image.
    fn walk(&self, page: usize) -> Option<Leaf> {
        let mut at = self.root;
        for level in (0..F::LEVELS).rev() {
            let slot = (page >> (F::BITS * level)) & (fan::<F>() - 1);
            let word = self.words.get(&(at, slot)).copied().unwrap_or(0);
            match F::decode(level, word) {
                Decoded::Empty => return None,
                Decoded::Table(address) => at = address,
                Decoded::Leaf(leaf) => {
                    let skip = page & ((1 << (F::BITS * level)) - 1);
                    return Some(Leaf { number: leaf.number + skip, ..leaf });
                }
            }
        }
        panic!("a table at the last level");
    }

    /// Translation of `page` that a TLB caches after a walk to `other`, if both are in the same
    /// leaf.
    fn cached(&self, other: usize, page: usize) -> Option<Leaf> {
        let leaf = self.walk(other)?;
        let together = other >> leaf.order == page >> leaf.order;
        let number = leaf.number.wrapping_add(page).wrapping_sub(other);
        together.then_some(Leaf { number, ..leaf })
    }
}

impl<F: Decode> walk::Bus for Device<F> {
    fn read(&self, address: u64) -> Result<u64, walk::Miss> {
        // A table of the formats that the mock GPU walks.
        let at = (address & !0xfff, (address & 0xfff) as usize / 8);
        Ok(self.words.get(&at).copied().unwrap_or(0))
    }
}

/// A table with an image, its model, and the memory of the device.
pub(super) struct Beside<F: Decode> {
    both: Both<F>,
    device: Device<F>,
    /// A copy of the table, made part by part as the driver is notified of writes.
    copy: Device<F>,
    base: usize,
    /// TLB of a device that needs break-before-make.
    tlb: Tlb,
}

impl<F: Decode> Beside<F> {
    pub(super) fn new() -> Self {
        notifications();
        writes();
        // Narrow formats have no room for it.
        let base = if F::can_hold(DevicePte::device(1 << 30, true)) { 1 << 20 } else { 0 };
        let memory = TableMemory::plain().with_device_pages_at((base as u64) << PAGE_SHIFT);
        let both = Both::<F>::with_memory(Look::Walks, memory);
        let root = both.reader.root_address().expect("a root");
        let device = || Device { words: HashMap::new(), root, _format: Default::default() };
        let tlb = Tlb::default();
        let mut this = Self { both, device: device(), copy: device(), base, tlb };
        this.follow(|_, _| ());
        this
    }

    /// Whether `found` is the translation for device page `part` of the model's `entry`.
    fn is(&self, found: Option<Leaf>, entry: DevicePte, part: usize) -> bool {
        let entry = Model::<F>::raw(entry);
        let base = if entry.is_device() { self.base } else { 0 };
        found.map_or(!entry.is_valid(), |leaf| {
            entry.is_valid()
                && leaf.number == first_part::<F>(entry.number() + base) + part
                && leaf.writable == entry.may_be_dirty()
                && leaf.device.is_none_or(|device| device == entry.is_device())
        })
    }

    /// Pages to look at after each write: around the first and the last that change, and elsewhere.
    fn probes(&self, before: &BTreeMap<usize, DevicePte>) -> Vec<usize> {
        let after = &self.both.model.pages;
        let mut changed = looked_at::<F>().filter(|page| before.get(page) != after.get(page));
        let first = changed.next();
        let last = changed.last().or(first);
        let around = |page: usize| {
            [page, page ^ 1, page & !15, page | 15, page.wrapping_sub(1), page + 1, page ^ 64]
        };
        let all = first.into_iter().chain(last).chain([base::<F>(0) + 7]).flat_map(around);
        all.filter(|page| *page < total::<F>()).collect()
    }

    pub(super) fn apply(&mut self, op: &Op) {
        let before = self.both.model.pages.clone();
        let orders: BTreeMap<_, _> = before
            .keys()
            .flat_map(|page| parts::<F>(*page))
            .filter_map(|(_, at)| Some((at, self.device.walk(at)?.order)))
            .collect();
        let count = before.len() << group_order::<F>();
        assert!(orders.len() == count || F::break_before_make(), "all were there before");
        let flushes = matches!(op, Op::Start | Op::Wait(_));
        let running: Vec<_> = self.both.started.iter().map(|it| (it.number, it.range)).collect();
        self.both.apply(op);
        for (number, range) in running {
            if let Some(range) = range.filter(|_| self.both.is_over(number)) {
                self.tlb.flush(range, number);
            }
        }
        let probes = self.probes(&before);
        let old = |page: usize| before.get(&page).copied().unwrap_or(DevicePte::NONE);
        let starts = self.both.starts;
        let mut tlb = std::mem::take(&mut self.tlb);
        self.follow(|this, device| {
            for (page, part, at) in probes.iter().flat_map(|page| {
                parts::<F>(*page).map(|(part, at)| (*page, part, at))
            }) {
                let found = device.walk(at);
                let new = this.both.model.get(page);
                let is = |found| this.is(found, old(page), part) || this.is(found, new, part);
                if F::break_before_make() {
                    match found {
                        Some(leaf) => tlb.fill((page, part), leaf.order, starts),
                        None => continue,
                    }
                }
                assert!(
                    is(found),
                    "page {page}+{part}: {found:?}, not {:?} or {new:?}",
                    old(page)
                );
                for other in [at ^ 1, at & !15, at | 15] {
                    if let Some(cached) = device.cached(other, at) {
                        assert!(is(Some(cached)), "page {page}+{part} by {other}: {cached:?}");
                    }
                }
            }
        });
        let differs = |at: &(u64, usize)| {
            let word = |device: &Device<F>| device.words.get(at).copied().unwrap_or(0);
            word(&self.device) != word(&self.copy)
        };
        assert!(!self.device.words.keys().any(differs), "the driver was not called for a write");
        self.tlb = tlb;
        for page in looked_at::<F>() {
            for (part, at) in parts::<F>(page) {
                let found = self.check_part(page, part);
                if F::break_before_make() {
                    if let Some(leaf) = found {
                        self.tlb.fill((page, part), leaf.order, starts);
                    }
                    continue;
                }
                // A TLB must not have a page in two sizes.
                let resized =
                    found.zip(orders.get(&at)).is_some_and(|(leaf, order)| leaf.order != *order);
                if resized && !flushes {
                    let batch = self.both.batch.as_ref().unwrap();
                    let covered =
                        batch.range().is_some_and(|range| range.contains(page * PAGE_SIZE));
                    assert!(covered, "page {page} has another size and is not flushed");
                }
            }
        }
    }

    /// Replays the writes, and the notifications of the driver, in their order. Calls `check` for
    /// the device's memory after each write, and for the copy after each part that is copied.
    fn follow(&mut self, mut check: impl FnMut(&Self, &Device<F>)) {
        let notifications = notifications();
        let writes = writes();
        let mut notifications = notifications.into_iter().peekable();
        for index in 0..=writes.len() {
            while let Some((_, address, bytes)) =
                notifications.next_if(|(before, ..)| *before == index)
            {
                let unit = unit::<F>() as u64;
                let size = size_of::<F::Word>();
                let (table, first) =
                    (address & !(unit - 1), (address & (unit - 1)) as usize / size);
                for slot in first..first + bytes / size {
                    let word = self.device.words.get(&(table, slot)).copied().unwrap_or(0);
                    self.copy.words.insert((table, slot), word);
                }
                check(self, &self.copy);
            }
            if let Some((address, slot, value)) = writes.get(index) {
                self.device.words.insert((*address, *slot), *value);
                check(self, &self.device);
            }
        }
    }

    /// Checks the translation of a device page against the model. An unwritten entry has none.
    fn check_part(&self, page: usize, part: usize) -> Option<Leaf> {
        let at = first_part::<F>(page) + part;
        let found = self.device.walk(at);
        let entry = self.both.model.get(page);
        let may_wait = F::break_before_make() && found.is_none();
        assert!(
            may_wait || self.is(found, entry, part),
            "page {page}+{part}: {found:?}, not {entry:?}"
        );
        self.check_order(page, found);
        self.check_hardware(at, found);
        found
    }

    pub(super) fn end(mut self) {
        self.both.settle();
        self.follow(|_, _| ());
        for page in looked_at::<F>() {
            for (part, _) in parts::<F>(page) {
                let found = self.check_part(page, part).is_some();
                let expected = self.both.model.get(page).is_valid();
                assert_eq!(found, expected, "page {page}+{part} after all flushes");
            }
        }
        self.both.end();
    }

    /// The walker of the mock GPU, which was written apart, finds the same.
    fn check_hardware(&self, page: usize, found: Option<Leaf>) {
        let Some(hardware) = F::HARDWARE else { return };
        let addr = (page as u64) << F::PAGE_SHIFT;
        let result = hardware.walk(&self.device, self.device.root, addr);
        let same = found.map_or(Err(walk::Miss::NotPresent), |leaf| {
            Ok(walk::Translation {
                address: (leaf.number as u64) << F::PAGE_SHIFT,
                order: leaf.order + F::PAGE_SHIFT - walk::DEVICE_PAGE_SHIFT,
                writable: leaf.writable,
            })
        });
        assert_eq!(result, same, "the hardware at page {page}");
    }

    /// The largest run that the format has is used, below the leaves of the tree.
    fn check_order(&self, page: usize, found: Option<Leaf>) {
        let Some(leaf) = found else { return };
        let is_run = |order: u32| {
            let first = page >> order << order;
            let mut all = (first..first + (1 << order)).map(|page| self.both.model.get(page));
            let entry = all.next().unwrap();
            let number = Model::<F>::raw(entry).number();
            number % (1 << order) == 0
                && entry.is_valid()
                && all.zip(1..).all(|(other, index)| other == entry.plus(index))
        };
        let expected = if self.both.model.is_huge(page) {
            F::BITS
        } else {
            // The device pages of a page are a run by themselves.
            let pages = |order: u32| order.saturating_sub(group_order::<F>());
            let runs = F::LEAVES.iter().copied().filter(|order| *order < F::BITS);
            runs.filter(|order| is_run(pages(*order))).max().unwrap()
        };
        assert_eq!(leaf.order, expected, "the size of page {page}");
    }
}
