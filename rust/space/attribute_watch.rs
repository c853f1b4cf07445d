// SPDX-License-Identifier: GPL-2.0

//! The interval notifier that reports unmapped memory to the attributes of a space.
//!
//! Attributes may apply to the whole address space, which would need too many notifier windows.
//! Therefore a space has one more notifier, over the hull of all ranges that got attributes.

use super::Space;
use crate::{
    kernel::{
        lock_classes,
        rcu_map::RcuArc, //
    },
    mm::{
        addr::PageRange,
        notifier::{
            IntervalNotifier,
            NotifierEvent,
            NotifierOps,
            NotifierRange, //
        },
        range_fault::AddressSpace, //
    }, //
};
use core::ops::ControlFlow;
use kernel::{
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// Alignment of the hull, in bytes.
const SPAN_ALIGN_BYTES: usize = 64 << 20;

/// Subscriber that reports unmap events to the attributes of a space.
struct UnmapNotifier(RcuArc<Space>);

impl NotifierOps for UnmapNotifier {
    type Pending = ();

    fn invalidate(&self, event: &NotifierRange<'_>, _pending: &mut Option<()>) -> ControlFlow<()> {
        if event.reason == NotifierEvent::Unmap {
            self.0.attributes.orphan(event.range);
        }
        ControlFlow::Continue(())
    }

    fn finish(&self, (): ()) {}
}

/// The notifier of a space. `None` until attributes are set.
#[pin_data]
pub(super) struct AttributeWatch {
    #[pin]
    notifier: Mutex<Option<Arc<IntervalNotifier<UnmapNotifier>>>>,
}

impl AttributeWatch {
    pub(super) fn new() -> impl PinInit<Self> {
        let (name, key) = lock_classes::attribute_watch();
        pin_init!(Self {
            notifier <- Mutex::new(None, name, key),
        })
    }

    /// Removes the notifier. Context: may sleep; waits for running callbacks.
    pub(super) fn remove(&self) {
        let notifier = self.notifier.lock().take();
        drop(notifier);
    }
}

impl Space {
    /// Returns the range whose unmap events reach the attributes. Context: may sleep.
    pub(crate) fn watched(&self) -> Option<PageRange> {
        let notifier = self.attribute_watch.notifier.lock();
        notifier.as_ref().map(|notifier| notifier.range())
    }

    /// Extends the notifier to `range`. From then on, unmap events of `range` reach the attributes.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    /// - `EINTR` if the task was killed.
    ///
    /// # Context
    ///
    /// May sleep; the mmap lock must not be held.
    pub(crate) fn watch_attributes(
        space: &RcuArc<Self>,
        mm: &AddressSpace,
        range: PageRange,
    ) -> Result {
        // Before the mutex is taken, because this may wait for the mmap lock.
        let registered = space.registration.of(mm.mm())?;
        let mut notifier = space.attribute_watch.notifier.lock();
        let hull = notifier.as_ref().map(|notifier| notifier.range());
        if hull.is_some_and(|hull| hull.intersect(&range) == Some(range)) {
            return Ok(());
        }
        // Aligned, so that a neighbouring range usually needs no other notifier.
        let end = range.end().checked_next_multiple_of(SPAN_ALIGN_BYTES);
        let range = PageRange::new(
            range.start() & !(SPAN_ALIGN_BYTES - 1),
            end.unwrap_or(range.end()),
        )?;
        let hull = hull.map_or(range, |hull| hull.union(&range));
        let larger = IntervalNotifier::new(registered, hull, UnmapNotifier(space.clone()));
        let larger = Arc::pin_init(larger, GFP_KERNEL_ACCOUNT)?;
        // The former notifier is removed after the larger one was inserted, so that no event is
        // missed, and without the mutex, because the removal waits for callbacks.
        let smaller = notifier.replace(larger);
        drop(notifier);
        drop(smaller);
        Ok(())
    }
}
