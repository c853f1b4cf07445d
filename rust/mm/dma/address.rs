// SPDX-License-Identifier: GPL-2.0

//! Addresses that a device uses. There are three kinds, and none can be written where another is meant: each is a
//! type of its own, and only what hands it out can make one.

use kernel::page::PAGE_SHIFT;

macro_rules! address {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// The one at byte `raw`.
            pub(crate) const fn new(raw: u64) -> Self {
                Self(raw)
            }

            /// As the hardware is told, in bytes.
            pub const fn raw(self) -> u64 {
                self.0
            }

            /// `bytes` behind it. The caller knows that what it names goes on so far.
            pub const fn plus(self, bytes: u64) -> Self {
                Self(self.0.wrapping_add(bytes))
            }
        }
    )*};
}

address! {
    /// Where a device reads and writes system memory: what the DMA API gave for it. Good for one device only, and as
    /// long as the page is mapped for it.
    DmaAddress;

    /// A place in a device's own memory, in bytes from its start. No DMA address: other devices, and the CPU, know
    /// nothing of it.
    DeviceAddress;

    /// Where a device reads and writes memory of another device, or of another function of its card, by way of the
    /// bus. Good for one device only.
    PeerAddress;
}

impl DeviceAddress {
    /// The start of the memory.
    pub const START: Self = Self::new(0);
}

impl DmaAddress {
    /// The number of its page, as it stands in a page table.
    pub(crate) const fn frame(self) -> usize {
        // CAST: Both have 64 bits.
        (self.0 >> PAGE_SHIFT) as usize
    }

    /// The address of page `frame`.
    pub(crate) const fn from_frame(frame: usize) -> Self {
        // CAST: Both have 64 bits.
        Self((frame as u64) << PAGE_SHIFT)
    }
}
