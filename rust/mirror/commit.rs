// SPDX-License-Identifier: GPL-2.0

//! Commit of a migration in a mirror: replaces the entries of pages that have moved.
//!
//! Only entries whose mark is intact are replaced. A foreign event clears the mark of a page when
//! it removes or write-protects the entry.
//!
//! A replaced entry is read-only first. Until the flush of the replacement completes, one engine
//! may still read the source page through its TLB, and would miss data that another engine writes
//! to the destination. After the flush, pages whose mark is still intact become writable again.
//!
//! In a mirror that has joined the migration of another mirror or of a CPU fault, only pages whose
//! entry was writable when it joined become writable again, and only when all mirrors were flushed.
//! `Documentation/faultless.rst` has the proof that the CPU may write these pages.
//!
//! `present` replaces entries that the mirror has, for a migration to any memory. `writes` makes
//! them writable again.

use super::{
    in_flight::InFlightMigration,
    Device,
    Mirror,
    MirrorShared,
    MirrorState, //
};
use crate::{
    debug::timing::{
        Phase,
        Stopwatch, //
    },
    kernel::identity::MigrationId,
    memory::Memory,
    mm::{
        addr::PageRange,
        folio::DirtyBatch,
        migrate::{
            MigrateEntry,
            Moved,
            Source, //
        },
        page_set::PageSet, //
    },
    pgtable::{
        DevicePte,
        Flushed,
        Format,
        Prealloc, //
    }, //
};
use core::ops::Range;
use kernel::prelude::*;

mod present;
mod writes;

pub(super) use present::{
    switch_present,
    WriteAccess, //
};
pub(super) use writes::permit_joined_writes;
use writes::permit_writes;

/// Result of a commit for one page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommitResult {
    /// The page has moved, and its entry was replaced or created.
    Yes {
        /// Whether the device had an entry before.
        was_valid: bool,
    },
    /// The page has moved, and the device had no entry for it.
    NoEntry,
    /// The page has moved, and its entry was removed or its mark was cleared meanwhile.
    Lost,
    /// The page has not moved.
    Stays {
        /// Whether the device's entry maps device memory.
        on_device: bool,
    },
}

/// Returns whether any of `pages` has moved.
#[inline]
fn any_moved(moved: &Moved<'_>, pages: &Range<usize>) -> bool {
    pages.clone().any(|index| moved.at(index).is_some())
}

/// Returns the folio that contains all of `pages`, if it has moved whole.
#[inline]
fn moved_whole(moved: &Moved<'_>, pages: &Range<usize>) -> Option<MigrateEntry> {
    moved
        .at(pages.start)
        .filter(|entry| pages.end <= entry.index + entry.pages)
}

impl<D: Device> Mirror<D> {
    /// Replaces or creates the entries of pages that moved to the device's memory. `number` returns
    /// the device page number of a page frame. Calls `each` for every page of the range.
    ///
    /// Afterwards no entry maps a source page. If table pages cannot be allocated, the entries of
    /// all pages that have moved are removed.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the format cannot encode the addresses.
    ///
    /// # Context
    ///
    /// May sleep. Takes the table lock.
    // Not inlined, so that its variables do not enlarge the stack frame of the copies.
    #[inline(never)]
    pub(super) fn switch_to_device(
        &self,
        name: MigrationId,
        moved: &Moved<'_>,
        mut number: impl FnMut(usize) -> Option<usize>,
        hole_writable: bool,
        prealloc: &mut Prealloc<D::Format>,
        mut each: impl FnMut(usize, CommitResult),
    ) -> (Flushed<'_>, Result) {
        let inner = self.inner();
        let piece = moved.range();
        let mut stopwatch = Stopwatch::start();
        let mut guard = self.inner().lock();
        let MirrorState {
            table, in_flight, ..
        } = &mut *guard;
        let own = in_flight.get(name, piece.start());
        let mut later = PageSet::EMPTY;
        let mut unwritten = None;
        let (result, flush) = inner.change_all(table, piece, |table, batch| {
            let mut dirty = DirtyBatch::empty();
            let result = table.install(piece, prealloc, batch, |addr, slot| {
                let Some(index) = piece.index_of(addr) else {
                    return;
                };
                let was_valid = slot.is_valid();
                let on_device = slot.is_device();
                let Some(entry) = moved.at(index) else {
                    return each(index, CommitResult::Stays { on_device });
                };
                if !own.is_some_and(|own| own.is_marked(addr)) {
                    if let Ok(page) = PageRange::from_pages(addr, 1) {
                        MirrorShared::<D>::forget_source(&mut dirty, page, slot);
                    }
                    return each(index, CommitResult::Lost);
                }
                let Some(number) = number(entry.destination) else {
                    // The page moved to other memory. The entry must not keep mapping the source.
                    *slot = DevicePte::NONE;
                    return each(index, CommitResult::Lost);
                };
                let writable = match entry.source {
                    Source::Hole => hole_writable,
                    Source::Page(_) => entry.writable,
                };
                if writable && was_valid {
                    later.insert(index);
                }
                *slot = DevicePte::device(number + (index - entry.index), writable && !was_valid);
                each(index, CommitResult::Yes { was_valid });
            });
            if result.is_err() {
                // The source pages are freed even if no entry can be installed.
                table.for_each(piece, batch, |span, slot| {
                    MirrorShared::<D>::retire(&mut dirty, span.pages(), *slot);
                    *slot = DevicePte::NONE;
                });
            }
            unwritten = table.unwritten(piece, batch);
            result
        });
        drop(guard);
        stopwatch.end(Phase::Switch);
        let result = match result {
            Err(error) if error == ENOMEM => {
                for entry in moved.entries() {
                    let pages = entry.index..entry.index + entry.pages;
                    pages.for_each(|index| each(index, CommitResult::Lost));
                }
                Ok(())
            }
            result => result,
        };
        let flushed = flush.wait(inner);
        stopwatch.end(Phase::Flush);
        inner.write_sizes(unwritten);
        if !later.is_empty() {
            permit_writes(inner, name, piece, Some(&later));
            stopwatch.end(Phase::Switch);
        }
        (flushed, result)
    }
}

