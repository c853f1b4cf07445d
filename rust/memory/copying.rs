// SPDX-License-Identifier: GPL-2.0

//! Isolated pages with outstanding copies.

use super::{
    copy::{Batch, Cancel},
    Copies, //
};
use crate::mm::{addr::PMD_PAGES, mask::Mask, migrate::Isolated};
use kernel::prelude::*;

/// Isolated pages that are being copied. Dropping it waits for the copies, and then restores the pages.
///
/// If it is leaked, the pages stay isolated and locked, so that no memory is freed that is still
/// written.
#[must_use = "dropping it restores the pages"]
pub(crate) struct Copying<'c, 'a, R> {
    // Dropped first: waits.
    batch: Batch<'c>,
    isolated: Isolated<'a, R>,
    /// Entries with a destination.
    count: usize,
}

impl<'c, 'a, R> Copying<'c, 'a, R> {
    /// Hands out jobs for `isolated`. `hand_out` returns the number of entries with a destination.
    ///
    /// # Errors
    ///
    /// `EBUSY`: a previous batch of `copies` was leaked. The pages are restored.
    pub(super) fn submit(
        copies: &'c mut Copies,
        driver: &'c dyn Cancel,
        isolated: Isolated<'a, R>,
        hand_out: impl FnOnce(&Isolated<'a, R>, &mut Batch<'c>) -> usize,
    ) -> Result<Self> {
        let mut batch = copies.begin(driver).ok_or(EBUSY)?;
        let count = hand_out(&isolated, &mut batch);
        Ok(Self {
            batch,
            isolated,
            count,
        })
    }

    /// Whether a copy is outstanding. Otherwise there is nothing with which another step could overlap.
    pub(crate) fn is_outstanding(&self) -> bool {
        self.batch.is_outstanding()
    }

    /// Waits for the copies, and takes back destinations that were not filled. Returns the pages, and
    /// the indices of the entries of these destinations. Context: may sleep.
    // A stack frame of its own: the states of a migration are large.
    #[inline(never)]
    pub(crate) fn complete(self) -> (Isolated<'a, R>, Mask) {
        let Self {
            batch,
            mut isolated,
            count,
        } = self;
        let filled = batch.wait();
        let failed = settle(&mut isolated, &filled, count);
        (isolated, failed)
    }
}

/// Notes which of `count` destinations were filled, and takes back the others. Returns the indices of
/// the entries of these.
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
