// SPDX-License-Identifier: GPL-2.0

//! Exclusive access of the device, for atomic operations.

use super::{Device, Mirror, State};
use crate::{
    memory::Memory,
    mm::{
        addr::PageRange, exclusive::ExclusivePage, notifier::Cookie, space::fatal_signal_pending,
    },
    pgtable::{Entry, Flushing, Spares},
    space::{Destination, Identity, Request},
    within,
};
use kernel::{page::PAGE_SIZE, prelude::*};

/// Tries for each page, of which each costs one collision with an invalidation.
const TRIES: usize = 64;

impl<D: Device> Mirror<D> {
    /// Gives the device exclusive access to the pages of `range`: a CPU access ends it.
    ///
    /// # Errors
    ///
    /// `EFAULT`: not mapped, not writable, special pages, or the process is gone. `EOPNOTSUPP`: not anonymous, or hugetlb.
    /// `ERANGE`: mapped beyond the addresses that the device's table has.
    /// `EINVAL`: the format of the device's table has no exclusive entries. `EBUSY`: it kept changing. `EINTR`: killed.
    /// `ENODEV`: unplugged. `ENOMEM`. `EDEADLK`: within a callback. Pages before the one that failed stay exclusive. Context: may sleep; no lock may be held.
    pub fn make_exclusive(&self, range: PageRange) -> Result {
        within::may_wait()?;
        let mut spares = self.spares();
        let space = self.space()?;
        let _charge = space.charge();
        for index in 0..range.pages() {
            let page = PageRange::from_pages(range.start() + index * PAGE_SIZE, 1)?;
            self.check_reach(&space, page)?;
            let mut tries = TRIES;
            loop {
                spares.refill()?;
                self.inner().prepare(page)?;
                match self.make_page_exclusive(page, &mut spares)? {
                    Err(error) if error == EBUSY && tries > 0 && !fatal_signal_pending() => {
                        tries -= 1;
                        // A CPU write splits a huge page and ends an exclusive access that we
                        // could not install, so that neither is an event in the next try.
                        match self.space()?.fault_in_writable(page.start()) {
                            // The next try says so, as the first one would have without the race.
                            Err(error) if error == EPERM => {}
                            result => result?,
                        }
                    }
                    result => break result?,
                }
            }
        }
        Ok(())
    }

    /// One try. The inner error is its own; the outer one is final: `begin` has waited and tried again
    /// for as long as it is worth.
    fn make_page_exclusive(
        &self,
        page: PageRange,
        spares: &mut Spares<D::Format>,
    ) -> Result<Result> {
        let space = self.space()?;
        // Any address will do that nobody else has while this runs.
        let cookie = Cookie::of(spares);
        let request = Request {
            name: cookie,
            identity: Identity::Name,
            range: page,
            faultless: false,
            destination: Destination::Any,
        };
        let (mmap, announced) = self.begin(&space, request).map_err(|error| {
            // Nothing is mapped there.
            if error == EINVAL {
                EFAULT
            } else {
                error
            }
        })?;
        let result = ExclusivePage::new(&mmap, page.start(), cookie).and_then(|exclusive| {
            let mut guard = self.inner().lock();
            // Under the lock, as for a fault: an unplug that takes all entries away sets this before.
            if self.device().memory().is_some_and(Memory::is_gone) {
                return Err(ENODEV);
            }
            let State {
                table,
                transactions,
                ..
            } = &mut *guard;
            if !transactions.owns(cookie, page.start()) {
                return Err(EBUSY);
            }
            let mut unwritten = None;
            let (result, flush) = self.inner().change(table, None, |table, batch| {
                let result = table.install(page, spares, batch, |_, entry| {
                    *entry = Entry::exclusive(exclusive.pfn());
                });
                unwritten = table.unwritten(page, batch);
                result
            });
            drop(guard);
            Flushing::end(flush, self.inner());
            self.inner().write_sizes(unwritten);
            result
        });
        drop(announced);
        Ok(result)
    }
}
