// SPDX-License-Identifier: GPL-2.0

//! Marks of in-flight migrations: which entries a migration may still switch.
//!
//! The mmap lock does not prevent the removal of migration entries. `madvise()`, userfaultfd and
//! the OOM reaper remove them with the lock held for reading. Therefore a migration announces
//! itself under the table lock before it isolates pages, with a mark for each page. Each
//! invalidation that the migration did not cause clears the marks in its range. The migration
//! switches only entries that are still marked.

use crate::{
    inject::{
        fails,
        FailPoint, //
    },
    kernel::identity::MigrationId,
    mm::{
        addr::{
            PageRange,
            PMD_PAGES,
            PMD_SIZE, //
        },
        folio::is_zero_pfn,
        notifier::NotifierRange,
        page_set::PageSet, //
    },
    pgtable::DevicePte,
    space::{
        Destination,
        EventMatch,
        MigrationDesc, //
    }, //
};
use kernel::{
    page::PAGE_SHIFT,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    }, //
};

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
mod tests;

/// Words of the marks. A step isolates at most the pages of a PMD, because a huge folio moves as a
/// whole.
const MARK_WORDS: usize = PMD_PAGES / u64::BITS as usize;

/// An in-flight migration.
pub(crate) struct InFlightMigration {
    request: MigrationDesc,
    /// Marks. A bit is set if no foreign event has affected the page. Bits beyond the range are
    /// clear.
    marks: [u64; MARK_WORDS],
    /// Pages whose entries were writable when the mirror joined the migration, and after the switch
    /// those among them that have moved. Empty in the mirror that announced the migration.
    writable: PageSet,
}

impl InFlightMigration {
    /// Returns whether the page at `addr` is marked.
    #[inline]
    pub(crate) fn is_marked(&self, addr: usize) -> bool {
        self.request.range.index_of(addr).is_some_and(|index| {
            self.marks
                .get(index / 64)
                .is_some_and(|word| word & (1 << (index % 64)) != 0)
        })
    }

    /// Returns the number of marked pages of `span`.
    fn marked(&self, span: PageRange) -> usize {
        self.words(span)
            .filter_map(|(index, bits)| Some((self.marks.get(index)? & bits).count_ones() as usize))
            .sum()
    }

    fn set(&mut self, range: PageRange, marked: bool) {
        for (index, bits) in self.words(range) {
            if let Some(word) = self.marks.get_mut(index) {
                *word = if marked { *word | bits } else { *word & !bits };
            }
        }
    }

    /// Returns the indices of the words of [`Self::marks`] for the pages of `span`, and the bits in
    /// them.
    fn words(&self, span: PageRange) -> impl Iterator<Item = (usize, u64)> {
        let both = self.request.range.intersect(&span);
        let first = both.and_then(|both| self.request.range.index_of(both.start()));
        let mut at = first.unwrap_or(0);
        let end = at + both.map_or(0, |both| both.pages());
        core::iter::from_fn(move || {
            let count = (end - at).min(64 - at % 64);
            if count == 0 {
                return None;
            }
            let found = (at / 64, (u64::MAX >> (64 - count)) << (at % 64));
            at += count;
            Some(found)
        })
    }

    /// Returns the number of marked pages of `span`.
    #[inline]
    pub(crate) fn owned(&self, span: PageRange) -> usize {
        match span.pages() {
            1 => usize::from(self.is_marked(span.start())),
            _ => self.marked(span),
        }
    }

    /// Returns the marked pages among `pages`, whose indices are relative to `start`.
    pub(crate) fn owned_of(&self, start: usize, pages: &PageSet) -> PageSet {
        let mut owned = PageSet::EMPTY;
        if start == self.request.range.start() {
            owned.insert_words(self.marks);
            owned.keep(pages);
            return owned;
        }
        for page in (0..PMD_PAGES).filter(|page| pages.has(*page)) {
            // OVERFLOW: The result is an address of the block if the page is in the block.
            // Otherwise the page is not marked.
            if self.is_marked(start.wrapping_add(page << PAGE_SHIFT)) {
                owned.insert(page);
            }
        }
        owned
    }

    /// Returns the pages, relative to the start of the migration, that become writable again when
    /// the mirror leaves the migration, unless their marks are cleared until then.
    pub(crate) fn writable(&self) -> &PageSet {
        &self.writable
    }

    /// Returns whether all pages of `span` are marked.
    #[inline]
    pub(crate) fn owns_all(&self, span: PageRange) -> bool {
        self.owned(span) == span.pages()
    }

    /// Returns whether some pages of `span`, but not all, are marked. The migration's own event
    /// would keep only these.
    pub(crate) fn divides(&self, span: PageRange) -> bool {
        let owned = self.owned(span);
        owned != 0 && owned != span.pages()
    }

