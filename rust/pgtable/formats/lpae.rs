// SPDX-License-Identifier: GPL-2.0

//! 64-bit Arm, stage 1: the format of SMMUs and of GPUs of Arm and Apple.
//!
//! Arm Architecture Reference Manual for A-profile, D8.3, "Translation table descriptor formats".

use crate::pgtable::{
    DevicePte,
    Format, //
};
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
use kernel::prelude::*;

/// VMSAv8-64 of stage 1 with a granule of `1 << GRANULE_SHIFT` bytes: see [`Lpae`] and [`Lpae16k`].
/// Output addresses have 48 bits. Leaves are pages, the entries of the Contiguous bit in the last
/// level, and blocks of the level above.
///
/// [`Self::MAIR`] has the attributes that entries refer to. All memory is write-back cacheable and
/// inner shareable, the device's own as well: a change of these attributes requires
/// break-before-make ("Using break-before-make when updating translation table entries"), and a
/// page that migrates gets its other address by one write. All entries may be accessed without
/// privilege (AP\[1\]), have the access flag, are not global, and forbid execution.
///
/// A granule cannot map pages that are smaller, so it cannot mirror a process whose pages are.
///
/// Entries are replaced without break-before-make even if their size changes, which the
/// architecture permits with FEAT_BBM level 2. For an MMU without it use
/// [`BreakBeforeMake`](crate::pgtable::BreakBeforeMake). When a page migrates, its entry gets
/// another address, and is read-only until the flush has completed. This needs no
/// break-before-make, because both pages have the same contents. Until then an MMU may use the old
/// or the new page; the library frees the old page afterwards.
///
/// # Examples
///
/// ```
/// use rust_hmm::pgtable::BreakBeforeMake;
/// use rust_hmm::pgtable::DmaFormat;
/// use rust_hmm::pgtable::formats::Lpae;
///
/// /// `Device::Format` of a device with DMA addresses, without FEAT_BBM level 2.
/// type DeviceFormat = DmaFormat<BreakBeforeMake<Lpae>>;
///
/// /// Sets the device up for the attributes of the entries.
/// fn set_up(write_mair: impl FnOnce(u64)) {
///     write_mair(Lpae::MAIR);
/// }
/// ```
pub enum LpaeGranule<const GRANULE_SHIFT: u32> {}

/// A granule of 4 KiB, with 48 bits of input address: levels 0 to 3 of the architecture, which are
/// 3 to 0 here. Leaves have 4 KiB, 64 KiB by the Contiguous bit, and 2 MiB.
pub type Lpae = LpaeGranule<12>;

/// A granule of 16 KiB, with 47 bits of input address, those of a process with such pages: levels 1
/// to 3 of the architecture, which are 2 to 0 here. Leaves have 16 KiB, 2 MiB by the Contiguous
/// bit, and 32 MiB. Only for kernels with pages of 16 KiB.
pub type Lpae16k = LpaeGranule<14>;

impl<const GRANULE_SHIFT: u32> LpaeGranule<GRANULE_SHIFT> {
    /// Memory attributes, for `MAIR_EL1` or the equivalent register of the device. Index 0 is
    /// non-cacheable normal memory, 1 write-back cacheable normal memory, and 2 device memory
    /// (nGnRE), as in the kernel's `io-pgtable-arm`.
    pub const MAIR: u64 = 0x44 | 0xff << 8 | 0x04 << 16;

    /// Valid, and a table, or at the last level a page.
    const TABLE: u64 = 0b11;
    const PAGE: u64 = 0b11;
    const BLOCK: u64 = 0b01;

    const ATTR_INDEX_SHIFT: u32 = 2;
    const CACHEABLE: u64 = 1 << Self::ATTR_INDEX_SHIFT;

    /// AP\[1\]: access without privilege. AP\[2\]: no writes.
    const UNPRIVILEGED: u64 = 1 << 6;
    const READ_ONLY: u64 = 1 << 7;
    const INNER_SHAREABLE: u64 = 3 << 8;
    const ACCESSED: u64 = 1 << 10;
    const NOT_GLOBAL: u64 = 1 << 11;
    const CONTIGUOUS: u64 = 1 << 52;
    const NO_EXECUTE: u64 = 1 << 53 | 1 << 54;

    /// Bits of an address.
    const ADDRESS_BITS: u32 = 48;

