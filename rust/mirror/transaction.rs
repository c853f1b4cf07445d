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
        addr::{PageRange, PMD_PAGES},
        notifier::{Cookie, Event, Reason},
    },
    pgtable::Entry,
};
use kernel::{prelude::*, task::Pid};

#[cfg(CONFIG_KUNIT = "y")]
mod tests;

/// Migrations of one mirror that may run at once.
const MAX: usize = 16;

const WORDS: usize = PMD_PAGES / u64::BITS as usize;

/// How a migration recognises the events that it causes itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Identity {
    /// They carry its name: nothing else does.
    Name,
    /// They carry the owner of the device's memory, as others' may; but they are sent by this task,
    /// within the range.
    Task {
        /// The task.
        pid: Pid,
        /// Owner of the device's memory.
        owner: Cookie,
    },
}

impl Identity {
    /// The current task, with pages of `owner`.
    pub(crate) fn current(owner: Cookie) -> Self {
        Self::Task {
            pid: current!().pid(),
            owner,
        }
    }
}

/// What a migration wants.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) name: Cookie,
    pub(crate) identity: Identity,
    /// At most [`PMD_PAGES`].
    pub(crate) range: PageRange,
    /// The device keeps reading: the own events leave marked entries alone.
    pub(crate) faultless: bool,
}

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
            // Pages that it does not take stay where they are.
            && (self.request.faultless || (entry.is_device() && !self.takes_device_pages()))
    }

    /// Whether it takes pages out of a device's memory.
    pub(crate) fn takes_device_pages(&self) -> bool {
        self.request.identity != Identity::Name
    }

    fn has_caused(&self, event: &Event<'_>) -> bool {
        match self.request.identity {
            Identity::Name => event.is_from(self.request.name),
            Identity::Task { pid, owner } => {
                event.is_from(owner)
                    && event.reason == Reason::Migrate
                    && current!().pid() == pid
                    && self.request.range.intersect(&event.range) == Some(event.range)
            }
        }
    }
}

/// The migrations of one mirror that run now, [`MAX`] places. Protected by the table lock. Not in place:
/// an array of them takes 2 KiB of stack wherever it passes.
pub(crate) struct Transactions(KVec<Option<Transaction>>);

impl Transactions {
    /// None. Context: may sleep. `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        let mut places = KVec::with_capacity(MAX, GFP_KERNEL)?;
        for _ in 0..MAX {
            places.push(None, GFP_KERNEL)?;
        }
        Ok(Self(places))
    }

    /// Announces a migration, with all pages of its range marked but for those that another one
    /// holds: if both kept an entry, neither would switch it, and it would outlive its page.
    ///
    /// # Errors
    ///
    /// `EBUSY` if too many run already; `EINVAL` if the range is too long.
    pub(crate) fn begin(&mut self, request: Request) -> Result {
        if request.range.pages() > PMD_PAGES {
            return Err(EINVAL);
        }
        if fails(Point::Transaction) {
            return Err(EBUSY);
        }
        let mut new = Transaction {
            request,
            marks: [u64::MAX; WORDS],
        };
        for other in self.running() {
            if let Some(both) = other.request.range.intersect(&request.range) {
                for index in 0..both.pages() {
                    let page = PageRange::from_pages(both.address(index), 1)?;
                    if other.is_marked(page.start()) {
                        new.set(page, false);
                    }
                }
            }
        }
        let place = self.0.iter_mut().find(|place| place.is_none());
        *place.ok_or(EBUSY)? = Some(new);
        Ok(())
    }

    /// Ends the migration; `false` if there is none of that name.
    pub(crate) fn end(&mut self, name: Cookie) -> bool {
        let place = self.0.iter_mut().find(|place| match place {
            Some(transaction) => transaction.request.name == name,
            None => false,
        });
        place.is_some_and(|place| place.take().is_some())
    }

    fn running(&self) -> impl Iterator<Item = &Transaction> {
        self.0.iter().flatten()
    }

    /// The migration `name`, if it runs.
    pub(crate) fn get(&self, name: Cookie) -> Option<&Transaction> {
        self.running()
            .find(|transaction| transaction.request.name == name)
    }

    /// Whether the page at `addr` still belongs to the migration `name`.
    pub(crate) fn owns(&self, name: Cookie, addr: usize) -> bool {
        self.get(name)
            .is_some_and(|transaction| transaction.is_marked(addr))
    }

    /// Whether a migration is about to switch the entry at `addr`, so that none may be installed.
    pub(crate) fn holds(&self, addr: usize) -> bool {
        self.running()
            .any(|transaction| transaction.is_marked(addr))
    }

    /// Whether a migration runs within `range`.
    pub(crate) fn overlap(&self, range: PageRange) -> bool {
        self.running()
            .any(|transaction| transaction.request.range.intersect(&range).is_some())
    }

    /// Takes the pages of `range` away from the migration `name` only.
    pub(crate) fn release(&mut self, name: Cookie, range: PageRange) {
        for transaction in self.0.iter_mut().flatten() {
            if transaction.request.name == name {
                transaction.set(range, false);
            }
        }
    }

    /// Takes the pages of `range` away from all migrations.
    pub(crate) fn unmark(&mut self, range: PageRange) {
        for transaction in self.0.iter_mut().flatten() {
            transaction.set(range, false);
        }
    }

    /// Takes note of an event: all migrations but the one that has caused it lose its pages.
    /// Returns the name of that one.
    pub(crate) fn note(&mut self, event: &Event<'_>) -> Option<Cookie> {
        let mut own = None;
        for transaction in self.0.iter_mut().flatten() {
            if transaction.has_caused(event) {
                own = Some(transaction.request.name);
            } else {
                transaction.set(event.range, false);
            }
        }
        own
    }

    #[cfg(CONFIG_KUNIT = "y")]
    fn owns_all(&self, name: Cookie, span: PageRange) -> bool {
        self.get(name).is_some_and(|one| one.owns_all(span))
    }

    #[cfg(CONFIG_KUNIT = "y")]
    fn owns_any(&self, name: Cookie, span: PageRange) -> bool {
        self.get(name).is_some_and(|one| one.owned(span) != 0)
    }

    #[cfg(CONFIG_KUNIT = "y")]
    fn divides(&self, name: Cookie, span: PageRange) -> bool {
        self.get(name).is_some_and(|one| one.divides(span))
    }

    #[cfg(CONFIG_KUNIT = "y")]
    fn keeps(&self, name: Cookie, span: PageRange, entry: Entry) -> bool {
        self.get(name)
            .is_some_and(|transaction| transaction.keeps(span, entry))
    }
}
