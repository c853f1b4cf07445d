// SPDX-License-Identifier: GPL-2.0

//! The pass of a commit over the entries that the mirror has, for a migration to any memory.

#[cfg(doc)]
use super::permit_joined_writes;
use super::{
    writes::permit_writes,
    Commit,
    CommitResult, //
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
    mirror::{
        Device,
        MirrorShared,
        MirrorState, //
    },
    mm::{
        addr::PageRange,
        folio::DirtyBatch,
        migrate::Moved,
        page_set::PageSet, //
    },
    pgtable::Flushed, //
};

/// When the commit makes replaced entries writable again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::mirror) enum WriteAccess {
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
pub(in crate::mirror) fn switch_present<'m, D: Device>(
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
