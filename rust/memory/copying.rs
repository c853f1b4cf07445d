// SPDX-License-Identifier: GPL-2.0

//! Isolated pages with outstanding copies.

use super::{
    copy::{Batch, Cancel},
    Copies, //
};
use crate::mm::{addr::PMD_PAGES, mask::Mask, migrate::Isolated};
use kernel::prelude::*;

/// Isolated pages that are being copied. Dropping it waits for the copies, and then restores the
/// pages.
///
/// If it is leaked, the pages stay isolated and locked, so that no memory is freed that is still
/// written.
#[must_use = "dropping it restores the pages"]
// It stays where it is from state to state: isolated pages are large to move.
pub(crate) struct Copying<'c, 'a, R> {
    // Dropped first: waits. `None` before the jobs are handed out, and when these are done.
    batch: Option<Batch<'c>>,
    isolated: Isolated<'a, R>,
    /// Entries with a destination.
    count: usize,
}

impl<'c, 'a, R> Copying<'c, 'a, R> {
    /// Of `isolated`, without copies.
    #[inline]
    pub(crate) fn new(isolated: Isolated<'a, R>) -> Self {
        Self {
            batch: None,
            isolated,
            count: 0,
        }
    }

    /// Hands out jobs. `hand_out` returns the number of entries with a destination.
    ///
    /// # Errors
    ///
    /// `EBUSY`: a previous batch of `copies` was leaked.
    pub(super) fn submit(
        &mut self,
        copies: &'c mut Copies,
        driver: &'c dyn Cancel,
        hand_out: impl FnOnce(&Isolated<'a, R>, &mut Batch<'c>) -> usize,
    ) -> Result {
        let batch = copies.begin(driver).ok_or(EBUSY)?;
        // Waits for those of before, if there are any.
        let batch = self.batch.insert(batch);
        self.count = hand_out(&self.isolated, batch);
        Ok(())
    }

    /// Whether a copy is outstanding. Otherwise there is nothing with which another step could
    /// overlap.
    pub(crate) fn is_outstanding(&self) -> bool {
        self.batch.as_ref().is_some_and(Batch::is_outstanding)
    }

    /// Waits for the copies, and takes back destinations that were not filled. Returns the indices
    /// of the entries of these destinations. Context: may sleep.
    #[inline(never)]
    pub(crate) fn complete(&mut self) -> Mask {
        match self.batch.take() {
            Some(batch) => settle(&mut self.isolated, &batch.wait(), self.count),
            None => Mask::EMPTY,
        }
    }

    /// The pages, to choose their destinations. `None` while jobs may be outstanding.
    #[inline]
    pub(crate) fn isolated_mut(&mut self) -> Option<&mut Isolated<'a, R>> {
        self.batch.is_none().then_some(&mut self.isolated)
    }

    /// The pages.
    #[inline]
    pub(crate) fn isolated(&self) -> &Isolated<'a, R> {
        &self.isolated
    }

    /// The pages, after a wait for copies that are outstanding. Context: may sleep.
    #[inline]
    pub(crate) fn into_isolated(self) -> Isolated<'a, R> {
        drop(self.batch);
        self.isolated
    }
}

/// Notes which of `count` destinations were filled, and takes back the others. Returns the indices
/// of the entries of these.
pub(super) fn settle<R>(isolated: &mut Isolated<'_, R>, filled: &Mask, count: usize) -> Mask {
    let mut failed = Mask::EMPTY;
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
            isolated.abandon(entry.index);
            failed.insert(entry.index);
        }
    }
    failed
}

#[kunit_tests(rust_hmm_copies)]
mod tests {
    use super::{super::End, *};

    struct NoDriver;

    impl Cancel for NoDriver {
        fn cancel(&self) {}
    }

    #[test]
    fn copies_with_a_leaked_batch_refuse_new_jobs() -> Result {
        let mut copies = Copies::new(false)?;
        drop(copies.begin(&NoDriver).ok_or(EBUSY)?);
        let mut batch = copies.begin(&NoDriver).ok_or(EBUSY)?;
        // SAFETY: No driver gets the job, so that nothing is read or written.
        let job = unsafe { batch.job(0, 1, None, End::Device(0)) };
        core::mem::forget(batch);
        assert!(copies.begin(&NoDriver).is_none());
        job.complete(Ok(()));
        assert!(copies.begin(&NoDriver).is_none());
        let mut asked = false;
        let copied = copies.run(&NoDriver, |_| asked = true);
        assert!(copied.is_empty() && !asked);
        Ok(())
    }
}
