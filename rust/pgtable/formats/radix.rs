// SPDX-License-Identifier: GPL-2.0

//! Format like that of x86-64.

use crate::pgtable::{
    DevicePte,
    Format, //
};

/// Format like that of x86-64: levels of 9 bits, entries of 64 bits, leaves of 4 KiB and 2 MiB.
/// The bits of an entry are present (0), writable (1), user (2) and leaf above level 0 (7); the
/// address begins at bit 12. There is no bit that forbids execution. Of the bits available to
/// software, 9 is set for device memory and 10 for exclusive access.
///
/// # Examples
///
/// ```
/// use rust_hmm::pgtable::DevicePte;
/// use rust_hmm::pgtable::Format;
/// use rust_hmm::pgtable::Radix4;
///
/// // Present, writable and for user space.
/// assert_eq!(Radix4::leaf(0, DevicePte::system(0x1234, true)), 0x123_4007);
/// ```
pub enum Radix<const LEVELS: u32> {}

/// Four levels: addresses of 48 bits, the default address space of a process.
pub type Radix4 = Radix<4>;

/// Five levels: addresses of 57 bits, the largest address space of a process.
pub type Radix5 = Radix<5>;

impl<const LEVELS: u32> Radix<LEVELS> {
    const PRESENT: u64 = 1 << 0;
    const WRITABLE: u64 = 1 << 1;
    const USER: u64 = 1 << 2;
    const LARGE: u64 = 1 << 7;
    const DEVICE: u64 = 1 << 9;
    const EXCLUSIVE: u64 = 1 << 10;
}

impl<const LEVELS: u32> Format for Radix<LEVELS> {
    type Word = u64;

    const LEVELS: u32 = LEVELS;
    const BITS: u32 = 9;
    const LEAVES: &'static [u32] = &[0, 9];

    fn table(_level: u32, address: u64) -> u64 {
        address | Self::PRESENT | Self::WRITABLE | Self::USER
    }

    fn leaf(order: u32, entry: DevicePte) -> u64 {
        let flag = |set: bool, bit: u64| if set { bit } else { 0 };
        (entry.number() as u64) << Self::PAGE_SHIFT
            | Self::PRESENT
            | Self::USER
            | flag(entry.may_be_dirty(), Self::WRITABLE)
            | flag(order != 0, Self::LARGE)
            | flag(entry.is_device(), Self::DEVICE)
            | flag(entry.is_exclusive(), Self::EXCLUSIVE)
    }
}
