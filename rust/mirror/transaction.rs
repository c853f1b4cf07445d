// SPDX-License-Identifier: GPL-2.0

//! Which pages a running migration may still switch.
//!
//! The mmap lock does not keep others from removing a migration entry: `madvise`, userfaultfd and
//! the OOM reaper do it with the lock held for reading. So a migration announces itself under the
//! table lock before it isolates pages, with a mark for each; every invalidation that it has not
//! caused itself clears the marks in its range, and only marked pages are switched.

use crate::mm::{
    addr::{PageRange, PMD_PAGES},
    notifier::{Cookie, Event},
};
use kernel::prelude::*;

/// Migrations of one mirror that may run at once.
const MAX: usize = 16;

const WORDS: usize = PMD_PAGES / u64::BITS as usize;

/// One running migration of at most [`PMD_PAGES`] pages.
struct Transaction {
    cookie: Cookie,
    range: PageRange,
    /// A set bit is a page that nobody else has touched.
    marks: [u64; WORDS],
}

impl Transaction {
    fn is_marked(&self, index: usize) -> bool {
        self.marks
            .get(index / 64)
            .is_some_and(|word| word & (1 << (index % 64)) != 0)
    }

    fn unmark(&mut self, range: PageRange) {
        let Some(both) = self.range.intersect(&range) else {
            return;
        };
        let Some(first) = self.range.index_of(both.start()) else {
            return;
        };
        for index in first..first + both.pages() {
            if let Some(word) = self.marks.get_mut(index / 64) {
                *word &= !(1 << (index % 64));
            }
        }
    }
}

/// The migrations of one mirror that run now. Protected by the table lock.
#[derive(Default)]
pub(crate) struct Transactions([Option<Transaction>; MAX]);

impl Transactions {
    /// Announces a migration of `range`.
    ///
    /// # Errors
    ///
    /// `EBUSY` if too many run already; `EINVAL` if the range is too long.
    pub(crate) fn begin(&mut self, cookie: Cookie, range: PageRange) -> Result {
        if range.pages() > PMD_PAGES {
            return Err(EINVAL);
        }
        let place = self
            .0
            .iter_mut()
            .find(|place| place.is_none())
            .ok_or(EBUSY)?;
        *place = Some(Transaction {
            cookie,
            range,
            marks: [u64::MAX; WORDS],
        });
        Ok(())
    }

    /// Ends the migration; `false` if there is none of that name.
    pub(crate) fn end(&mut self, cookie: Cookie) -> bool {
        let place = self.0.iter_mut().find(|place| match place {
            Some(transaction) => transaction.cookie == cookie,
            None => false,
        });
        place.is_some_and(|place| place.take().is_some())
    }

    /// Whether the page at `addr` still belongs to the migration `cookie`.
    pub(crate) fn owns(&self, cookie: Cookie, addr: usize) -> bool {
        self.0.iter().flatten().any(|transaction| {
            transaction.cookie == cookie
                && transaction
                    .range
                    .index_of(addr)
                    .is_some_and(|index| transaction.is_marked(index))
        })
    }

    /// Takes note of an event, and says whether one of the migrations has caused it itself.
    pub(crate) fn note(&mut self, event: &Event<'_>) -> bool {
        let mut own = false;
        for transaction in self.0.iter_mut().flatten() {
            if event.is_from(transaction.cookie) {
                own = true;
            } else {
                transaction.unmark(event.range);
            }
        }
        own
    }
}

#[kunit_tests(rust_hmm_transaction)]
mod tests {
    use super::*;
    use crate::mm::notifier::Reason;

    #[test]
    fn foreign_events_take_pages_away() -> Result {
        let (mine, other) = (0u8, 0u8);
        let (mine, other) = (Cookie::of(&mine), Cookie::of(&other));
        let mut running = Transactions::default();
        let range = PageRange::from_pages(0x20_0000, 512)?;
        running.begin(mine, range)?;
        assert!(running.owns(mine, 0x20_0000) && running.owns(mine, 0x3f_f000));
        assert!(!running.owns(other, 0x20_0000) && !running.owns(mine, 0x40_0000));

        assert!(running.note(&Event::for_test(Reason::Migrate, range, mine)));
        assert!(running.owns(mine, 0x20_0000));

        // Of somebody else, or without an owner, or not a migration.
        let page = PageRange::from_pages(0x20_3000, 1)?;
        assert!(!running.note(&Event::for_test(Reason::Migrate, page, other)));
        assert!(!running.owns(mine, 0x20_3000) && running.owns(mine, 0x20_2000));
        let page = PageRange::from_pages(0x20_4000, 1)?;
        assert!(!running.note(&Event::for_test(Reason::Clear, page, mine)));
        assert!(!running.owns(mine, 0x20_4000) && running.owns(mine, 0x20_5000));
        let all = PageRange::new(0, usize::MAX & !0xfff)?;
        assert!(!running.note(&Event::for_test(Reason::Release, all, Cookie::NONE)));
        assert!(!running.owns(mine, 0x20_5000));

        assert!(running.end(mine) && !running.end(mine));
        Ok(())
    }

    #[test]
    fn only_so_many_at_once() -> Result {
        let names = [0u8; MAX + 1];
        let mut running = Transactions::default();
        let range = PageRange::from_pages(0, 1)?;
        for name in names.iter().take(MAX) {
            running.begin(Cookie::of(name), range)?;
        }
        let last = names.last().map(Cookie::of).ok_or(EINVAL)?;
        assert_eq!(running.begin(last, range), Err(EBUSY));
        assert!(running.end(Cookie::of(&names)));
        running.begin(last, range)?;
        assert_eq!(
            running.begin(last, PageRange::from_pages(0, 513)?),
            Err(EINVAL)
        );
        Ok(())
    }
}
