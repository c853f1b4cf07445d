// SPDX-License-Identifier: GPL-2.0

//! Page table format of AMD GPUs of generation 9 (Vega).
//!
//! The bits are those of `drivers/gpu/drm/amd/amdgpu/amdgpu_vm.h`.

use crate::pgtable::{
    DevicePte,
    Format, //
};
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
use kernel::prelude::*;

/// Page table of GFX9 with four levels (PDB2, PDB1, PDB0, PTB) and addresses of 48 bits. Leaves are
/// pages of 4 KiB, fragments of 64 KiB, and huge pages of 2 MiB, for which an entry of PDB0 is a
/// PTE ("PDE as PTE").
///
/// Accesses to system memory are snooped. Tables must be in system memory, because tables in device
/// memory need other PDEs. No page is executable. The hardware must be set up without "translate
/// further".
///
/// Pages of device memory need the address at which the GPU accesses its memory
/// ([`TableMemory::with_device_pages_at`](crate::mm::table_memory::TableMemory::with_device_pages_at)).
///
/// # Examples
///
/// ```
/// use rust_hmm::pgtable::DevicePte;
/// use rust_hmm::pgtable::Format;
/// use rust_hmm::pgtable::formats::Gfx9;
///
/// // The lowest bit of an entry says that it is valid.
/// assert_eq!(Gfx9::leaf(0, DevicePte::system(0x1234, true)) & 1, 1);
/// assert!(!Gfx9::can_link(1 << 48));
/// ```
pub enum Gfx9 {}

impl Gfx9 {
    const VALID: u64 = 1 << 0;
    const SYSTEM: u64 = 1 << 1;
    const SNOOPED: u64 = 1 << 2;
    const READABLE: u64 = 1 << 5;
    const WRITEABLE: u64 = 1 << 6;
    /// Position of the log2 of the number of pages in the fragment that contains the entry.
    const FRAGMENT_SHIFT: u32 = 7;
    /// The entry of a directory is a PTE.
    const IS_PTE: u64 = 1 << 54;

    /// Number of address bits.
    const ADDRESS_BITS: u32 = 48;
    /// Order of a PTE in PDB0.
    const HUGE_ORDER: u32 = 9;
}

impl Format for Gfx9 {
    type Word = u64;

    const LEVELS: u32 = 4;
    const BITS: u32 = 9;
    const LEAVES: &'static [u32] = &[0, 4, Self::HUGE_ORDER];

    fn can_hold(entry: DevicePte) -> bool {
        entry.number() >> (Self::ADDRESS_BITS - Self::PAGE_SHIFT) == 0
    }

    fn can_link(address: u64) -> bool {
        address >> Self::ADDRESS_BITS == 0
    }

    fn table(_level: u32, address: u64) -> u64 {
        address | Self::VALID | Self::SYSTEM | Self::SNOOPED
    }

    fn leaf(order: u32, entry: DevicePte) -> u64 {
        let flag = |set: bool, bits: u64| if set { bits } else { 0 };
        (entry.number() as u64) << Self::PAGE_SHIFT
            | Self::VALID
            | Self::READABLE
            | u64::from(order) << Self::FRAGMENT_SHIFT
            | flag(entry.may_be_dirty(), Self::WRITEABLE)
            | flag(!entry.is_device(), Self::SYSTEM | Self::SNOOPED)
            | flag(order == Self::HUGE_ORDER, Self::IS_PTE)
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_gfx9)]
mod tests {
    use super::*;

    #[test]
    fn bits_match_the_amdgpu_driver() {
        assert_eq!(Gfx9::table(1, 0x1234_5000), 0x1234_5007);
        assert_eq!(Gfx9::leaf(0, DevicePte::system(0x77, false)), 0x7_7027);
        assert_eq!(Gfx9::leaf(0, DevicePte::system(0x77, true)), 0x7_7067);
        assert_eq!(Gfx9::leaf(0, DevicePte::exclusive(0x77)), 0x7_7067);
        assert_eq!(Gfx9::leaf(0, DevicePte::device(0x77, true)), 0x7_7061);
        assert_eq!(Gfx9::leaf(4, DevicePte::device(16, true)), 0x1_0261);
        let large = 1 << 54 | 0x20_0000 | 9 << 7 | 0x61;
        assert_eq!(Gfx9::leaf(9, DevicePte::device(512, true)), large);
        let last = DevicePte::device((1 << 36) - 1, true);
        assert!(Gfx9::can_hold(last) && !Gfx9::can_hold(last.plus(1)));
    }
}
