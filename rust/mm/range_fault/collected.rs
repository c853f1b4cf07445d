// SPDX-License-Identifier: GPL-2.0

//! The result of a range fault, before its validation and after it.

use super::{
    HmmPfn,
    Retry, //
};
use crate::mm::{
    addr::PageRange,
    notifier::{
        IntervalNotifier,
        NotifierOps,
        NotifierTable,
        Seq, //
    },
    vma::fatal_signal_pending, //
};
use kernel::{
    page::PAGE_SHIFT,
    prelude::*,
    sync::lock::mutex::MutexGuard, //
};

/// Result of a range fault that is not validated, and therefore cannot be read.
///
/// # Examples
///
/// ```
/// use rust_hmm::mm::notifier::NotifierOps;
/// use rust_hmm::mm::notifier::NotifierTable;
/// use rust_hmm::mm::range_fault::Collected;
///
/// /// Returns whether the first page may be written. Returns `None` if the caller must collect
/// /// again.
/// fn is_writable<'a, S: NotifierOps, M: NotifierTable<S, Protected: Unpin>>(
///     collected: Collected<'a, S>,
///     table: &'a M,
/// ) -> Option<bool> {
///     let mut valid = collected.lock(table).ok()?;
///     let (_table, range, mut entry_at) = valid.parts();
///     Some(entry_at(range.start()).is_writable())
/// }
/// ```
#[must_use = "it must be validated by `lock`"]
pub struct Collected<'a, S: NotifierOps> {
    notifier: &'a IntervalNotifier<S>,
    seq: Seq,
    range: PageRange,
    pfns: &'a [usize],
}

impl<'a, S: NotifierOps> Collected<'a, S> {
    /// Creates the result `pfns` for `range`, which was read after sequence number `seq`.
    pub(super) fn new(
        notifier: &'a IntervalNotifier<S>,
        seq: Seq,
        range: PageRange,
        pfns: &'a [usize],
    ) -> Self {
        Self {
            notifier,
            seq,
            range,
            pfns,
        }
    }

    /// Takes the lock of `member` and validates the result.
    ///
    /// # Errors
    ///
    /// - [`Retry`]: the range was invalidated concurrently, or a fatal signal is pending. The
    ///   caller must collect again.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn lock<M: NotifierTable<S>>(
        self,
        member: &'a M,
    ) -> Result<Validated<'a, M::Protected>, Retry> {
        if fatal_signal_pending() {
            return Err(Retry);
        }
        // INVARIANT: Validated under the lock.
        Ok(Validated {
            guard: self.notifier.lock_if_valid(member, self.seq)?,
            range: self.range,
            pfns: self.pfns,
        })
    }
}

/// Validated result of a range fault. It stays valid as long as this object holds the table lock.
///
/// # Invariants
///
/// `guard` is held since before the retry check, which succeeded.
pub struct Validated<'a, T> {
    guard: MutexGuard<'a, T>,
    range: PageRange,
    pfns: &'a [usize],
}

impl<T: Unpin> Validated<'_, T> {
    /// Returns the entry of the first page.
    pub(crate) fn first(&self) -> Option<HmmPfn> {
        let first = HmmPfn::from_raw(*self.pfns.first()?);
        Some(first.of_page(self.range.start() >> PAGE_SHIFT))
    }

    /// Returns the data that the lock protects, the range, and a function that returns the entry of
    /// a page, whose address it gets. It must be called for the pages of the range in ascending
    /// order. If they belong to a huge page, it may be called for all pages of that.
    ///
    /// # Context
    ///
    /// Any. `self` holds the table lock.
    pub fn parts(&mut self) -> (&mut T, PageRange, impl FnMut(usize) -> HmmPfn + '_) {
        let first = self
            .pfns
            .first()
            .map_or(HmmPfn::default(), |raw| HmmPfn::from_raw(*raw));
        // The range lies in one PMD: if the first page belongs to a huge page, all pages do, with
        // the same rights.
        let is_huge = first.is_in_huge_page();
        let mut pfns = self.pfns.iter();
        let entry_at = move |addr: usize| {
            if is_huge {
                first.of_page(addr >> PAGE_SHIFT)
            } else {
                pfns.next()
                    .map_or(HmmPfn::default(), |raw| HmmPfn::from_raw(*raw))
            }
        };
        (&mut *self.guard, self.range, entry_at)
    }
}