    /// Returns whether the migration's own event leaves the entry for `span` unchanged. It does not
    /// if any page of `span` is unmarked, because the migration may not switch the entry then.
    #[inline]
    pub(crate) fn keeps(&self, span: PageRange, entry: DevicePte) -> bool {
        self.owns_all(span)
            && !self.fills_hole(entry)
            // Pages that the migration does not take stay at their places.
            && (self.request.faultless || (entry.is_device() && !self.takes_device_pages()))
    }

    /// Returns whether the migration's own event leaves all entries of `range` unchanged, whatever
    /// they are. They need not be visited then.
    ///
    /// A huge leaf that could not be split may extend beyond the range. It stays, too, and the
    /// commit removes it.
    #[inline]
    pub(crate) fn keeps_all(&self, range: PageRange) -> bool {
        self.request.faultless
            && !matches!(self.request.destination, Destination::Coherent(_))
            && self.owns_all(range)
    }

    /// Returns whether the migration allocates a page of coherent memory for an entry that maps the
    /// zero page. A hole has no migration entry that stops CPUs. Therefore a CPU can write to the
    /// new page before the device is notified.
    #[inline]
    fn fills_hole(&self, entry: DevicePte) -> bool {
        matches!(self.request.destination, Destination::Coherent(_))
            && !entry.is_device()
            && is_zero_pfn(entry.number())
    }

    /// Returns whether the migration takes pages from device memory.
    pub(crate) fn takes_device_pages(&self) -> bool {
        self.request.identity != EventMatch::Name
    }
}

/// Key of a migration in the tree, ordered by its first page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct MigrationKey {
    start: usize,
    name: usize,
}

impl MigrationKey {
    fn of(request: &MigrationDesc) -> Self {
        Self {
            start: request.range.start(),
            name: request.name.number(),
        }
    }

    /// Returns a key that precedes all migrations with the page at `addr`, because none is longer
    /// than [`PMD_SIZE`].
    fn before(addr: usize) -> Self {
        Self {
            start: addr.saturating_sub(PMD_SIZE - 1),
            name: 0,
        }
    }
}

/// Preallocated tree node for one migration of [`InFlightMigrations`].
pub(crate) struct InFlightNode(RBTreeNodeReservation<MigrationKey, InFlightMigration>);

impl InFlightNode {
    /// Allocates a node.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep. The table lock must not be held.
    pub(crate) fn new() -> Result<Self> {
        if fails(FailPoint::Announce) {
            return Err(ENOMEM);
        }
        Ok(Self(RBTreeNodeReservation::new(GFP_KERNEL)?))
    }
}

/// In-flight migrations of one mirror. Protected by the table lock.
pub(crate) struct InFlightMigrations(RBTree<MigrationKey, InFlightMigration>);

impl InFlightMigrations {
    /// Creates an empty set.
    pub(crate) fn new() -> Self {
        Self(RBTree::new())
    }

    /// Announces a migration. Marks all pages of its range, except those that another migration has
    /// marked: if both kept an entry, neither would switch it, and the entry would outlive its
    /// page.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the range is longer than [`PMD_SIZE`].
    pub(crate) fn begin(&mut self, request: MigrationDesc, node: InFlightNode) -> Result {
        let range = request.range;
        if range.pages() > PMD_PAGES {
            return Err(EINVAL);
        }
        let mut all = PageSet::EMPTY;
        all.add(0..range.pages());
        let mut new = InFlightMigration {
            request,
            marks: all.words(),
            writable: PageSet::EMPTY,
        };
        for other in self.within(range) {
            let Some(both) = other.request.range.intersect(&range) else {
                continue;
            };
            for index in 0..both.pages() {
                let page = PageRange::from_pages(both.address(index), 1)?;
                if other.is_marked(page.start()) {
                    new.set(page, false);
                }
            }
        }
        // Names are unique.
        let _none = self
            .0
            .insert(node.0.into_node(MigrationKey::of(&request), new));
        Ok(())
    }

    /// Removes the migration `name`, which began at `start`. Returns `false` if there is none.
    pub(crate) fn end(&mut self, name: MigrationId, start: usize) -> bool {
        let name = name.number();
        self.0.remove_node(&MigrationKey { start, name }).is_some()
    }

    /// Returns the migrations that may have pages of `range`.
    fn within(&self, range: PageRange) -> impl Iterator<Item = &InFlightMigration> {
        let mut next = MigrationKey::before(range.start());
        core::iter::from_fn(move || {
            let key = *self.0.cursor_lower_bound(&next)?.current().0;
            if key.start >= range.end() {
                return None;
            }
            next = MigrationKey {
                name: key.name + 1,
                ..key
            };
            self.0.get(&key)
        })
    }

