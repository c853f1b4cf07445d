// SPDX-License-Identifier: GPL-2.0

//! Flush of a page table update, as a typestate: gather ([`FlushBatch`]), start ([`Flushing`]),
//! wait ([`Flushed`]).

use super::{
    entry::DevicePte,
    format::Format,
    list::PageList,
    pool::Pool, //
};
use crate::mm::{
    addr::PageRange,
    flush::{
        Flushed,
        Flusher, //
    }, //
};
use kernel::sync::Arc;

/// Range of addresses to be flushed. A type of its own because it implements `Drop`, so that
/// [`FlushBatch::start`] can move the other fields out of the batch.
struct FlushSpan(Option<PageRange>);

/// Gathers the addresses to flush and the detached table pages of updates.
///
/// Dropping a batch that was not started is memory safe, because its table pages are not reused.
/// However, the device may continue to use stale translations, so that an alarm is raised.
///
/// # Examples
///
/// ```
/// use rust_hmm::mm::addr::PageRange;
/// use rust_hmm::pgtable::DevicePte;
/// use rust_hmm::pgtable::Flusher;
/// use rust_hmm::pgtable::Format;
/// use rust_hmm::pgtable::Table;
///
/// /// Removes the entries of a range, and waits until the device does not use them.
/// fn remove<F: Format>(table: &mut Table<F>, tlb: &impl Flusher, range: PageRange) {
///     let mut batch = table.batch();
///     table.for_each(range, &mut batch, |_, entry| *entry = DevicePte::NONE);
///     let _flushed = batch.start(tlb).wait(tlb);
///     // The pages can be reused from here on.
/// }
/// ```
#[must_use = "the device may still use removed entries"]
pub struct FlushBatch<F: Format> {
    /// Address of the pool of the table, for comparison. It is never dereferenced.
    name: usize,
    /// The pool, if it is needed after the update: for images, or for detached pages.
    pool: Option<Arc<Pool<F>>>,
    hull: FlushSpan,
    pages: usize,
    pub(super) detached: PageList,
}

impl<F: Format> FlushBatch<F> {
    pub(super) fn new(pool: &Arc<Pool<F>>) -> Self {
        Self {
            name: Arc::as_ptr(pool).addr(),
            pool: pool.has_images().then(|| pool.clone()),
            hull: FlushSpan(None),
            pages: 0,
            detached: PageList::EMPTY,
        }
    }

    pub(super) fn is_of(&self, pool: &Arc<Pool<F>>) -> bool {
        self.name == Arc::as_ptr(pool).addr()
    }

    /// Adds `range` to the addresses to be flushed.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn extend(&mut self, range: PageRange) {
        let FlushSpan(hull) = &mut self.hull;
        *hull = Some(hull.map_or(range, |hull| hull.union(&range)));
    }

    /// Records the change of an entry that covers `span`.
    #[inline]
    pub(super) fn record(&mut self, span: PageRange, old: DevicePte, new: DevicePte) {
        if old.is_outdated_by(new) {
            self.extend(span);
            self.pages += span.pages();
        }
    }

    /// Records changes of the entries of `pages` pages, all within `union`.
    pub(super) fn record_all(&mut self, hull: Option<PageRange>, pages: usize) {
        if let Some(hull) = hull {
            self.extend(hull);
            self.pages += pages;
        }
    }

    /// Adds a table page that covered `span` and was removed from the tree. It is freed when the
    /// flush has completed. `pool` must be the pool of the table.
    pub(super) fn detach(&mut self, pool: &Arc<Pool<F>>, span: PageRange, index: u32) {
        self.extend(span);
        let pool = self.pool.get_or_insert_with(|| pool.clone());
        pool.push(&mut self.detached, index);
    }

    /// Returns whether there is nothing to flush.
    ///
    /// # Context
    ///
    /// Any.
    pub fn is_empty(&self) -> bool {
        self.hull.0.is_none()
    }

    /// Returns the range to be flushed, if any.
    ///
    /// # Context
    ///
    /// Any.
    pub fn range(&self) -> Option<PageRange> {
        self.hull.0
    }

    /// Returns the number of pages whose entries were removed, write-protected or replaced.
    ///
    /// # Context
    ///
    /// Any.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Starts the flush.
    ///
    /// # Context
    ///
    /// As for [`Flusher::start`].
    // Always inlined: a call would copy the batch through memory twice.
    #[inline(always)]
    pub fn start<S: Flusher>(self, flusher: &S) -> Flushing<S::Pending, F> {
        let Self {
            pool,
            mut hull,
            detached,
            ..
        } = self;
        let range = hull.0.take();
        let pending = range.map(|range| {
            if let Some(pool) = &pool {
                pool.memory.publish();
            }
            flusher.start(range)
        });
        Flushing {
            pending,
            range,
            pool,
            detached,
        }
    }
}

impl Drop for FlushSpan {
    fn drop(&mut self) {
        if let Some(range) = self.0 {
            crate::alarm!(
                FlushLost,
                "device translations of addresses {:#x} to {:#x} were not flushed: start() the batch and wait() before its pages are freed",
                range.start(),
                range.end()
            );
        }
    }
}

/// A flush that was started and has to be waited for.
#[must_use = "the device may still use removed entries"]
pub struct Flushing<P, F: Format> {
    pending: Option<P>,
    range: Option<PageRange>,
    pool: Option<Arc<Pool<F>>>,
    detached: PageList,
}

impl<P: Send, F: Format> Flushing<P, F> {
    /// Waits until the flush has completed. `flusher` must be the one that has started it.
    ///
    /// # Context
    ///
    /// As for [`Flusher::wait`]. Takes a spinlock.
    #[inline]
    pub fn wait<S: Flusher<Pending = P>>(mut self, flusher: &S) -> Flushed<'_> {
        let flushed = Flushed::by(flusher, self.range, self.pending.take());
        if let Some(pool) = &self.pool {
            pool.release(&mut self.detached);
        }
        flushed
    }

    /// As [`Self::wait`], for a flush that may not have been necessary.
    pub(crate) fn end<S: Flusher<Pending = P>>(this: Option<Self>, flusher: &S) -> Flushed<'_> {
        match this {
            Some(flushing) => flushing.wait(flusher),
            None => Flushed::by(flusher, None, None),
        }
    }
}

impl<P, F: Format> Drop for Flushing<P, F> {
    fn drop(&mut self) {
        if let (Some(range), true) = (self.range, self.pending.is_some()) {
            crate::alarm!(
                FlushNotAwaited,
                "device translations of addresses {:#x} to {:#x} may still be in use: wait() for each flush that was started",
                range.start(),
                range.end()
            );
        }
    }
}
