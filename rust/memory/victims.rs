// SPDX-License-Identifier: GPL-2.0

//! Address spaces whose pages were evicted. Their mirrors are found by identity to be notified,
//! because a walk of all mirrors of the device would cost more with each process.

use crate::kernel::{
    identity::MmId,
    lock_classes, //
};
use kernel::{
    prelude::*,
    sync::SpinLock, //
};

/// Maximum number of spaces that are recorded separately. A folio is rarely mapped by more
/// processes that have a mirror.
const MAX_VICTIM_SPACES: usize = 16;

/// Identities of address spaces.
#[derive(Clone, Copy, Default)]
pub(super) struct SpaceSet {
    some: [Option<MmId>; MAX_VICTIM_SPACES],
    /// Whether there were more than fit.
    pub(super) more: bool,
}

impl SpaceSet {
    /// Returns the recorded identities.
    pub(super) fn iter(&self) -> impl Iterator<Item = MmId> + '_ {
        self.some.iter().flatten().copied()
    }
}

/// Spaces that have lost pages since the last [`Self::take`].
#[pin_data]
pub(super) struct Victims {
    #[pin]
    names: SpinLock<SpaceSet>,
}

impl Victims {
    pub(super) fn new() -> impl PinInit<Self> {
        let (name, key) = lock_classes::victims();
        pin_init!(Self {
            names <- SpinLock::new(SpaceSet::default(), name, key),
        })
    }

    /// Records that the space `name` has lost pages.
    ///
    /// # Context
    ///
    /// Any but interrupts.
    pub(super) fn add(&self, name: MmId) {
        let mut names = self.names.lock();
        if names.some.contains(&Some(name)) {
            return;
        }
        match names.some.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(name),
            None => names.more = true,
        }
    }

    /// Takes the recorded spaces, and empties the record.
    pub(super) fn take(&self) -> SpaceSet {
        core::mem::take(&mut *self.names.lock())
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_victims)]
mod tests {
    use super::*;

    #[test]
    fn victims_are_listed_once_and_overflow_is_reported() -> Result {
        let victims = KBox::pin_init(Victims::new(), GFP_KERNEL)?;
        for _ in 0..2 {
            (0..MAX_VICTIM_SPACES).for_each(|number| victims.add(MmId::for_test(number)));
        }
        let names = victims.take();
        assert_eq!(
            (names.iter().count(), names.more),
            (MAX_VICTIM_SPACES, false)
        );
        assert_eq!(victims.take().iter().count(), 0);
        (0..=MAX_VICTIM_SPACES).for_each(|number| victims.add(MmId::for_test(number)));
        assert!(victims.take().more);
        assert!(!victims.take().more);
        Ok(())
    }
}
