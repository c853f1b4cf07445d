// SPDX-License-Identifier: GPL-2.0

//! Flags of managed memory, which the offset of its mapping encodes, and its default attributes.

use super::{
    Attributes,
    PreferredLocation, //
};

/// Bit of the offset that marks a mapping of the device file as managed memory. The bits below
/// distinguish allocations. No mapping is large enough for its offsets to carry into this bit.
pub(crate) const OFFSET_MANAGED: usize = 1 << 48;
const OFFSET_HOST_SHARED: usize = 1 << 49;
const OFFSET_POPULATE: usize = 1 << 50;
const OFFSET_HUGE: usize = 1 << 51;
/// All bits that an offset of managed memory may have.
pub(crate) const OFFSET_MASK: usize =
    (OFFSET_MANAGED - 1) | OFFSET_MANAGED | OFFSET_HOST_SHARED | OFFSET_POPULATE | OFFSET_HUGE;

/// Flags of a managed allocation.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::managed::Flags;
///
/// let flags = Flags {
///     populate: true,
///     ..Flags::default()
/// };
/// assert_eq!(Flags::of(flags.offset()), Some(flags));
/// // Not an offset of managed memory.
/// assert_eq!(Flags::of(0), None);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// The memory is used by the host as much as by the device: a device fault maps it in place.
    pub host_shared: bool,
    /// The whole allocation is populated in device memory, when it is allocated or at the first
    /// device fault.
    pub populate: bool,
    /// Huge pages are preferred; the length is a multiple of a huge page.
    pub huge: bool,
}

impl Flags {
    /// Returns the flags that `offset` encodes; `None` if it is not an offset of managed memory.
    ///
    /// # Context
    ///
    /// Any.
    pub fn of(offset: usize) -> Option<Self> {
        (offset & OFFSET_MANAGED != 0).then_some(Self {
            host_shared: offset & OFFSET_HOST_SHARED != 0,
            populate: offset & OFFSET_POPULATE != 0,
            huge: offset & OFFSET_HUGE != 0,
        })
    }

    /// Returns the attributes of a managed allocation for which none were set.
    pub(crate) fn attributes(self) -> Attributes {
        Attributes::preferring(if self.host_shared {
            PreferredLocation::System
        } else {
            PreferredLocation::Device
        })
    }

    /// Returns the offset bits that encode the flags.
    ///
    /// # Context
    ///
    /// Any.
    pub fn offset(self) -> usize {
        let bit = |yes: bool, bit| if yes { bit } else { 0 };
        OFFSET_MANAGED
            | bit(self.host_shared, OFFSET_HOST_SHARED)
            | bit(self.populate, OFFSET_POPULATE)
            | bit(self.huge, OFFSET_HUGE)
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[::kernel::prelude::kunit_tests(rust_hmm_managed_flags)]
mod tests {
    use super::*;
    use kernel::{
        page::PAGE_SIZE,
        prelude::*, //
    };

    #[test]
    fn offset_encodes_the_flags() -> Result {
        for bits in 0..8 {
            let flags = Flags {
                host_shared: bits & 1 != 0,
                populate: bits & 2 != 0,
                huge: bits & 4 != 0,
            };
            assert_eq!(Flags::of(flags.offset()), Some(flags));
            // The offset of a page in the middle of the mapping.
            assert_eq!(Flags::of(flags.offset() + 77 * PAGE_SIZE), Some(flags));
        }
        assert_eq!(Flags::of(0), None);
        assert_eq!(Flags::of(77 * PAGE_SIZE), None);
        Ok(())
    }
}
