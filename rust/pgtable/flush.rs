// SPDX-License-Identifier: GPL-2.0

//! What a change of the table makes necessary, in the order in which it has to happen.

use super::{entry::Entry, format::Format, list::List, pool::Pool};
use crate::mm::{
    addr::PageRange,
    flush::{Flushed, Flusher}, //
};
use kernel::sync::Arc;

/// Addresses that have to be flushed. A part of [`FlushBatch`], so that [`FlushBatch::start`] can
/// move the others out.
struct Hull(Option<PageRange>);

/// Gathers what updates make necessary.
///
/// Losing one is no memory error: its table pages are not used again. But the device may go on to
/// use what was removed, so that it is reported.
#[must_use = "the device may still use what was removed"]
pub struct FlushBatch<F: Format> {
    /// Address of the pool of its table. It is never followed.
    name: usize,
    /// That pool, if it is needed after the update: for images, or for detached pages.
    pool: Option<Arc<Pool<F>>>,
    hull: Hull,
    pages: usize,
    pub(super) detached: List,
}

impl<F: Format> FlushBatch<F> {
    pub(super) fn new(pool: &Arc<Pool<F>>) -> Self {
        Self {
            name: Arc::as_ptr(pool).addr(),
            pool: pool.has_images().then(|| pool.clone()),
            hull: Hull(None),
            pages: 0,
            detached: List::EMPTY,
        }
    }

    pub(super) fn is_of(&self, pool: &Arc<Pool<F>>) -> bool {
        self.name == Arc::as_ptr(pool).addr()
    }

    /// Asks for a flush of `range`, too.
    #[inline]
    pub fn cover(&mut self, range: PageRange) {
        let Hull(hull) = &mut self.hull;
        *hull = Some(hull.map_or(range, |hull| hull.hull(&range)));
    }

    /// Takes note of a change of an entry that covers `span`.
    #[inline]
    pub(super) fn record(&mut self, span: PageRange, old: Entry, new: Entry) {
        if old.is_outdated_by(new) {
            self.cover(span);
            self.pages += span.pages();
        }
    }

    /// Takes note of changes of entries of `pages` pages, all within `hull`.
    pub(super) fn record_all(&mut self, hull: Option<PageRange>, pages: usize) {
        if let Some(hull) = hull {
            self.cover(hull);
            self.pages += pages;
        }
    }

    /// Takes a table page of `pool` that covered `span` out of use. `pool` is that of the table.
    pub(super) fn detach(&mut self, pool: &Arc<Pool<F>>, span: PageRange, index: u32) {
        self.cover(span);
        let pool = self.pool.get_or_insert_with(|| pool.clone());
        pool.push(&mut self.detached, index);
    }

    /// Whether nothing has to be flushed.
    pub fn is_empty(&self) -> bool {
        self.hull.0.is_none()
    }

    /// What has to be flushed.
    pub fn range(&self) -> Option<PageRange> {
        self.hull.0
    }

    /// Pages of entries that were removed, write-protected or replaced.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Starts the flush.
    // Always inlined: a call would move all of this through memory twice.
    #[inline(always)]
    pub fn start<S: Flusher>(self, flusher: &S) -> Flushing<S::Pending, F> {
        let Self {
            pool,
            mut hull,
            detached,
            ..
        } = self;
        let pending = hull.0.take().map(|range| {
            if let Some(pool) = &pool {
                pool.memory.settle();
            }
            flusher.start(range)
        });
        Flushing {
            pending,
            pool,
            detached,
        }
    }
}

impl Drop for Hull {
    fn drop(&mut self) {
        if self.0.is_some() {
            crate::alarm!(
                FlushLost,
                "device translations of {:?} were not flushed: start() the batch and wait() before its pages are freed",
                self.0
            );
        }
    }
}

/// A flush that was started.
#[must_use = "the device may still use what was removed"]
pub struct Flushing<P, F: Format> {
    pending: Option<P>,
    pool: Option<Arc<Pool<F>>>,
    detached: List,
}

impl<P: Send, F: Format> Flushing<P, F> {
    /// Waits for its end, on the flusher that has started it.
    #[inline]
    pub fn wait<S: Flusher<Pending = P>>(mut self, flusher: &S) -> Flushed {
        let flushed = Flushed::by(flusher, self.pending.take());
        if let Some(pool) = &self.pool {
            pool.release(&mut self.detached);
        }
        flushed
    }

    /// The same of what there is to flush, if anything.
    pub(crate) fn end<S: Flusher<Pending = P>>(this: Option<Self>, flusher: &S) -> Flushed {
        match this {
            Some(flushing) => flushing.wait(flusher),
            None => Flushed::by(flusher, None),
        }
    }
}

impl<P, F: Format> Drop for Flushing<P, F> {
    fn drop(&mut self) {
        if self.pending.is_some() {
            crate::alarm!(
                FlushNotAwaited,
                "device translations may still be in use: wait() for each flush that was started"
            );
        }
    }
}