    /// Calls `each` for the migrations that may have pages of `range`.
    fn each_within(&mut self, range: PageRange, mut each: impl FnMut(&mut InFlightMigration)) {
        let first = MigrationKey::before(range.start());
        let mut next = self.0.cursor_lower_bound_mut(&first);
        while let Some(mut cursor) = next {
            let (key, found) = cursor.current_mut();
            if key.start >= range.end() {
                break;
            }
            each(found);
            next = cursor.move_next();
        }
    }

    /// Returns the migration `name`, if it is in flight and may have the page at `addr`.
    pub(crate) fn get(&self, name: MigrationId, addr: usize) -> Option<&InFlightMigration> {
        let page = PageRange::from_pages(addr, 1).ok()?;
        self.within(page)
            .find(|migration| migration.request.name == name)
    }

    /// Returns whether the migration `name` has marked the page at `addr`.
    pub(crate) fn owns(&self, name: MigrationId, addr: usize) -> bool {
        self.get(name, addr)
            .is_some_and(|migration| migration.is_marked(addr))
    }

    /// Returns whether a migration has marked the page at `addr`. No entry may be installed for it
    /// then.
    pub(crate) fn holds(&self, addr: usize) -> bool {
        PageRange::from_pages(addr, 1)
            .is_ok_and(|page| self.within(page).any(|one| one.is_marked(addr)))
    }

    /// Returns whether the range of an in-flight migration overlaps `range`.
    pub(crate) fn overlap(&self, range: PageRange) -> bool {
        !self.0.is_empty()
            && self
                .within(range)
                .any(|migration| migration.request.range.intersect(&range).is_some())
    }

    /// Clears the marks of the migration `name` in `range`.
    pub(crate) fn release(&mut self, name: MigrationId, range: PageRange) {
        self.each_within(range, |migration| {
            if migration.request.name == name {
                migration.set(range, false);
            }
        });
    }

    /// Records that of the migration `name`, which the mirror joins, the entries of `pages` were
    /// writable. `pages` is relative to `start`, where the migration begins.
    pub(crate) fn set_writable(&mut self, name: MigrationId, start: usize, pages: &PageSet) {
        let name = name.number();
        if let Some(one) = self.0.get_mut(&MigrationKey { start, name }) {
            one.writable = *pages;
        }
    }

    /// Removes all pages except `pages` from those that [`Self::set_writable`] has recorded.
    /// `pages` is relative to the start of `piece`, the part of the migration that was isolated.
    pub(crate) fn keep_writable(&mut self, name: MigrationId, piece: PageRange, pages: &PageSet) {
        self.each_within(piece, |one| {
            if one.request.name == name {
                // A migration isolates its whole range. Otherwise the indices would differ.
                let isolated = Some(pages).filter(|_| one.request.range.start() == piece.start());
                one.writable.keep(isolated.unwrap_or(&PageSet::EMPTY));
            }
        });
    }

    /// Clears the marks of all migrations in `range`.
    pub(crate) fn unmark(&mut self, range: PageRange) {
        if !self.0.is_empty() {
            self.each_within(range, |migration| migration.set(range, false));
        }
    }

    /// Handles a notifier event: clears the marks in its range of all migrations except the one
    /// that caused the event. Returns the name of that migration.
    #[inline]
    pub(crate) fn handle_event(&mut self, event: &NotifierRange<'_>) -> Option<MigrationId> {
        if self.0.is_empty() {
            None
        } else {
            self.note_all(event)
        }
    }

    // Not inlined, because most events occur while no migration is in flight.
    #[inline(never)]
    fn note_all(&mut self, event: &NotifierRange<'_>) -> Option<MigrationId> {
        let mut own = None;
        self.each_within(event.range, |migration| {
            if migration.request.has_caused(event) {
                own = Some(migration.request.name);
            } else {
                migration.set(event.range, false);
            }
        });
        own
    }

    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    fn owns_all(&self, name: MigrationId, span: PageRange) -> bool {
        self.get(name, span.start())
            .is_some_and(|one| one.owns_all(span))
    }

    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    fn owns_any(&self, name: MigrationId, span: PageRange) -> bool {
        self.get(name, span.start())
            .is_some_and(|one| one.owned(span) != 0)
    }

    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    fn divides(&self, name: MigrationId, span: PageRange) -> bool {
        self.get(name, span.start())
            .is_some_and(|one| one.divides(span))
    }

    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    fn keeps(&self, name: MigrationId, span: PageRange, entry: DevicePte) -> bool {
        self.get(name, span.start())
            .is_some_and(|migration| migration.keeps(span, entry))
    }
}
