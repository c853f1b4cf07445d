// SPDX-License-Identifier: GPL-2.0

//! The mirror's part in a migration, when pages have moved: its entries name the new places, where nobody else has
//! taken them away.

use super::{transaction::Transaction, Device, Inner, Mirror, State};
use crate::{
    mm::{
        addr::PageRange,
        migrate::{Entry as Moved, Migrated, Source},
        notifier::{Cookie, IntervalNotifier},
        page::DirtyBatch,
    },
    pgtable::{Entry, Flushed, Flushing, Spares},
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
fn any_moved(migrated: &Migrated<'_>, pages: &Range<usize>) -> bool {
    pages
        .clone()
        .any(|index| migrated.moved_at(index).is_some())
}

/// What moved as one, and all of `pages` with it.
#[inline]
fn moved_whole(migrated: &Migrated<'_>, pages: &Range<usize>) -> Option<Moved> {
    migrated
        .moved_at(pages.start)
        .filter(|moved| pages.end <= moved.index + moved.pages)
}

impl<D: Device> Mirror<D> {
    /// Lets the device use what moved to its memory, of which `number` gives the device page number
    /// by page frame. Calls `each` for every page of `piece`.
    ///
    /// Afterwards no entry names a source. If the table has no memory, all that moved is lost.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the device's page table cannot hold the addresses.
    #[expect(
        clippy::too_many_arguments,
        reason = "one call site; they live in different places"
    )]
    // Its frame is not needed by the copies that come before.
    #[inline(never)]
    pub(crate) fn switch_to_device(
        &self,
        name: Cookie,
        piece: PageRange,
        migrated: &Migrated<'_>,
        mut number: impl FnMut(usize) -> Option<usize>,
        hole_writable: bool,
        spares: &mut Spares<D::Format>,
        mut each: impl FnMut(usize, Switched),
    ) -> (Flushed, Result) {
        let inner = self.inner();
        let mut lap = Lap::start();
        let mut guard = self.notifier.lock();
        let State {
            table,
            transactions,
            ..
        } = &mut *guard;
        let own = transactions.get(name);
        let (result, flush) = inner.change(table, Some(piece), |table, batch| {
            let result = table.install(piece, spares, batch, |addr, slot| {
                let Some(index) = piece.index_of(addr) else {
                    return;
                };
                let was_valid = slot.is_valid();
                let on_device = slot.is_device();
                let Some(entry) = migrated.moved_at(index) else {
                    return each(index, Switched::Stays { on_device });
                };
                if !own.is_some_and(|own| own.is_marked(addr)) {
                    return each(index, Switched::Lost);
                }
                let Some(number) = number(entry.destination) else {
                    // Not of this device: nothing may name the source any more.
                    *slot = Entry::NONE;
                    return each(index, Switched::Lost);
                };
                let may_write = match entry.source {
                    Source::Hole => hole_writable,
                    Source::Page(_) => entry.writable,
                };
                *slot = Entry::device(number + (index - entry.index), may_write);
                each(index, Switched::Yes { was_valid });
            });
            if result.is_err() {
                // The sources go in any case.
                let mut dirty = DirtyBatch::new();
                table.for_each(piece, batch, |span, slot| {
                    Inner::<D>::retire(&mut dirty, span.pages(), *slot);
                    *slot = Entry::NONE;
                });
            }
            result
        });
        drop(guard);
        lap.end(Phase::Switch);
        let result = match result {
            Err(error) if error == ENOMEM => {
                for entry in migrated.moved() {
                    let pages = entry.index..entry.index + entry.pages;
                    pages.for_each(|index| each(index, Switched::Lost));
                }
                Ok(())
            }
            result => result,
        };
        let flushed = Flushing::end(flush, inner);
        lap.end(Phase::Flush);
        (flushed, result)
    }

    /// Lets the device use what moved to system memory, where it had an entry. Calls `each` for
    /// pages that had one or have moved.
    pub(crate) fn switch_to_system(
        &self,
        name: Cookie,
        piece: PageRange,
        migrated: &Migrated<'_>,
        each: impl FnMut(usize, Switched),
    ) -> Flushed {
        switch_to_system(&self.notifier, name, piece, migrated, true, each)
    }
}

