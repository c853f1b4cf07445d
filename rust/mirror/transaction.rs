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
        let takes_device_pages = self.request.identity != Identity::Name;
        self.owns_all(span)
            // Pages that it does not take stay where they are.
            && (self.request.faultless || (entry.is_device() && !takes_device_pages))
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

#[kunit_tests(rust_hmm_transaction)]
mod tests {
    use super::*;

    #[test]
    fn foreign_events_take_pages_away() -> Result {
        let (mine, other) = (0u8, 0u8);
        let (mine, other) = (Cookie::of(&mine), Cookie::of(&other));
        let mut running = Transactions::new()?;
        let range = PageRange::from_pages(0x20_0000, 512)?;
        let request = |name, range| Request {
            name,
            identity: Identity::Name,
            range,
            faultless: true,
        };
        running.begin(request(mine, range))?;
        assert!(running.owns(mine, 0x20_0000) && running.owns(mine, 0x3f_f000));
        assert!(!running.owns(other, 0x20_0000) && !running.owns(mine, 0x40_0000));

        assert_eq!(
            running.note(&Event::for_test(Reason::Migrate, range, mine)),
            Some(mine)
        );
        assert!(running.owns(mine, 0x20_0000));

        // Of somebody else, or without an owner, or not a migration.
        let page = PageRange::from_pages(0x20_3000, 1)?;
        assert_eq!(
            running.note(&Event::for_test(Reason::Migrate, page, other)),
            None
        );
        assert!(!running.owns(mine, 0x20_3000) && running.owns(mine, 0x20_2000));
        let page = PageRange::from_pages(0x20_4000, 1)?;
        assert_eq!(
            running.note(&Event::for_test(Reason::Clear, page, mine)),
            None
        );
        assert!(!running.owns(mine, 0x20_4000) && running.owns(mine, 0x20_5000));
        let all = PageRange::new(0, usize::MAX & !0xfff)?;
        assert_eq!(
            running.note(&Event::for_test(Reason::Release, all, Cookie::NONE)),
            None
        );
        assert!(!running.owns(mine, 0x20_5000));

        assert!(running.end(mine) && !running.end(mine));
        Ok(())
    }

    #[test]
    fn only_so_many_at_once() -> Result {
        let names = [0u8; MAX + 1];
        let mut running = Transactions::new()?;
        let request = |name, pages| {
            Ok::<_, Error>(Request {
                name,
                identity: Identity::Name,
                range: PageRange::from_pages(0, pages)?,
                faultless: true,
            })
        };
        for name in names.iter().take(MAX) {
            running.begin(request(Cookie::of(name), 1)?)?;
        }
        let last = names.last().map(Cookie::of).ok_or(EINVAL)?;
        assert_eq!(running.begin(request(last, 1)?), Err(EBUSY));
        assert!(running.end(Cookie::of(&names)));
        running.begin(request(last, 1)?)?;
        assert_eq!(running.begin(request(last, 513)?), Err(EINVAL));
        Ok(())
    }

