// SPDX-License-Identifier: GPL-2.0

//! Flushes that were started while a space notifies its mirrors of an event. They are waited for
//! after all mirrors were notified.

use super::Device;
use crate::{
    kernel::lock_classes,
    mm::addr::PageRange,
    pgtable::Flushing,
    space::StartedFlush, //
};
use kernel::{
    prelude::*,
    sync::SpinLock, //
};

/// Maximum number of events of one mirror whose flushes overlap. The flush of a further event is
/// waited for immediately.
const MAX_PENDING_FLUSHES: usize = 4;

/// Outstanding flush of a mirror.
pub(crate) type Flush<D> = Flushing<PendingFlush<<D as Device>::Flush>, <D as Device>::Format>;

/// Outstanding flush of `range` by the device. After it, the DMA mappings of the range that were
/// retired before `tick` are unmapped.
pub(crate) struct PendingFlush<P> {
    pub(super) flush: P,
    pub(super) range: PageRange,
    pub(super) tick: Option<u32>,
}

/// An outstanding flush of an event.
struct EventFlush<T> {
    /// Number of its event.
    event: usize,
    flush: T,
    /// A flush of another mirror for the same event.
    next: Option<StartedFlush>,
}

/// Outstanding flushes. Not in the mirror itself, which is moved on the stack when it is made.
struct FlushSlots<T>(KVec<Option<EventFlush<T>>>);

impl<T> FlushSlots<T> {
    #[inline(never)]
    fn new() -> Result<Self> {
        let mut slots = KVec::with_capacity(MAX_PENDING_FLUSHES, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..MAX_PENDING_FLUSHES {
            slots.push(None, GFP_KERNEL_ACCOUNT)?;
        }
        Ok(Self(slots))
    }
}

// Flushes are moved in and out, and are not structurally pinned.
impl<T> Unpin for FlushSlots<T> {}

/// Storage for outstanding flushes.
#[pin_data]
pub(super) struct PendingFlushes<T> {
    #[pin]
    places: SpinLock<FlushSlots<T>>,
}

impl<T> PendingFlushes<T> {
    pub(super) fn new() -> impl PinInit<Self, Error> {
        let (name, key) = lock_classes::flushes();
        try_pin_init!(Self {
            places <- SpinLock::new(FlushSlots::new()?, name, key),
        }? Error)
    }

    /// Stores the `flush` of the event with number `event`, and returns its index. Returns the
    /// flush if there is no place for it.
    pub(super) fn keep(&self, event: usize, flush: T) -> Result<usize, T> {
        let mut places = self.places.lock();
        let free = places.0.iter_mut().enumerate();
        match free.into_iter().find(|(_, place)| place.is_none()) {
            Some((number, place)) => {
                *place = Some(EventFlush {
                    event,
                    flush,
                    next: None,
                });
                Ok(number)
            }
            None => Err(flush),
        }
    }

    /// Links the flush that was stored at index `number` to `next`. The flush has no link yet.
    pub(super) fn link(&self, number: usize, next: StartedFlush) {
        let mut places = self.places.lock();
        if let Some(Some(place)) = places.0.get_mut(number) {
            place.next = Some(next);
        }
    }

    /// Takes the flush that was stored at index `number`, and its link.
    pub(super) fn take(&self, number: usize) -> Option<(T, Option<StartedFlush>)> {
        let place = self.places.lock().0.get_mut(number)?.take()?;
        Some((place.flush, place.next))
    }

    /// Returns the number of flushes stored for the event with number `event`.
    pub(super) fn count(&self, event: usize) -> usize {
        let places = self.places.lock();
        let all = places.0.iter().flatten();
        all.filter(|place| place.event == event).count()
    }
}
