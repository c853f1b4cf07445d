// SPDX-License-Identifier: GPL-2.0

//! The mirror's part in a migration, when pages have moved: its entries name the new places, where nobody else has
//! taken them away.
//!
//! A switch gives no write access where there was an entry. Until its flush is over one engine may
//! still read the source, by its TLB, and would not see what another one writes to the new place.
//! Write access comes back after the flush, to pages that still have their marks.

use super::{transaction::Transaction, Device, Inner, Mirror, State};
use crate::{
    memory::Memory,
    mm::{
        addr::PageRange,
        mask::Mask,
        migrate::{Entry as MovedEntry, Moved, Source},
        notifier::Cookie,
        page::DirtyBatch,
    },
    pgtable::{Entry, Flushed, Flushing, Format, Spares},
    phases::{Lap, Phase},
    stats::Counter,
};
use core::ops::Range;
use kernel::prelude::*;

/// What a switch made of one page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Switched {
    /// The device's entry was switched, or made.
    Yes {
        /// Whether there was one before.
        was_valid: bool,
    },
    /// The page has moved, and the device had no entry for it.
    NoEntry,
    /// The page has moved, and somebody took the entry away meanwhile.
    Lost,
    /// The page has not moved; it is in device memory or not.
    Stays {
        /// Whether the device's entry is one of device memory.
        on_device: bool,
    },
}

/// Whether any of `pages` has moved.
#[inline]
fn any_moved(moved: &Moved<'_>, pages: &Range<usize>) -> bool {
    pages.clone().any(|index| moved.at(index).is_some())
}

/// What moved as one, and all of `pages` with it.
#[inline]
fn moved_whole(moved: &Moved<'_>, pages: &Range<usize>) -> Option<MovedEntry> {
    moved
        .at(pages.start)
        .filter(|entry| pages.end <= entry.index + entry.pages)
}

impl<D: Device> Mirror<D> {
    /// Lets the device use what moved to its memory, of which `number` gives the device page number
    /// by page frame. Calls `each` for every page of the range.
    ///
    /// Afterwards no entry names a source. If the table has no memory, all that moved is lost.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the device's page table cannot hold the addresses.
    // Its frame is not needed by the copies that come before.
    #[inline(never)]
    pub(super) fn switch_to_device(
        &self,
        name: Cookie,
        moved: &Moved<'_>,
        mut number: impl FnMut(usize) -> Option<usize>,
        hole_writable: bool,
        spares: &mut Spares<D::Format>,
        mut each: impl FnMut(usize, Switched),
    ) -> (Flushed, Result) {
        let inner = self.inner();
        let piece = moved.range();
        let mut lap = Lap::start();
        let mut guard = self.inner().lock();
        let State {
            table,
            transactions,
            ..
        } = &mut *guard;
        let own = transactions.get(name, piece.start());
        let mut later = Mask::EMPTY;
        let mut unwritten = None;
        let (result, flush) = inner.change(table, Some(piece), |table, batch| {
            let mut dirty = DirtyBatch::new();
            let result = table.install(piece, spares, batch, |addr, slot| {
                let Some(index) = piece.index_of(addr) else {
                    return;
                };
                let was_valid = slot.is_valid();
                let on_device = slot.is_device();
                let Some(entry) = moved.at(index) else {
                    return each(index, Switched::Stays { on_device });
                };
                if !own.is_some_and(|own| own.is_marked(addr)) {
                    if let Ok(page) = PageRange::from_pages(addr, 1) {
                        Inner::<D>::forget_source(&mut dirty, page, slot);
                    }
                    return each(index, Switched::Lost);
                }
                let Some(number) = number(entry.destination) else {
                    // Not of this device: nothing may name the source any more.
                    *slot = Entry::NONE;
                    return each(index, Switched::Lost);
                };
                let writable = match entry.source {
                    Source::Hole => hole_writable,
                    Source::Page(_) => entry.writable,
                };
                if writable && was_valid {
                    later.insert(index);
                }
                *slot = Entry::device(number + (index - entry.index), writable && !was_valid);
                each(index, Switched::Yes { was_valid });
            });
            if result.is_err() {
                // The sources go in any case.
                table.for_each(piece, batch, |span, slot| {
                    Inner::<D>::retire(&mut dirty, span.pages(), *slot);
                    *slot = Entry::NONE;
                });
            }
            unwritten = table.unwritten(piece, batch);
            result
        });
        drop(guard);
        lap.end(Phase::Switch);
        let result = match result {
            Err(error) if error == ENOMEM => {
                for entry in moved.entries() {
                    let pages = entry.index..entry.index + entry.pages;
                    pages.for_each(|index| each(index, Switched::Lost));
                }
                Ok(())
            }
            result => result,
        };
        let flushed = Flushing::end(flush, inner);
        lap.end(Phase::Flush);
        inner.write_sizes(unwritten);
        if !later.is_empty() {
            permit_writes(inner, name, piece, &later);
            lap.end(Phase::Switch);
        }
        (flushed, result)
    }
}

