// SPDX-License-Identifier: GPL-2.0

//! The model of a table: a map from pages to entries.

use super::*;

/// State of the DMA mapping of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mapped {
    /// Mapped, with the number of its frame.
    Live(usize),
    /// Unmapped by the flush with this number.
    Dying(u32),
}

/// Expected contents of a table of format `F`.
pub(super) struct Model<F: Format> {
    pub(super) pages: BTreeMap<usize, DevicePte>,
    /// Tables of the lowest level of which a huge leaf takes the place, by their numbers.
    pub(super) huge: BTreeSet<usize>,
    /// Pages of which the device may have more than the table says, until the next flush, and how
    /// often they changed.
    pub(super) lost: BTreeMap<usize, usize>,
    pub(super) mapped: BTreeMap<usize, Mapped>,
    /// Number of the next flush.
    pub(super) tick: u32,
    pub(super) _format: core::marker::PhantomData<F>,
}

impl<F: Format> Model<F> {
    pub(super) fn new() -> Self {
        Self {
            pages: BTreeMap::new(),
            huge: BTreeSet::new(),
            lost: BTreeMap::new(),
            mapped: BTreeMap::new(),
            tick: 0,
            _format: core::marker::PhantomData,
        }
    }

    pub(super) fn get(&self, page: usize) -> DevicePte {
        self.pages.get(&page).copied().unwrap_or(DevicePte::NONE)
    }

    pub(super) fn set(&mut self, page: usize, new: DevicePte) {
        let old = self.get(page);
        if old.is_outdated_by(new) {
            *self.lost.entry(page).or_default() += 1;
        }
        if new.is_valid() {
            self.pages.insert(page, new)
        } else {
            self.pages.remove(&page)
        };
    }

    /// The entry as the table has it.
    pub(super) fn raw(entry: DevicePte) -> DevicePte {
        if F::DMA && is_system(entry) {
            entry.with_number(entry.number() + crate::bindings::OFFSET)
        } else {
            entry
        }
    }

    pub(super) fn is_run(new: &[DevicePte]) -> bool {
        let first = new[0];
        first.is_valid()
            && first.number() % new.len() == 0
            && (0..new.len()).all(|index| new[index] == first.plus(index))
    }

    pub(super) fn retire(&mut self, page: usize, old: DevicePte) {
        if F::DMA && is_system(old) {
            self.mapped.insert(page, Mapped::Dying(self.tick));
        }
    }

    /// Whether pages from `first` on, which are mapped together, can have addresses for `new` and
    /// the entries that follow it.
    pub(super) fn can_map(&self, first: usize, count: usize, new: DevicePte) -> bool {
        (0..count).all(|index| match self.mapped.get(&(first + index)) {
            None => true,
            Some(mapped) => *mapped == Mapped::Live(new.number() + index),
        }) && can_hold::<F>(Self::raw(new))
    }

    pub(super) fn map(&mut self, first: usize, count: usize, new: DevicePte) {
        if F::DMA && is_system(new) {
            for index in 0..count {
                let live = Mapped::Live(new.number() + index);
                self.mapped.insert(first + index, live);
            }
        }
    }

    /// Replaces the entries of pages that one leaf maps. Returns whether the new ones are there.
    pub(super) fn replace(
        &mut self,
        first: usize,
        count: usize,
        old: DevicePte,
        new: DevicePte,
    ) -> bool {
        let same = is_system(old)
            && is_system(new)
            && old.number() == new.number()
            && can_hold::<F>(Self::raw(new));
        let mut new = new;
        if F::DMA && !same {
            for index in 0..count {
                self.retire(first + index, old);
            }
            if is_system(new) && !self.can_map(first, count, new) {
                new = DevicePte::NONE;
            }
            self.map(first, count, new);
        }
        for index in 0..count {
            self.set(first + index, new.plus(index));
        }
        new.is_valid()
    }

    /// `install` of pages of one table.
    pub(super) fn install_part(
        &mut self,
        first: usize,
        count: usize,
        f: &dyn Fn(usize, DevicePte) -> DevicePte,
    ) -> bool {
        let new: Vec<_> = (first..first + count).map(|page| f(page, self.get(page))).collect();
        let changed = |this: &Self, index: usize| new[index] != this.get(first + index);
        let is_refused = |entry: DevicePte| {
            entry.is_valid() && (!F::DMA || entry.is_device()) && !can_hold::<F>(entry)
        };
        if (0..count).any(|index| changed(self, index) && is_refused(new[index])) {
            return false;
        }
        if (0..count).all(|index| !changed(self, index)) {
            return true;
        }
        let block = first / slots::<F>(0);
        if count == slots::<F>(0) && has_leaves::<F>(1) && Self::is_run(&new) {
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
            let page = first + index;
            let old = self.get(first + index);
            if old != new[index] {
                done &= self.replace(page, 1, old, new[index]) || !new[index].is_valid();
            }
        }
        done
    }

    /// `install` of pages of one block. Returns whether all its tables take their pages; an error
    /// of one does not keep the pages of the others from being installed.
    pub(super) fn install(
        &mut self,
        first: usize,
        count: usize,
        f: &dyn Fn(usize, DevicePte) -> DevicePte,
    ) -> bool {
        if first + count > total::<F>() {
            return false;
        }
        let mut works = true;
        let mut at = first;
        while at < first + count {
            let border = (at / slots::<F>(0) + 1) * slots::<F>(0);
            let end = border.min(first + count);
            works &= self.install_part(at, end - at, f);
            at = end;
        }
        works
    }

    /// A pass over leaves. `free` pages are there to split huge ones. Returns the leaves that `f`
    /// is called with.
    pub(super) fn pass(
        &mut self,
        first: usize,
        last: usize,
        mut free: usize,
        split: bool,
        f: &dyn Fn(usize, DevicePte) -> DevicePte,
    ) -> Vec<(usize, usize, DevicePte)> {
        let mut seen = Vec::new();
        let mut at = first;
        while let Some(page) = self.next(at, last) {
            let block = page / slots::<F>(0);
            let low = block * slots::<F>(0);
            let high = (block + 1) * slots::<F>(0);
            if self.huge.contains(&block) {
                let whole = first <= low && high - 1 <= last;
                if (whole && !split) || free == 0 {
                    let old = self.get(low);
                    let new = f(low, old);
                    seen.push((low, slots::<F>(0), old));
                    if new != old && !self.replace(low, slots::<F>(0), old, new) {
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
    pub(super) fn next(&self, at: usize, last: usize) -> Option<usize> {
        if at > last {
            return None;
        }
        self.pages.range(at..=last).next().map(|(page, _)| *page)
    }

    /// Whether `page` is one that a huge leaf maps.
    pub(super) fn is_huge(&self, page: usize) -> bool {
        self.huge.contains(&(page / slots::<F>(0)))
    }

    /// The flush `tick` of pages in `range` is over.
    pub(super) fn flushed(&mut self, range: PageRange, tick: u32) {
        self.mapped.retain(|page, mapped| {
            *mapped != Mapped::Dying(tick) || !range.contains(page * PAGE_SIZE)
        });
    }

    /// Pages that stay free for splits of huge leaves.
    pub(super) fn kept(&self) -> usize {
        self.huge.len().min(8) + self.huge.len() / 512
    }
}
