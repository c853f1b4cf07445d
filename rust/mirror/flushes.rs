// SPDX-License-Identifier: GPL-2.0

//! Flushes that were begun when a space told its mirrors of an event, and are waited for when all were told.

use crate::locks;
use kernel::{
    prelude::*,
    sync::SpinLock, //
};

/// Events whose flushes overlap. The flush of one more is waited for at once.
const PLACES: usize = 4;

/// Flushes, with the number of the event that each is of.
struct Places<T>([Option<(usize, T)>; PLACES]);

// A flush is moved in and out.
impl<T> Unpin for Places<T> {}

/// Places for flushes.
#[pin_data]
pub(super) struct Flushes<T> {
    #[pin]
    places: SpinLock<Places<T>>,
}

impl<T> Flushes<T> {
    pub(super) fn new() -> impl PinInit<Self> {
        let (name, key) = locks::flushes();
        pin_init!(Self {
            places <- SpinLock::new(Places([const { None }; PLACES]), name, key),
        })
    }

    /// Keeps `flush` of the event with number `event`, and returns its place; gives it back if there is none.
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

    /// Takes the flush in place `number`, which was kept there.
    pub(super) fn take(&self, number: usize) -> Option<T> {
        let (_, flush) = self.places.lock().0.get_mut(number)?.take()?;
        Some(flush)
    }

    /// How many are kept of the event with number `event`.
    pub(super) fn count(&self, event: usize) -> usize {
        let places = self.places.lock();
        let all = places.0.iter().flatten();
        all.filter(|(number, _)| *number == event).count()
    }
}
