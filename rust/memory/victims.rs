// SPDX-License-Identifier: GPL-2.0

//! The address spaces of which an eviction has taken pages. To be told of it they are looked for by name: looking at all
//! mirrors of the device would cost more the more processes use it.

use crate::{locks, mm::notifier::Cookie};
use kernel::{prelude::*, sync::SpinLock};

/// Spaces that are told apart between two looks: one folio is rarely mapped by more processes that have a mirror.
const NAMES: usize = 16;

/// Names of spaces.
#[derive(Clone, Copy, Default)]
pub(super) struct Names {
    some: [Option<Cookie>; NAMES],
    /// There were more.
    pub(super) more: bool,
}

impl Names {
    /// Those that are known by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = Cookie> + '_ {
        self.some.iter().flatten().copied()
    }
}

/// Spaces that have lost pages since the last look.
#[pin_data]
pub(super) struct Victims {
    #[pin]
    names: SpinLock<Names>,
}

impl Victims {
    pub(super) fn new() -> impl PinInit<Self> {
        let (name, key) = locks::victims();
        pin_init!(Self {
            names <- SpinLock::new(Names::default(), name, key),
        })
    }

    /// The space `name` has lost pages. Context: any but interrupts.
    pub(super) fn add(&self, name: Cookie) {
        let mut names = self.names.lock();
        if names.some.contains(&Some(name)) {
            return;
        }
        match names.some.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(name),
            None => names.more = true,
        }
    }

    /// Those that were added.
    pub(super) fn take(&self) -> Names {
        core::mem::take(&mut *self.names.lock())
    }
}

#[kunit_tests(rust_hmm_victims)]
mod tests {
    use super::*;

    #[test]
    fn each_is_named_once_and_too_many_are_not_forgotten() -> Result {
        let victims = KBox::pin_init(Victims::new(), GFP_KERNEL)?;
        let places = [0u8; NAMES + 1];
        for _ in 0..2 {
            for place in places.iter().take(NAMES) {
                victims.add(Cookie::of(place));
            }
        }
        let names = victims.take();
        assert_eq!((names.iter().count(), names.more), (NAMES, false));
        assert_eq!(victims.take().iter().count(), 0);
        places
            .iter()
            .for_each(|place| victims.add(Cookie::of(place)));
        assert!(victims.take().more);
        assert!(!victims.take().more);
        Ok(())
    }
}