    #[test]
    fn a_page_belongs_to_one_migration() -> Result {
        let names = [0u8; 2];
        let (first, second) = (Cookie::of(&names[0]), Cookie::of(&names[1]));
        let mut running = Transactions::new()?;
        let request = |name, start, pages| {
            Ok::<_, Error>(Request {
                name,
                identity: Identity::Name,
                range: PageRange::from_pages(start, pages)?,
                faultless: true,
            })
        };
        running.begin(request(first, 0x1000, 4)?)?;
        running.begin(request(second, 0x3000, 4)?)?;
        assert!(running.owns(first, 0x4000) && !running.owns(second, 0x4000));
        assert!(!running.owns(first, 0x5000) && running.owns(second, 0x5000));
        // The second one's event takes the page from the first one, and removes its entry.
        let range = PageRange::from_pages(0x3000, 4)?;
        let event = Event::for_test(Reason::Migrate, range, second);
        assert_eq!(running.note(&event), Some(second));
        assert!(!running.owns(first, 0x4000) && running.owns(first, 0x2000));
        let entry = Entry::system(1, false);
        let page = |addr| PageRange::from_pages(addr, 1);
        assert!(!running.keeps(second, page(0x4000)?, entry));
        assert!(running.keeps(second, page(0x5000)?, entry));
        // A huge leaf of pages of both: it begins with one of the second's, and is not kept as a whole.
        let both = |start| PageRange::from_pages(start, 2);
        assert!(running.divides(second, both(0x4000)?) && !running.divides(second, both(0x5000)?));
        assert!(!running.keeps(second, both(0x4000)?, entry));
        assert!(running.keeps(second, both(0x5000)?, entry));
        assert!(
            running.owns_any(second, both(0x4000)?) && !running.owns_all(second, both(0x4000)?)
        );
        assert!(running.owns_all(second, both(0x5000)?) && !running.owns_any(first, both(0x4000)?));
        Ok(())
    }

    #[test]
    fn an_ordinary_one_leaves_only_what_nobody_takes() -> Result {
        let (back, there, owner) = (0u8, 0u8, 0u8);
        let (back, there, owner) = (Cookie::of(&back), Cookie::of(&there), Cookie::of(&owner));
        let mut running = Transactions::new()?;
        // A CPU fault brings two pages back, while others go to the device the ordinary way.
        running.begin(Request {
            name: back,
            identity: Identity::current(owner),
            range: PageRange::from_pages(0x1000, 2)?,
            faultless: true,
        })?;
        let range = PageRange::from_pages(0x1000, 4)?;
        running.begin(Request {
            name: there,
            identity: Identity::Name,
            range,
            faultless: false,
        })?;
        let event = Event::for_test(Reason::Migrate, range, there);
        assert_eq!(running.note(&event), Some(there));
        let page = |addr| PageRange::from_pages(addr, 1);
        let (device, system) = (Entry::device(1, false), Entry::system(1, false));
        assert!(!running.owns(back, 0x1000) && !running.keeps(there, page(0x1000)?, device));
        assert!(running.keeps(there, page(0x3000)?, device));
        assert!(!running.keeps(there, page(0x3000)?, system));
        Ok(())
    }

    #[test]
    fn device_pages_are_recognised_by_task_and_range() -> Result {
        let (name, owner, other) = (0u8, 0u8, 0u8);
        let (name, owner) = (Cookie::of(&name), Cookie::of(&owner));
        let mut running = Transactions::new()?;
        let range = PageRange::from_pages(0x20_0000, 16)?;
        let mut request = Request {
            name,
            identity: Identity::current(owner),
            range,
            faultless: true,
        };
        running.begin(request)?;
        let entry = Entry::device(1, false);
        let event = |range, owner| Event::for_test(Reason::Migrate, range, owner);
        assert_eq!(running.note(&event(range, owner)), Some(name));
        let page = |addr| PageRange::from_pages(addr, 1);
        assert!(running.keeps(name, page(0x20_0000)?, entry));
        // Beyond the range, so not ours, although of the same owner: a CPU fault of this task.
        let more = PageRange::from_pages(0x20_f000, 2)?;
        assert_eq!(running.note(&event(more, owner)), None);
        assert!(!running.owns(name, 0x20_f000));
        assert!(!running.keeps(name, page(0x20_f000)?, entry));
        assert_eq!(running.note(&event(range, Cookie::of(&other))), None);
        assert!(!running.owns(name, 0x20_0000));
        assert!(running.end(name));

        // The same by another task.
        request.identity = Identity::Task { pid: -1, owner };
        running.begin(request)?;
        assert!(running.holds(0x20_0000) && running.overlap(range));
        assert_eq!(running.note(&event(range, owner)), None);
        assert!(!running.holds(0x20_0000));
        Ok(())
    }
}
