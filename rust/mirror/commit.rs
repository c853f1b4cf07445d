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

use super::{
    in_flight::InFlightMigration,
    Device,
    Mirror,
    MirrorShared,
    MirrorState, //
};
use crate::{
    debug::{
        stats::Counter,
        timing::{
            Phase,
            Stopwatch, //
        }, //
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
        Flushing,
        Format,
        Prealloc, //
    }, //
};
use core::ops::Range;
use kernel::prelude::*;

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

/// When the commit makes replaced entries writable again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteAccess {
    /// After the flush, because the mirror announced the migration and all others were flushed.
    AfterFlush,
    /// When the mirror leaves the migration, by [`permit_joined_writes`], because it has joined.
    OnLeave,
}

/// Replaces the present entries of pages that have moved, and waits for the flush. Calls `each` for
/// pages that had an entry.
///
/// # Context
///
/// May sleep. Takes the table lock.
// Not inlined, so that its variables do not enlarge the stack frames of the callers.
#[inline(never)]
pub(super) fn switch_present<'m, D: Device>(
    inner: &'m MirrorShared<D>,
    name: MigrationId,
    moved: &Moved<'_>,
    write: WriteAccess,
    mut each: impl FnMut(usize, CommitResult),
) -> Flushed<'m> {
    let piece = moved.range();
    let mut stopwatch = Stopwatch::start();
    let first = moved.entries().next().map(|first| first.destination);
    let own_memory = inner.device.memory();
    let own_memory = own_memory.filter(|own| first.is_some_and(|pfn| own.lookup(pfn).is_some()));
    // Looked up before the table lock is taken, because this takes the lock of the connection
    // cache.
    let tile = match own_memory {
        Some(_) => None,
        None => first.and_then(|pfn| inner.reached(pfn)),
    };
    let mut guard = inner.lock();
    let MirrorState {
        table, in_flight, ..
    } = &mut *guard;
    let own = in_flight.get(name, piece.start());
    // Recheck under the table lock, see `MirrorShared::elsewhere`.
    let memory = own_memory.or(tile.filter(|tile| !tile.is_gone()));
    let mut switched = 0;
    let mut later = PageSet::EMPTY;
    let mut all = PageSet::EMPTY;
    all.add(0..piece.pages());
    let mut unwritten = None;
    let ((), flush) = inner.change_all(table, piece, |table, batch| {
        let mut dirty = DirtyBatch::empty();
        let switching = Commit::<D> {
            piece,
            moved,
            memory,
            own,
            owned: own.map_or(PageSet::EMPTY, |own| own.owned_of(piece.start(), &all)),
        };
        let split = |span: PageRange| switching.divides(span);
        table.for_each_split(piece, batch, split, |span, slot| {
            let Some(first) = piece.index_of(span.start()) else {
                return;
            };
            if let Some(new) = switching.small(span, first, &mut later) {
                *slot = new;
                switched += 1;
                return each(first, CommitResult::Yes { was_valid: true });
            }
            let pages = span.pages();
            let what = switching.other(span, first, slot, &mut dirty, &mut later);
            if let CommitResult::Yes { .. } = what {
                switched += pages;
            }
            (first..first + pages).for_each(|index| each(index, what));
        });
        unwritten = table.unwritten(piece, batch);
    });
    if write == WriteAccess::OnLeave {
        in_flight.keep_writable(name, piece, &later);
    }
    drop(guard);
    stopwatch.end(Phase::Switch);
    inner.stats.add(Counter::Switched, switched as u64);
    let flushed = flush.wait(inner);
    stopwatch.end(Phase::Flush);
    inner.write_sizes(unwritten);
    if write == WriteAccess::AfterFlush && !later.is_empty() {
        permit_writes(inner, name, piece, Some(&later));
        stopwatch.end(Phase::Switch);
    }
    flushed
}

/// Makes the entries writable again that were writable when the mirror joined the migration `name`
/// of `range`, as far as their pages have moved and their marks are intact. Called when the
/// migration was finalized, so that all mirrors were flushed and the CPU page table maps the
/// destinations.
///
/// # Context
///
/// May sleep. Takes the table lock.
pub(super) fn permit_joined_writes<D: Device>(
    inner: &MirrorShared<D>,
    name: MigrationId,
    range: PageRange,
) {
    permit_writes(inner, name, range, None);
}

/// Makes the entries of those `pages` writable whose mark is intact. `pages` has indices in
/// `piece`; `None` stands for the pages that a joined mirror has recorded, and `piece` is the range
/// of the migration then. Called after the flush of the replaced entries.
///
/// # Context
///
/// May sleep. Takes the table lock.
// Not inlined, so that its variables do not enlarge the stack frame of the copies.
#[inline(never)]
fn permit_writes<D: Device>(
    inner: &MirrorShared<D>,
    name: MigrationId,
    piece: PageRange,
    pages: Option<&PageSet>,
) {
    let mut guard = inner.lock();
    let MirrorState {
        table, in_flight, ..
    } = &mut *guard;
    let Some(own) = in_flight.get(name, piece.start()) else {
        return;
    };
    let pages = pages.unwrap_or(own.writable());
    // Read the marks under the table lock, so that no concurrent event clears them before the
    // entries change.
    let pages = own.owned_of(piece.start(), pages);
    if pages.is_empty() {
        return;
    }
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
    // A flush is necessary only if the format requires break-before-make for added permissions.
    let _flushed: Flushed<'_> = Flushing::end(flush, inner);
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