impl<D: Device> Inner<D> {
    /// Removes an entry of a page that has moved and lost its mark. An event that clears a mark removes the entry, too,
    /// or takes write access only. A writable entry has come since, and names another page; a read-only one may name
    /// the source. It costs at most a fault.
    fn forget_source(dirty: &mut DirtyBatch, span: PageRange, slot: &mut Entry) {
        if slot.is_valid() && !slot.is_writable() {
            Self::retire(dirty, span.pages(), *slot);
            *slot = Entry::NONE;
        }
    }
}

/// What becomes of the entries that there are when pages have moved.
struct Switching<'a, D: Device> {
    piece: PageRange,
    moved: &'a Moved<'a>,
    /// The device's memory, if that is where the pages are now: all of a migration are in one memory.
    memory: Option<&'a Memory<D::Memory>>,
    own: Option<&'a Transaction>,
    /// The pages of the piece that still belong to it.
    owned: Mask,
}

impl<D: Device> Switching<'_, D> {
    fn owned(&self, span: PageRange) -> usize {
        self.own.map_or(0, |own| own.owned(span))
    }

    /// Whether the pages of a huge leaf do not share one fate.
    fn divides(&self, span: PageRange) -> bool {
        self.piece.index_of(span.start()).is_some_and(|first| {
            let pages = first..first + span.pages();
            any_moved(self.moved, &pages)
                && (moved_whole(self.moved, &pages).is_none() || self.owned(span) != span.pages())
        })
    }

    /// The new entry for `span`, page `first` of the piece, if that is what most are: one small page that has moved to
    /// new memory and is still its own.
    #[inline]
    fn small(&self, span: PageRange, first: usize, later: &mut Mask) -> Option<Entry> {
        let (pfn, writable) = self.moved.small_at(first)?;
        if span.pages() != 1 || !self.owned.has(first) {
            return None;
        }
        if writable {
            later.insert(first);
        }
        Some(Entry::system(pfn, false))
    }

    /// What becomes of any other one.
    // So that its variables are not in the loop.
    #[inline(never)]
    fn other(
        &self,
        span: PageRange,
        first: usize,
        slot: &mut Entry,
        dirty: &mut DirtyBatch,
        later: &mut Mask,
    ) -> Switched {
        let pages = first..first + span.pages();
        let whole = moved_whole(self.moved, &pages);
        if whole.is_none() && !any_moved(self.moved, &pages) {
            let on_device = slot.is_device();
            return Switched::Stays { on_device };
        }
        let owned = self.owned(span);
        if owned == 0 {
            Inner::<D>::forget_source(dirty, span, slot);
            return Switched::Lost;
        }
        let entry = match whole {
            Some(entry) if owned == span.pages() => entry,
            _ => {
                // It could not be split.
                Inner::<D>::retire(dirty, span.pages(), *slot);
                *slot = Entry::NONE;
                return Switched::Lost;
            }
        };
        let Some(new) = self.new_entry(&entry, pages.start) else {
            Inner::<D>::retire(dirty, span.pages(), *slot);
            *slot = Entry::NONE;
            return Switched::NoEntry;
        };
        *slot = new;
        if entry.writable {
            later.add(pages);
        }
        Switched::Yes { was_valid: true }
    }

    /// The entry for page `index`, which `entry` has moved; `None` if the device cannot use the new place: the memory of
    /// another device, or memory that its table cannot name.
    fn new_entry(&self, entry: &MovedEntry, index: usize) -> Option<Entry> {
        let pfn = entry.destination + (index - entry.index);
        let Some(memory) = self.memory else {
            let usable = self.moved.is_addressable(entry);
            return usable.then(|| Entry::system(pfn, false));
        };
        let new = Entry::device(memory.entry_number(pfn)?, false);
        Some(new).filter(|new| D::Format::can_hold(*new))
    }
}

