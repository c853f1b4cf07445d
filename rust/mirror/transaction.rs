// SPDX-License-Identifier: GPL-2.0

//! Which pages a running migration may still switch.
//!
//! The mmap lock does not keep others from removing a migration entry: `madvise`, userfaultfd and
//! the OOM reaper do it with the lock held for reading. So a migration announces itself under the
//! table lock before it isolates pages, with a mark for each; every invalidation that it has not
//! caused itself clears the marks in its range, and only marked pages are switched.

use crate::{
    inject::{fails, Point},
    mm::{
        addr::{PageRange, PMD_PAGES, PMD_SIZE},
        mask::Mask,
        notifier::{Cookie, Event},
        page::is_zero_pfn,
    },
    pgtable::Entry,
    space::{Destination, Identity, Request},
};
use kernel::{
    page::PAGE_SHIFT,
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation}, //
};

#[cfg(CONFIG_KUNIT = "y")]
mod tests;

const WORDS: usize = PMD_PAGES / u64::BITS as usize;

/// One running migration.
pub(crate) struct Transaction {
    request: Request,
    /// A set bit is a page that nobody else has touched.
    marks: [u64; WORDS],
}

impl Transaction {
    /// Whether the page at `addr` still belongs to it.
    #[inline]
    pub(crate) fn is_marked(&self, addr: usize) -> bool {
        self.request.range.index_of(addr).is_some_and(|index| {
            self.marks
                .get(index / 64)
                .is_some_and(|word| word & (1 << (index % 64)) != 0)
        })
    }

    /// Number of pages of `span` that are marked.
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

    /// The words of [`Self::marks`] that are about pages of `span`, and their bits.
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

    /// Number of pages of `span` that still belong to it.
    #[inline]
    pub(crate) fn owned(&self, span: PageRange) -> usize {
        match span.pages() {
            1 => usize::from(self.is_marked(span.start())),
            _ => self.marked(span),
        }
    }

    /// Those of `pages`, which are counted from `start` on, that still belong to it.
    pub(crate) fn owned_of(&self, start: usize, pages: &Mask) -> Mask {
        let mut owned = Mask::EMPTY;
        if start == self.request.range.start() {
            owned.insert_words(self.marks);
            owned.keep(pages);
            owned.remove(self.request.range.pages()..PMD_PAGES);
            return owned;
        }
        for page in (0..PMD_PAGES).filter(|page| pages.has(*page)) {
            // OVERFLOW: It is an address of the block if the page is in it.
            if self.is_marked(start.wrapping_add(page << PAGE_SHIFT)) {
                owned.insert(page);
            }
        }
        owned
    }

    /// Whether all pages of `span` still belong to it.
    #[inline]
    pub(crate) fn owns_all(&self, span: PageRange) -> bool {
        self.owned(span) == span.pages()
    }

    /// Whether its own event would keep only some pages of `span`.
    pub(crate) fn divides(&self, span: PageRange) -> bool {
        let owned = self.owned(span);
        owned != 0 && owned != span.pages()
    }

    /// Whether its own event leaves the entry for `span` alone: never if another one has announced that it
    /// takes a page there, for it has just lost the right to switch it.
    #[inline]
    pub(crate) fn keeps(&self, span: PageRange, entry: Entry) -> bool {
        self.owns_all(span)
            && !self.fills_hole(entry)
            // Pages that it does not take stay where they are.
            && (self.request.faultless || (entry.is_device() && !self.takes_device_pages()))
    }

    /// Whether the page of `entry` is the zero page, in whose place CPUs can write a new one before the
    /// device is told: no migration entry keeps them from coherent memory where nothing was.
    #[inline]
    fn fills_hole(&self, entry: Entry) -> bool {
        matches!(self.request.destination, Destination::Coherent(_))
            && !entry.is_device()
            && is_zero_pfn(entry.number())
    }

    /// Whether it takes pages out of a device's memory.
    pub(crate) fn takes_device_pages(&self) -> bool {
        self.request.identity != Identity::Name
    }
}

/// Where a migration is in the tree: by its first page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    start: usize,
    name: usize,
}

impl Key {
    fn of(request: &Request) -> Self {
        Self {
            start: request.range.start(),
            name: request.name.number(),
        }
    }

    /// Before all that have the page at `addr`: none is longer than 2 MiB.
    fn before(addr: usize) -> Self {
        Self {
            start: addr.saturating_sub(PMD_SIZE - 1),
            name: 0,
        }
    }
}

/// Memory for one migration among [`Transactions`].
pub(crate) struct Room(RBTreeNodeReservation<Key, Transaction>);

impl Room {
    /// Context: may sleep, so without the table lock. `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        if fails(Point::Transaction) {
            return Err(ENOMEM);
        }
        Ok(Self(RBTreeNodeReservation::new(GFP_KERNEL)?))
    }
}

/// The migrations of one mirror that run now, any number. Protected by the table lock.
pub(crate) struct Transactions(RBTree<Key, Transaction>);

