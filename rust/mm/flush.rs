// SPDX-License-Identifier: GPL-2.0

//! Flushes of device translations, and the proof that a flush has completed.

use super::addr::PageRange;
use crate::bindings;
use core::marker::PhantomData;

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
mod tests;

/// Flushes the TLBs of a device, and waits for concurrent walkers of its page table.
///
/// # Examples
///
/// ```
/// use rust_hmm::mm::addr::PageRange;
/// use rust_hmm::mm::flush::Flusher;
/// use rust_hmm::mm::flush::wait_for_rcu_walks;
///
/// /// A device without a TLB whose walks are sections of RCU readers.
/// struct Software;
///
/// impl Flusher for Software {
///     type Pending = ();
///
///     fn start(&self, _range: PageRange) {}
///
///     fn wait(&self, (): ()) {
///         wait_for_rcu_walks();
///     }
/// }
/// ```
pub trait Flusher {
    /// A flush that was started.
    type Pending: Send;

    /// Starts a flush of all translations of `range`.
    ///
    /// # Context
    ///
    /// The table lock may be held. Must not allocate with reclaim.
    fn start(&self, range: PageRange) -> Self::Pending;

    /// Waits until no flushed translation is in use, and until all walks that had begun before the
    /// flush have ended.
    ///
    /// # Context
    ///
    /// As for [`Self::start`].
    fn wait(&self, pending: Self::Pending);
}

/// Waits for all walks of page tables that have begun in RCU read-side critical sections. Used in
/// [`Flusher::wait`] of software walkers.
///
/// # Context
///
/// May sleep.
// Not inlined, so that drivers do not need the binding.
#[inline(never)]
pub fn wait_for_rcu_walks() {
    // SAFETY: `synchronize_rcu()` has no memory safety requirements. A call in atomic context is
    // reported by the kernel.
    unsafe { bindings::synchronize_rcu() };
}

/// Proof that a flush of a range has completed, so that the pages can be returned to their owner.
///
/// It names the flusher, which it borrows, and the range, so that it is not mistaken for the proof
/// of another flusher or range.
#[derive(Debug)]
pub struct Flushed<'f> {
    /// Address of the flusher, for comparison. It is never dereferenced.
    flusher: usize,
    /// `None` if there was nothing to flush, and no range is known.
    range: Option<PageRange>,
    _flusher: PhantomData<&'f ()>,
}

impl<'f> Flushed<'f> {
    /// Waits for `pending`, the flush of `range` that `flusher` has started; `None` if there was
    /// nothing to flush.
    ///
    /// # Context
    ///
    /// As [`Flusher::wait`].
    #[inline]
    pub(crate) fn by<S: Flusher>(
        flusher: &'f S,
        range: Option<PageRange>,
        pending: Option<S::Pending>,
    ) -> Self {
        if let Some(pending) = pending {
            flusher.wait(pending);
        }
        Self {
            flusher: address(flusher),
            range,
            _flusher: PhantomData,
        }
    }

    /// Returns the proof for `range`. The rest of `range` must have had no stale translation when
    /// the flush was started.
    pub(crate) fn of_all(self, range: PageRange) -> Self {
        Self {
            range: Some(range),
            ..self
        }
    }

    /// Returns whether this proves that `flusher` has flushed all of `range`.
    pub(crate) fn covers<S: ?Sized>(&self, flusher: &S, range: PageRange) -> bool {
        let flushed = self.range.and_then(|flushed| flushed.intersect(&range));
        self.flusher == address(flusher) && flushed == Some(range)
    }
}

/// Returns the address that identifies `flusher`.
fn address<S: ?Sized>(flusher: &S) -> usize {
    core::ptr::from_ref(flusher).cast::<()>().addr()
}

/// Proof that each of several flushers has flushed a range.
#[derive(Debug)]
pub(crate) struct FlushedAll(());

impl FlushedAll {
    /// Calls `flush` for each of `flushers`, which returns the proof for `range`. If it returns the
    /// proof of another flusher or range, calls `remove` for the flusher, which removes its
    /// translations of `range`, and flushes.
    ///
    /// # Context
    ///
    /// That of `flush` and `remove`.
    pub(crate) fn of<'a, S: ?Sized + 'a>(
        flushers: impl Iterator<Item = &'a S>,
        range: PageRange,
        flush: impl Fn(&'a S) -> Flushed<'a>,
        remove: impl Fn(&'a S) -> Flushed<'a>,
    ) -> Self {
        for flusher in flushers {
            if !flush(flusher).covers(flusher, range) {
                let _removed: Flushed<'_> = remove(flusher);
            }
        }
        Self(())
    }
}
