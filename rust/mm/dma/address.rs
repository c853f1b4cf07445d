// SPDX-License-Identifier: GPL-2.0

//! Addresses that a device uses. The three kinds are distinct types, so that none can be passed
//! where another is meant, and only the code that hands out an address can create one.

use kernel::page::PAGE_SHIFT;

macro_rules! address {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// Creates the address of byte `raw`.
            pub(crate) const fn new(raw: u64) -> Self {
                Self(raw)
            }

            /// Returns the address in bytes, as it is programmed into the device.
            ///
            /// # Context
            ///
            /// Any.
            pub const fn raw(self) -> u64 {
                self.0
            }

            /// Returns the address `bytes` bytes further. The caller ensures that the memory
            /// extends that far.
            ///
            /// # Context
            ///
            /// Any.
            pub const fn plus(self, bytes: u64) -> Self {
                Self(self.0.wrapping_add(bytes))
            }
        }
    )*};
}

address! {
    /// A DMA address: the address by which a device accesses system memory, as returned by the DMA
    /// API. Valid for one device, while the page is mapped for it.
    ///
    /// # Examples
    ///
    /// ```
    /// use rust_hmm::mm::dma::DmaAddress;
    ///
    /// /// Writes the low and the high half of an address to the registers of a copy engine.
    /// fn program(address: DmaAddress, mut write: impl FnMut(usize, u32)) {
    ///     write(0x10, address.raw() as u32);
    ///     write(0x14, (address.raw() >> 32) as u32);
    /// }
    /// ```
    DmaAddress;

    /// An offset in a device's own memory, in bytes. It is not a DMA address: other devices and the
    /// CPU cannot use it.
    DeviceAddress;

    /// The bus address by which a device accesses memory of another device or of another function.
    /// Valid for one device.
    PeerAddress;
}

impl DeviceAddress {
    /// The start of the device's memory.
    pub const START: Self = Self::new(0);
}

impl DmaAddress {
    /// Returns the page frame number of the address, as stored in device page tables.
    pub(crate) const fn frame(self) -> usize {
        // CAST: Both have 64 bits.
        (self.0 >> PAGE_SHIFT) as usize
    }

    /// Returns the address of page frame `frame`.
    pub(crate) const fn from_frame(frame: usize) -> Self {
        // CAST: Both have 64 bits.
        Self((frame as u64) << PAGE_SHIFT)
    }
}
