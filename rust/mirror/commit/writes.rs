// SPDX-License-Identifier: GPL-2.0

//! Write access of replaced entries: granted again after the flush, to pages whose mark is intact.

use crate::{
    kernel::identity::MigrationId,
    mirror::{
        Device,
        MirrorShared,
        MirrorState, //
    },
    mm::{
        addr::PageRange,
        page_set::PageSet, //
    },
    pgtable::{
        Flushed,
        Flushing, //
    }, //
};

/// Makes the entries writable again that were writable when the mirror joined the migration `name`
/// of `range`, as far as their pages have moved and their marks are intact. Called when the
/// migration was finalized, so that all mirrors were flushed and the CPU page table maps the
/// destinations.
///
/// # Context
///
/// May sleep. Takes the table lock.
pub(in crate::mirror) fn permit_joined_writes<D: Device>(
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
pub(super) fn permit_writes<D: Device>(
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
