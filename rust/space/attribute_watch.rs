// SPDX-License-Identifier: GPL-2.0

//! What tells the attributes of a space that memory was unmapped of which something was said.
//!
//! Attributes may hold for the whole address space, and windows for all of it would be too many. So a space has one
//! notifier over the hull of all ranges that have got some.

use super::Space;
use crate::{
    locks,
    mm::{
        addr::PageRange,
        notifier::{Event, IntervalNotifier, Reason, Subscriber},
        range_fault::AddressSpace,
        rcu_map::RcuArc,
    },
};
use core::ops::ControlFlow;
use kernel::{
    prelude::*,
    sync::{Arc, Mutex},
};

/// The hull begins and ends at multiples of this.
const MARGIN: usize = 64 << 20;

/// Tells the attributes of a space.
struct Hull(RcuArc<Space>);

impl Subscriber for Hull {
    type Pending = ();

    fn invalidate(&self, event: &Event<'_>, _pending: &mut Option<()>) -> ControlFlow<()> {
        if event.reason == Reason::Unmap {
            self.0.attributes.lose(event.range);
        }
        ControlFlow::Continue(())
    }

    fn finish(&self, (): ()) {}
}

/// The notifier, once there are attributes.
#[pin_data]
pub(super) struct AttributeWatch {
    #[pin]
    notifier: Mutex<Option<Arc<IntervalNotifier<Hull>>>>,
}

impl AttributeWatch {
    pub(super) fn new() -> impl PinInit<Self> {
        let (name, key) = locks::attribute_watch();
        pin_init!(Self {
            notifier <- Mutex::new(None, name, key),
        })
    }

    /// Removes it. Context: may sleep; waits for callbacks.
    pub(super) fn remove(&self) {
        let notifier = self.notifier.lock().take();
        drop(notifier);
    }
}

impl Space {
    /// Where the attributes are told when memory is unmapped. Context: may sleep.
    pub(crate) fn watched(&self) -> Option<PageRange> {
        let notifier = self.attribute_watch.notifier.lock();
        notifier.as_ref().map(|notifier| notifier.range())
    }

    /// Has the attributes told from now on when memory of `range` is unmapped.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINTR`: killed. Context: may sleep; the mmap lock must not be held.
    pub(crate) fn watch_attributes(
        space: &RcuArc<Self>,
        mm: &AddressSpace,
        range: PageRange,
    ) -> Result {
        // Before the lock is taken: this may wait for the mmap lock.
        let registered = space.registration.of(mm.mm())?;
        let mut notifier = space.attribute_watch.notifier.lock();
        let hull = notifier.as_ref().map(|notifier| notifier.range());
        if hull.is_some_and(|hull| hull.intersect(&range) == Some(range)) {
            return Ok(());
        }
        // With room, so that a neighbour needs no other one.
        let end = range.end().checked_next_multiple_of(MARGIN);
        let range = PageRange::new(range.start() & !(MARGIN - 1), end.unwrap_or(range.end()))?;
        let hull = hull.map_or(range, |hull| hull.hull(&range));
        let larger = IntervalNotifier::new(registered, hull, Hull(space.clone()));
        let larger = Arc::pin_init(larger, GFP_KERNEL_ACCOUNT)?;
        // The smaller one goes when the larger one is there, and the lock was released.
        let smaller = notifier.replace(larger);
        drop(notifier);
        drop(smaller);
        Ok(())
    }
}
