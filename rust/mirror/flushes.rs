// SPDX-License-Identifier: GPL-2.0

//! Flushes that were started while a space notifies its mirrors of an event. They are waited for
//! after all mirrors were notified.

use crate::kernel::lock_classes;
use kernel::{
    prelude::*,
    sync::SpinLock, //
};

/// Maximum number of flushes that overlap. A further one is waited for immediately.
const MAX_PENDING_FLUSHES: usize = 4;

/// Outstanding flushes, each with the number of its event.
struct FlushSlots<T>([Option<(usize, T)>; MAX_PENDING_FLUSHES]);

// Flushes are moved in and out, and are not structurally pinned.
impl<T> Unpin for FlushSlots<T> {}

/// Storage for outstanding flushes.
#[pin_data]
pub(super) struct PendingFlushes<T> {
    #[pin]
    places: SpinLock<FlushSlots<T>>,
}

impl<T> PendingFlushes<T> {
    pub(super) fn new() -> impl PinInit<Self> {
        let (name, key) = lock_classes::flushes();
        pin_init!(Self {
            places <- SpinLock::new(FlushSlots([const { None }; MAX_PENDING_FLUSHES]), name, key),
        })
    }

    /// Stores the `flush` of the event with number `event`, and returns its index. Returns the
    /// flush if there is no place for it.
    pub(super) fn keep(&self, event: usize, flush: T) -> Result<usize, T> {
        let mut places = self.places.lock();
        let free = places.0.iter_mut().enumerate();
        match free.into_iter().find(|(_, place)| place.is_none()) {
            Some((number, place)) => {
                *place = Some((event, flush));
                Ok(number)
            }
            None => Err(flush),
        }
    }

    /// Takes the flush that was stored at index `number`.
    pub(super) fn take(&self, number: usize) -> Option<T> {
        let (_, flush) = self.places.lock().0.get_mut(number)?.take()?;
        Some(flush)
    }

    /// Returns the number of flushes stored for the event with number `event`.
    pub(super) fn count(&self, event: usize) -> usize {
        let places = self.places.lock();
        let all = places.0.iter().flatten();
        all.filter(|(number, _)| *number == event).count()
    }
}
