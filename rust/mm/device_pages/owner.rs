// SPDX-License-Identifier: GPL-2.0

//! The owner of device memory: the device, as the kernel and the entries of page tables name it.

use super::{super::notifier::Cookie, MAX_PAGES};
use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc, //
    },
};

/// The owner of one memory, or of several memories of one device (tiles).
///
/// Each memory gets an interval of the owner's numbers. No interval is given twice, so that a
/// number names one page of one memory for the life of the owner.
pub struct Owner {
    /// Numbers that were given to memories.
    given: Atomic<usize>,
}

impl Owner {
    /// An owner without memory. `ENOMEM`. Context: may sleep.
    pub fn new() -> Result<Arc<Self>> {
        let given = Atomic::new(0);
        Ok(Arc::new(Self { given }, GFP_KERNEL)?)
    }

    /// Its name in the kernel. No other object can have the same name, not even one that encloses
    /// it: own events are recognised by it.
    pub(super) fn name(&self) -> Cookie {
        Cookie::inside(self)
    }

    /// Gives `count` consecutive numbers, of which the first one is returned.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there would be more than [`MAX_PAGES`].
    pub(super) fn give(&self, count: usize) -> Result<usize> {
        let mut given = self.given.load(Relaxed);
        loop {
            let next = given.checked_add(count).filter(|next| *next <= MAX_PAGES);
            match self.given.cmpxchg(given, next.ok_or(EINVAL)?, Relaxed) {
                Ok(_) => return Ok(given),
                Err(now) => given = now,
            }
        }
    }
}

#[kunit_tests(rust_hmm_owner)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_given_twice() -> Result {
        let owner = Owner::new()?;
        assert_eq!((owner.give(512)?, owner.give(1024)?), (0, 512));
        assert_eq!(owner.give(0)?, 1536);
        // A request that fails takes nothing.
        for count in [MAX_PAGES, usize::MAX] {
            assert_eq!(owner.give(count).err(), Some(EINVAL));
        }
        assert_eq!(owner.give(MAX_PAGES - 1536)?, 1536);
        assert_eq!(owner.give(1).err(), Some(EINVAL));
        Ok(())
    }
}