impl<D: Device> MirrorShared<D> {
    /// Removes the entry of a page that has moved and lost its mark, if the entry may map the
    /// source.
    ///
    /// An event that clears the mark removes or write-protects the entry. A writable entry was
    /// installed after that, and maps another page. A read-only entry may map the source. If it
    /// does not, its removal costs a device fault.
    fn forget_source(dirty: &mut DirtyBatch, span: PageRange, slot: &mut DevicePte) {
        if slot.is_valid() && !slot.is_writable() {
            Self::retire(dirty, span.pages(), *slot);
            *slot = DevicePte::NONE;
        }
    }
}

/// Replacement of present entries after pages have moved.
struct Commit<'a, D: Device> {
    piece: PageRange,
    moved: &'a Moved<'a>,
    /// The device's memory that contains the destination pages; `None` for other destinations. All
    /// destinations of a migration are in the same memory.
    memory: Option<&'a Memory<D::Memory>>,
    own: Option<&'a InFlightMigration>,
    /// Pages of the piece whose mark is intact.
    owned: PageSet,
}

impl<D: Device> Commit<'_, D> {
    /// Returns the number of pages of `span` whose mark is intact.
    fn owned(&self, span: PageRange) -> usize {
        self.own.map_or(0, |own| own.owned(span))
    }

    /// Returns whether the huge leaf for `span` must be split, because some of its pages have
    /// moved, but not all as one folio with intact marks.
    fn divides(&self, span: PageRange) -> bool {
        self.piece.index_of(span.start()).is_some_and(|first| {
            let pages = first..first + span.pages();
            any_moved(self.moved, &pages)
                && (moved_whole(self.moved, &pages).is_none() || self.owned(span) != span.pages())
        })
    }

    /// Returns the new entry for `span`, which begins at page `first` of the piece, in the common
    /// case: a small page that has moved to newly allocated system memory and whose mark is intact.
    #[inline]
    fn small(&self, span: PageRange, first: usize, later: &mut PageSet) -> Option<DevicePte> {
        let (pfn, writable) = self.moved.small_at(first)?;
        if span.pages() != 1 || !self.owned.has(first) {
            return None;
        }
        if writable {
            later.insert(first);
        }
        Some(DevicePte::system(pfn, false))
    }

    /// Replaces or removes the entry for `span` in all cases that [`Self::small`] does not handle.
    // Not inlined, so that its variables use no registers in the loop.
    #[inline(never)]
    fn other(
        &self,
        span: PageRange,
        first: usize,
        slot: &mut DevicePte,
        dirty: &mut DirtyBatch,
        later: &mut PageSet,
    ) -> CommitResult {
        let pages = first..first + span.pages();
        let whole = moved_whole(self.moved, &pages);
        if whole.is_none() && !any_moved(self.moved, &pages) {
            let on_device = slot.is_device();
            return CommitResult::Stays { on_device };
        }
        let owned = self.owned(span);
        if owned == 0 {
            MirrorShared::<D>::forget_source(dirty, span, slot);
            return CommitResult::Lost;
        }
        let entry = match whole {
            Some(entry) if owned == span.pages() => entry,
            _ => {
                // The huge leaf could not be split.
                MirrorShared::<D>::retire(dirty, span.pages(), *slot);
                *slot = DevicePte::NONE;
                return CommitResult::Lost;
            }
        };
        let Some(new) = self.new_entry(&entry, pages.start) else {
            MirrorShared::<D>::retire(dirty, span.pages(), *slot);
            *slot = DevicePte::NONE;
            return CommitResult::NoEntry;
        };
        *slot = new;
        if entry.writable {
            later.add(pages);
        }
        CommitResult::Yes { was_valid: true }
    }

    /// Returns the read-only entry for the destination of page `index`, which moved with `entry`.
    /// Returns `None` if the device cannot use the destination, because it is in the memory of
    /// another device, or because the format cannot encode it.
    fn new_entry(&self, entry: &MigrateEntry, index: usize) -> Option<DevicePte> {
        let pfn = entry.destination + (index - entry.index);
        let Some(memory) = self.memory else {
            let usable = self.moved.is_addressable(entry);
            return usable.then(|| DevicePte::system(pfn, false));
        };
        let new = DevicePte::device(memory.entry_number(pfn)?, false);
        Some(new).filter(|new| D::Format::can_hold(*new))
    }
}

/// Removes the entries of pages that have moved, with or without a mark, and waits for the flush.
///
/// # Context
///
/// May sleep. Takes the table lock.
pub(super) fn forget_moved<'m, D: Device>(
    inner: &'m MirrorShared<D>,
    moved: &Moved<'_>,
) -> Flushed<'m> {
    let piece = moved.range();
    let mut guard = inner.lock();
    let ((), flush) = inner.change_all(&mut guard.table, piece, |table, batch| {
        let mut dirty = DirtyBatch::empty();
        table.for_each(piece, batch, |span, slot| {
            let pages = piece
                .index_of(span.start())
                .map(|first| first..first + span.pages());
            // A huge leaf that extends beyond the range is removed whole.
            if pages.is_none_or(|pages| any_moved(moved, &pages)) {
                MirrorShared::<D>::retire(&mut dirty, span.pages(), *slot);
                *slot = DevicePte::NONE;
            }
        });
    });
    drop(guard);
    flush.wait(inner)
}