impl Transactions {
    /// None.
    pub(crate) fn new() -> Self {
        Self(RBTree::new())
    }

    /// Announces a migration, with all pages of its range marked but for those that another one
    /// holds: if both kept an entry, neither would switch it, and it would outlive its page.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range is too long.
    pub(crate) fn begin(&mut self, request: Request, room: Room) -> Result {
        let range = request.range;
        if range.pages() > PMD_PAGES {
            return Err(EINVAL);
        }
        let mut new = Transaction {
            request,
            marks: [u64::MAX; WORDS],
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
        // No other has the name.
        let _none = self.0.insert(room.0.into_node(Key::of(&request), new));
        Ok(())
    }

    /// Ends the migration `name`, which began at `start`; `false` if there is none. What is returned frees its memory.
    pub(crate) fn end(&mut self, name: Cookie, start: usize) -> bool {
        let name = name.number();
        self.0.remove_node(&Key { start, name }).is_some()
    }

    /// The migrations that may have pages of `range`.
    fn within(&self, range: PageRange) -> impl Iterator<Item = &Transaction> {
        let mut next = Key::before(range.start());
        core::iter::from_fn(move || {
            let key = *self.0.cursor_lower_bound(&next)?.current().0;
            if key.start >= range.end() {
                return None;
            }
            next = Key {
                name: key.name + 1,
                ..key
            };
            self.0.get(&key)
        })
    }

    /// Calls `each` for the migrations that may have pages of `range`.
    fn each_within(&mut self, range: PageRange, mut each: impl FnMut(&mut Transaction)) {
        let first = Key::before(range.start());
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

    /// The migration `name`, if it runs and may have the page at `addr`.
    pub(crate) fn get(&self, name: Cookie, addr: usize) -> Option<&Transaction> {
        let page = PageRange::from_pages(addr, 1).ok()?;
        self.within(page)
            .find(|transaction| transaction.request.name == name)
    }

    /// Whether the page at `addr` still belongs to the migration `name`.
    pub(crate) fn owns(&self, name: Cookie, addr: usize) -> bool {
        self.get(name, addr)
            .is_some_and(|transaction| transaction.is_marked(addr))
    }

    /// Whether a migration is about to switch the entry at `addr`, so that none may be installed.
    pub(crate) fn holds(&self, addr: usize) -> bool {
        PageRange::from_pages(addr, 1)
            .is_ok_and(|page| self.within(page).any(|one| one.is_marked(addr)))
    }

    /// Whether a migration runs within `range`.
    pub(crate) fn overlap(&self, range: PageRange) -> bool {
        !self.0.is_empty()
            && self
                .within(range)
                .any(|transaction| transaction.request.range.intersect(&range).is_some())
    }

    /// Takes the pages of `range` away from the migration `name` only.
    pub(crate) fn release(&mut self, name: Cookie, range: PageRange) {
        self.each_within(range, |transaction| {
            if transaction.request.name == name {
                transaction.set(range, false);
            }
        });
    }

    /// Takes the pages of `range` away from all migrations.
    pub(crate) fn unmark(&mut self, range: PageRange) {
        if !self.0.is_empty() {
            self.each_within(range, |transaction| transaction.set(range, false));
        }
    }

    /// Takes note of an event: all migrations but the one that has caused it lose its pages.
    /// Returns the name of that one.
    #[inline]
    pub(crate) fn note(&mut self, event: &Event<'_>) -> Option<Cookie> {
        match self.0.is_empty() {
            true => None,
            false => self.note_all(event),
        }
    }

    // Not in the way of events while no migration runs.
    #[inline(never)]
    fn note_all(&mut self, event: &Event<'_>) -> Option<Cookie> {
        let mut own = None;
        self.each_within(event.range, |transaction| {
            if transaction.request.has_caused(event) {
                own = Some(transaction.request.name);
            } else {
                transaction.set(event.range, false);
            }
        });
        own
    }

    #[cfg(CONFIG_KUNIT = "y")]
    fn owns_all(&self, name: Cookie, span: PageRange) -> bool {
        self.get(name, span.start())
            .is_some_and(|one| one.owns_all(span))
    }

    #[cfg(CONFIG_KUNIT = "y")]
    fn owns_any(&self, name: Cookie, span: PageRange) -> bool {
        self.get(name, span.start())
            .is_some_and(|one| one.owned(span) != 0)
    }

    #[cfg(CONFIG_KUNIT = "y")]
    fn divides(&self, name: Cookie, span: PageRange) -> bool {
        self.get(name, span.start())
            .is_some_and(|one| one.divides(span))
    }

    #[cfg(CONFIG_KUNIT = "y")]
    fn keeps(&self, name: Cookie, span: PageRange, entry: Entry) -> bool {
        self.get(name, span.start())
            .is_some_and(|transaction| transaction.keeps(span, entry))
    }
}