    /// Orders of runs in the last level, and of blocks.
    const RUN_ORDER: u32 = {
        // At compile time.
        assert!(GRANULE_SHIFT == 12 || GRANULE_SHIFT == 14);
        if GRANULE_SHIFT == 12 {
            4
        } else {
            7
        }
    };
    const BLOCK_ORDER: u32 = GRANULE_SHIFT - 3;
}

impl<const GRANULE_SHIFT: u32> Format for LpaeGranule<GRANULE_SHIFT> {
    type Word = u64;

    const LEVELS: u32 = if GRANULE_SHIFT == 12 { 4 } else { 3 };
    const BITS: u32 = GRANULE_SHIFT - 3;
    const PAGE_SHIFT: u32 = GRANULE_SHIFT;
    const LEAVES: &'static [u32] = &[0, Self::RUN_ORDER, Self::BLOCK_ORDER];

    fn can_hold(entry: DevicePte) -> bool {
        entry.number() >> (Self::ADDRESS_BITS - Self::PAGE_SHIFT) == 0
    }

    fn can_link(address: u64) -> bool {
        address >> Self::ADDRESS_BITS == 0
    }

    fn table(_level: u32, address: u64) -> u64 {
        address | Self::TABLE
    }

    fn leaf(order: u32, entry: DevicePte) -> u64 {
        let kind = if order == Self::BLOCK_ORDER {
            Self::BLOCK
        } else if order == Self::RUN_ORDER {
            Self::PAGE | Self::CONTIGUOUS
        } else {
            Self::PAGE
        };
        let memory = Self::CACHEABLE | Self::INNER_SHAREABLE;
        let rights = if entry.may_be_dirty() {
            Self::UNPRIVILEGED
        } else {
            Self::UNPRIVILEGED | Self::READ_ONLY
        };
        let always = Self::ACCESSED | Self::NOT_GLOBAL | Self::NO_EXECUTE;
        (entry.number() as u64) << Self::PAGE_SHIFT | kind | memory | rights | always
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_lpae)]
mod tests {
    use super::*;

    /// The expected words are composed by hand from the bit positions of the manual.
    #[test]
    fn bits_match_the_manual() {
        assert_eq!(Lpae::table(1, 0x1234_5000), 0x1234_5003);
        // Page, attribute 1, AP 11 (read-only), SH 11, AF, nG, PXN, UXN.
        let page = 0x0060_0000_0000_0003 | 1 << 2 | 0b11 << 6 | 0b11 << 8 | 1 << 10 | 1 << 11;
        assert_eq!(
            Lpae::leaf(0, DevicePte::system(0x77, false)),
            page | 0x7_7000
        );
        // AP 01: may be written.
        let writable = page & !(1 << 7);
        assert_eq!(Lpae::leaf(0, DevicePte::system(1, true)), writable | 0x1000);
        assert_eq!(Lpae::leaf(0, DevicePte::exclusive(1)), writable | 0x1000);
        // Contiguous; block.
        assert_eq!(
            Lpae::leaf(4, DevicePte::system(16, true)),
            writable | 1 << 52 | 0x1_0000
        );
        let block = (writable & !0b11) | 0b01 | 0x20_0000;
        assert_eq!(Lpae::leaf(9, DevicePte::system(512, true)), block);
        // Device memory has the same attributes.
        assert_eq!(Lpae::leaf(0, DevicePte::device(1, true)), writable | 0x1000);
        let last = DevicePte::system((1 << 36) - 1, true);
        assert!(Lpae::can_hold(last) && !Lpae::can_hold(last.plus(1)));
        assert!(Lpae::can_link((1 << 48) - 4096) && !Lpae::can_link(1 << 48));
        // With a granule of 16 KiB, page numbers count these.
        let large = |order, number| Lpae16k::leaf(order, DevicePte::system(number, true));
        assert_eq!(large(0, 3), writable | 3 << 14);
        assert_eq!(large(7, 128), writable | 1 << 52 | 2 << 20);
        assert_eq!(large(11, 2048), (writable & !0b11) | 0b01 | 32 << 20);
        let last = DevicePte::system((1 << 34) - 1, true);
        assert!(Lpae16k::can_hold(last) && !Lpae16k::can_hold(last.plus(1)));
    }
}