/// Lets the device use what has moved, where it had an entry. Calls `each` for pages that had one. Without `with_write`
/// the entries stay read-only.
// A stack frame of its own.
#[inline(never)]
pub(super) fn switch_present<D: Device>(
    inner: &Inner<D>,
    name: Cookie,
    moved: &Moved<'_>,
    with_write: bool,
    mut each: impl FnMut(usize, Switched),
) -> Flushed {
    let piece = moved.range();
    let mut lap = Lap::start();
    let first = moved.entries().next().map(|first| first.destination);
    let home = inner.device.memory();
    let home = home.filter(|home| first.is_some_and(|pfn| home.lookup(pfn).is_some()));
    // Before the table lock, because it takes that of the answers of drivers.
    let tile = match home {
        Some(_) => None,
        None => first.and_then(|pfn| inner.reached(pfn)),
    };
    let mut guard = inner.lock();
    let State {
        table,
        transactions,
        ..
    } = &mut *guard;
    let own = transactions.get(name, piece.start());
    // Under the lock: see `Inner::elsewhere`.
    let memory = home.or(tile.filter(|tile| !tile.is_gone()));
    let (mut switched, mut later, mut all) = (0, Mask::EMPTY, Mask::EMPTY);
    all.add(0..piece.pages());
    let mut unwritten = None;
    let ((), flush) = inner.change(table, Some(piece), |table, batch| {
        let mut dirty = DirtyBatch::new();
        let switching = Switching::<D> {
            piece,
            moved,
            memory,
            own,
            owned: own.map_or(Mask::EMPTY, |own| own.owned_of(piece.start(), &all)),
        };
        // A huge leaf whose pages do not share one fate cannot stay one.
        let split = |span: PageRange| switching.divides(span);
        table.for_each_split(piece, batch, split, |span, slot| {
            let Some(first) = piece.index_of(span.start()) else {
                return;
            };
            if let Some(new) = switching.small(span, first, &mut later) {
                *slot = new;
                switched += 1;
                return each(first, Switched::Yes { was_valid: true });
            }
            let pages = span.pages();
            let what = switching.other(span, first, slot, &mut dirty, &mut later);
            if let Switched::Yes { .. } = what {
                switched += pages;
            }
            (first..first + pages).for_each(|index| each(index, what));
        });
        unwritten = table.unwritten(piece, batch);
    });
    drop(guard);
    lap.end(Phase::Switch);
    inner.stats.add(Counter::Switched, switched as u64);
    let flushed = Flushing::end(flush, inner);
    lap.end(Phase::Flush);
    inner.write_sizes(unwritten);
    if with_write && !later.is_empty() {
        permit_writes(inner, name, piece, &later);
        lap.end(Phase::Switch);
    }
    flushed
}

/// Gives write access to those of `pages`, by their index in `piece`, that still belong to the
/// migration. The flush of the switch is over. Context: may sleep; takes the table lock.
// Its frame is not needed by the copies that come before.
#[inline(never)]
fn permit_writes<D: Device>(inner: &Inner<D>, name: Cookie, piece: PageRange, pages: &Mask) {
    let mut guard = inner.lock();
    let State {
        table,
        transactions,
        ..
    } = &mut *guard;
    let Some(own) = transactions.get(name, piece.start()) else {
        return;
    };
    // Under the table lock, so that none of them is taken away meanwhile.
    let pages = own.owned_of(piece.start(), pages);
    let ((), flush) = inner.change(table, None, |table, batch| {
        table.for_each(piece, batch, |span, slot| {
            let Some(first) = piece.index_of(span.start()) else {
                return;
            };
            let permitted = match span.pages() {
                1 => pages.has(first),
                count => pages.count(first..first + count) == count,
            };
            if permitted && slot.is_valid() {
                *slot = slot.writable();
            }
        });
    });
    drop(guard);
    // None, unless the format has to replace what gains rights.
    let _flushed: Flushed = Flushing::end(flush, inner);
}

/// Removes the entries of pages that have moved, whoever owns them, and waits for the flush.
pub(super) fn forget_moved<D: Device>(inner: &Inner<D>, moved: &Moved<'_>) -> Flushed {
    let piece = moved.range();
    let mut guard = inner.lock();
    let ((), flush) = inner.change(&mut guard.table, Some(piece), |table, batch| {
        let mut dirty = DirtyBatch::new();
        table.for_each(piece, batch, |span, slot| {
            let pages = piece
                .index_of(span.start())
                .map(|first| first..first + span.pages());
            // A huge leaf that reaches beyond the range goes, too.
            if pages.is_none_or(|pages| any_moved(moved, &pages)) {
                Inner::<D>::retire(&mut dirty, span.pages(), *slot);
                *slot = Entry::NONE;
            }
        });
    });
    drop(guard);
    Flushing::end(flush, inner)
}