/// What becomes of entries when pages have moved to system memory.
struct Switching<'a> {
    piece: PageRange,
    migrated: &'a Migrated<'a>,
    own: Option<&'a Transaction>,
    with_write: bool,
}

impl Switching<'_> {
    fn owned(&self, span: PageRange) -> usize {
        self.own.map_or(0, |own| own.owned(span))
    }

    /// Whether the pages of a huge leaf do not share one fate.
    fn divides(&self, span: PageRange) -> bool {
        self.piece.index_of(span.start()).is_some_and(|first| {
            let pages = first..first + span.pages();
            any_moved(self.migrated, &pages)
                && (moved_whole(self.migrated, &pages).is_none()
                    || self.owned(span) != span.pages())
        })
    }

    /// The new entry for `span`, page `first` of the piece, if that is what most are: one small page that has moved to
    /// new memory and is still its own.
    #[inline]
    fn small(&self, span: PageRange, first: usize) -> Option<Entry> {
        let (pfn, writable) = self.migrated.small_at(first)?;
        let is_own = span.pages() == 1 && self.own?.is_marked(span.start());
        is_own.then(|| Entry::system(pfn, writable && self.with_write))
    }

    /// What becomes of any other one.
    // So that its variables are not in the loop.
    #[inline(never)]
    fn other<D: Device>(
        &self,
        span: PageRange,
        first: usize,
        slot: &mut Entry,
        dirty: &mut DirtyBatch,
    ) -> Switched {
        let pages = first..first + span.pages();
        let whole = moved_whole(self.migrated, &pages);
        if whole.is_none() && !any_moved(self.migrated, &pages) {
            let on_device = slot.is_device();
            return Switched::Stays { on_device };
        }
        let owned = self.owned(span);
        if owned == 0 {
            // Others' events have removed what we do not own; if something is there, it has
            // come since.
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
        if !self.migrated.is_addressable(&entry) {
            // It is in the memory of another device, which this one cannot read.
            Inner::<D>::retire(dirty, span.pages(), *slot);
            *slot = Entry::NONE;
            return Switched::NoEntry;
        }
        let pfn = entry.destination + (pages.start - entry.index);
        *slot = Entry::system(pfn, entry.writable && self.with_write);
        Switched::Yes { was_valid: true }
    }
}

/// See [`Mirror::switch_to_system`]. Without `with_write` the new entries are read-only.
pub(super) fn switch_to_system<D: Device>(
    notifier: &IntervalNotifier<Inner<D>>,
    name: Cookie,
    piece: PageRange,
    migrated: &Migrated<'_>,
    with_write: bool,
    mut each: impl FnMut(usize, Switched),
) -> Flushed {
    let inner = notifier.subscriber();
    let mut lap = Lap::start();
    for entry in migrated.moved() {
        for index in entry.index..entry.index + entry.pages {
            each(index, Switched::NoEntry);
        }
    }
    let mut guard = notifier.lock();
    let State {
        table,
        transactions,
        ..
    } = &mut *guard;
    let own = transactions.get(name);
    let mut switched = 0;
    let ((), flush) = inner.change(table, Some(piece), |table, batch| {
        let mut dirty = DirtyBatch::new();
        let switching = Switching {
            piece,
            migrated,
            own,
            with_write,
        };
        // A huge leaf whose pages do not share one fate cannot stay one.
        let split = |span: PageRange| switching.divides(span);
        table.for_each_split(piece, batch, split, |span, slot| {
            let Some(first) = piece.index_of(span.start()) else {
                return;
            };
            let pages = span.pages();
            let what = match switching.small(span, first) {
                Some(new) => {
                    *slot = new;
                    Switched::Yes { was_valid: true }
                }
                None => switching.other::<D>(span, first, slot, &mut dirty),
            };
            if let Switched::Yes { .. } = what {
                switched += pages;
            }
            (first..first + pages).for_each(|index| each(index, what));
        });
    });
    drop(guard);
    lap.end(Phase::Switch);
    inner.stats.add(Counter::Switched, switched as u64);
    let flushed = Flushing::end(flush, inner);
    lap.end(Phase::Flush);
    flushed
}
