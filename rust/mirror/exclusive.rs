// SPDX-License-Identifier: GPL-2.0

//! Exclusive access of the device, for atomic operations.
//!
//! Each page is announced like a step of a migration. Then `make_device_exclusive()` replaces the
//! CPU PTE with the mmap lock held. It invokes the notifiers, so that the table lock is not held.
//! The entry is installed under the table lock, if the mark of the page is still there: no foreign
//! event has concerned the page since the announcement. Otherwise the page is retried. A CPU access
//! ends the exclusive access, and invokes the notifiers again.

use super::{
    Device,
    Mirror,
    MirrorState, //
};
use crate::{
    kernel::{
        identity::MigrationId,
        reentry, //
    },
    memory::Memory,
    mm::{
        addr::PageRange,
        exclusive::ExclusivePage,
        range_fault::AddressSpace,
        vma::fatal_signal_pending, //
    },
    pgtable::{
        DevicePte,
        Flushing,
        Prealloc, //
    },
    space::{
        Destination,
        EventMatch,
        MigrationDesc, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

/// Maximum number of retries for each page. A retry follows a collision with an invalidation.
const EXCLUSIVE_MAX_TRIES: usize = 64;

impl<D: Device> Mirror<D> {
    /// Gives the device exclusive access to the pages of `range`. A CPU access to a page ends the
    /// exclusive access.
    ///
    /// # Errors
    ///
    /// Pages before the one that failed stay exclusive.
    ///
    /// - `EFAULT` if memory is not mapped, not writable, or special, or if the address space was
    ///   torn down.
    /// - `EOPNOTSUPP` if memory is not anonymous, or is hugetlb memory.
    /// - `ERANGE` if memory is mapped beyond the addresses that the device page table supports.
    /// - `EINVAL` if the format has no exclusive entries.
    /// - `EBUSY` if the range was invalidated repeatedly.
    /// - `EINTR` if a fatal signal is pending.
    /// - `ENODEV` if the device memory was unplugged.
    /// - `ENOMEM`
    /// - `EDEADLK` within a callback.
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    ///
    /// # Examples
    ///
    /// ```
    /// # use kernel::prelude::*;
    /// use kernel::page::PAGE_MASK;
    /// use rust_hmm::mirror::Device;
    /// use rust_hmm::mirror::Mirror;
    /// use rust_hmm::mm::addr::PageRange;
    ///
    /// /// Calls `command` for an atomic operation of the device on a page exclusive to it.
    /// fn atomic<D: Device>(mirror: &Mirror<D>, addr: usize, command: impl Fn()) -> Result {
    ///     let page = PageRange::from_pages(addr & PAGE_MASK, 1)?;
    ///     for _ in 0..100 {
    ///         mirror.make_exclusive(page)?;
    ///         let table = mirror.lock_table()?;
    ///         // An access of the CPU may have ended the exclusive access already.
    ///         if table.any_exclusive(page) {
    ///             command();
    ///             return Ok(());
    ///         }
    ///     }
    ///     Err(EBUSY)
    /// }
    /// ```
    pub fn make_exclusive(&self, range: PageRange) -> Result {
        reentry::may_wait()?;
        let mut prealloc = self.prealloc();
        let space = self.space()?;
        let _charge = space.charge();
        for index in 0..range.pages() {
            let page = PageRange::from_pages(range.start() + index * PAGE_SIZE, 1)?;
            self.check_reach(&space, page)?;
            let mut tries = EXCLUSIVE_MAX_TRIES;
            loop {
                prealloc.refill()?;
                self.inner().prepare(page)?;
                match self.make_page_exclusive(&space, page, &mut prealloc)? {
                    Err(error) if error == EBUSY && tries > 0 && !fatal_signal_pending() => {
                        tries -= 1;
                        // Emulate a CPU write. It splits a huge page, and ends an exclusive access
                        // whose entry could not be installed. Otherwise each would cause an event
                        // in the next attempt.
                        match space.fault_in_writable(page.start()) {
                            // The next attempt returns the error, as the first one would have
                            // without the race.
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

    /// Makes one attempt. The inner error may be retried. The outer error is final, because
    /// [`Mirror::begin`] has already retried.
    ///
    /// `space` was returned by [`Mirror::space`], so that the device was present then.
    pub(super) fn make_page_exclusive(
        &self,
        space: &AddressSpace,
        page: PageRange,
        prealloc: &mut Prealloc<D::Format>,
    ) -> Result<Result> {
        ExclusivePage::prepare(space.mm(), page.start())?;
        // The address of `prealloc` is unique while this function runs.
        let id = MigrationId::of(prealloc);
        let request = MigrationDesc {
            name: id,
            identity: EventMatch::Name,
            range: page,
            faultless: false,
            destination: Destination::Any,
        };
        let (mmap, announced) = self.begin(space, request).map_err(|error| {
            // `begin` returns `EINVAL` if nothing is mapped there.
            if error == EINVAL {
                EFAULT
            } else {
                error
            }
        })?;
        let result = ExclusivePage::new(&mmap, page.start(), id).and_then(|exclusive| {
            let mut guard = self.inner().lock();
            // Recheck under the table lock, as a fault does: `is_gone()` returns true before unplug
            // removes the entries, so that no entry is installed after that.
            if self.device().memory().is_some_and(Memory::is_gone) {
                return Err(ENODEV);
            }
            let MirrorState {
                table, in_flight, ..
            } = &mut *guard;
            if !in_flight.owns(id, page.start()) {
                return Err(EBUSY);
            }
            let mut unwritten = None;
            let (result, flush) = self.inner().change(table, None, |table, batch| {
                let result = table.install(page, prealloc, batch, |_, entry| {
                    *entry = DevicePte::exclusive(exclusive.pfn());
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
