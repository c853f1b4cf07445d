// SPDX-License-Identifier: GPL-2.0

//! Isolated pages with outstanding copies.

use super::{
    copy::{
        Cancel,
        CopyBatch,
        CopyPlace, //
    },
    CopyContext, //
};
use crate::mm::{
    addr::PMD_PAGES,
    migrate::Isolated,
    page_set::PageSet, //
};
use kernel::prelude::*;

/// Isolated pages with copies in flight. Dropping it waits for the copies, and then restores the
/// pages.
///
/// If it is leaked, the pages stay isolated and locked, so that no page that a copy still writes is
/// freed.
#[must_use = "dropping it restores the pages"]
// Passed by reference from state to state, because `Isolated` is large to move.
pub(crate) struct Copying<'c, 'a, R> {
    // Dropped first, which waits for the copies. `None` before the jobs are submitted and after
    // they have completed.
    batch: Option<CopyBatch<'c>>,
    isolated: Isolated<'a, R>,
    /// Number of entries that have a destination.
    count: usize,
}

impl<'c, 'a, R> Copying<'c, 'a, R> {
    /// Wraps `isolated`, without copies.
    #[inline]
    pub(crate) fn new(isolated: Isolated<'a, R>) -> Self {
        Self {
            batch: None,
            isolated,
            count: 0,
        }
    }

    /// Submits copy jobs to the driver of the device with the number `device`. `hand_out` returns
    /// the number of entries that have a destination.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if a previous batch of `copies` was leaked.
    pub(super) fn submit(
        &mut self,
        copies: &'c mut CopyContext,
        driver: &'c dyn Cancel,
        device: u32,
        hand_out: impl FnOnce(&Isolated<'a, R>, &mut CopyBatch<'c>) -> usize,
    ) -> Result {
        let place = CopyPlace {
            device,
            process: self.isolated.pid(),
            range: self.isolated.range(),
        };
        let batch = copies.begin(driver, place).ok_or(EBUSY)?;
        // Dropping a previous batch waits for its copies.
        let batch = self.batch.insert(batch);
        self.count = hand_out(&self.isolated, batch);
        Ok(())
    }

    /// Returns whether a copy is outstanding. If none is, another step has nothing to overlap with.
    pub(crate) fn is_outstanding(&self) -> bool {
        self.batch.as_ref().is_some_and(CopyBatch::is_outstanding)
    }

    /// Waits for the copies, and releases destinations that were not filled. Returns the indices of
    /// their entries.
    ///
    /// # Context
    ///
    /// May sleep.
    #[inline(never)]
    pub(crate) fn complete(&mut self) -> PageSet {
        match self.batch.take() {
            Some(batch) => release_unfilled(&mut self.isolated, &batch.wait(), self.count),
            None => PageSet::EMPTY,
        }
    }

    /// Returns the pages, to choose their destinations. `None` while jobs may be outstanding.
    #[inline]
    pub(crate) fn isolated_mut(&mut self) -> Option<&mut Isolated<'a, R>> {
        self.batch.is_none().then_some(&mut self.isolated)
    }

    /// Returns the pages.
    #[inline]
    pub(crate) fn isolated(&self) -> &Isolated<'a, R> {
        &self.isolated
    }

    /// Waits for outstanding copies, and returns the pages.
    ///
    /// # Context
    ///
    /// May sleep.
    #[inline]
    pub(crate) fn into_isolated(self) -> Isolated<'a, R> {
        drop(self.batch);
        self.isolated
    }
}

/// Records which of `count` destinations were filled, and releases the others. Returns the indices
/// of the entries of the released ones.
fn release_unfilled<R>(isolated: &mut Isolated<'_, R>, filled: &PageSet, count: usize) -> PageSet {
    let mut failed = PageSet::EMPTY;
    if filled.count(0..PMD_PAGES) == count {
        isolated.set_all_filled(filled);
        return failed;
    }
    let mut next = 0;
    while let Some(entry) = isolated.entry_from(next) {
        next = entry.index + entry.pages;
        if entry.destination == 0 {
            continue;
        }
        if filled.has(entry.index) {
            isolated.set_filled(entry.index);
        } else {
            isolated.skip(entry.index);
            failed.insert(entry.index);
        }
    }
    failed
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_copies)]
mod tests {
    use super::{
        super::CopyEndpoint,
        *, //
    };
    use crate::mm::addr::PageRange;

    struct NoDriver;

    impl Cancel for NoDriver {
        fn cancel(&self) {}
    }

    #[test]
    fn copies_with_a_leaked_batch_refuse_new_jobs() -> Result {
        let place = CopyPlace {
            device: 0,
            process: 0,
            range: PageRange::from_pages(0, 1)?,
        };
        let mut copies = CopyContext::new(false)?;
        drop(copies.begin(&NoDriver, place).ok_or(EBUSY)?);
        let mut batch = copies.begin(&NoDriver, place).ok_or(EBUSY)?;
        // SAFETY: The job is not submitted to a driver, so that no memory is read or written for
        // it.
        let job = unsafe { batch.job(0, 1, None, CopyEndpoint::Device(0)) };
        core::mem::forget(batch);
        assert!(copies.begin(&NoDriver, place).is_none());
        job.complete(Ok(()));
        assert!(copies.begin(&NoDriver, place).is_none());
        copies.expect_leak();
        Ok(())
    }
}
