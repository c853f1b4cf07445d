// SPDX-License-Identifier: GPL-2.0

//! The format of page tables, which a parameter of the module selects.

use crate::{
    hardware::walk,
    module_parameters,
    number, //
};
use kernel::prelude::*;
use rust_hmm::pgtable::{
    formats::{
        Gfx9,
        Lpae, //
    },
    DevicePte,
    Format,
    Radix4, //
};

/// Bus address at which engines find the memory of their device.
pub(crate) const VRAM: u64 = 1 << 46;

/// What engines walk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selected {
    Radix4,
    Lpae,
    Gfx9,
    /// Nothing: they have the driver look into the library's tree. For measurements.
    Tree,
    /// As [`Self::Lpae`], by an MMU that needs break-before-make.
    LpaeOneSize,
}

impl Selected {
    /// By the value of the parameter. `EINVAL`.
    pub(crate) fn new(number: u64) -> Result<Self> {
        Ok(match number {
            0 => Self::Radix4,
            1 => Self::Lpae,
            2 => Self::Gfx9,
            3 => Self::Tree,
            4 => Self::LpaeOneSize,
            _ => return Err(EINVAL),
        })
    }

    /// The selected format. The parameter was checked when the module was loaded.
    fn now() -> Self {
        Self::new(number(module_parameters::format.value())).unwrap_or(Self::Tree)
    }

    /// Value of the format register of the hardware. `None` if it has no table.
    pub(crate) fn register(self) -> Option<walk::Format> {
        match self {
            Self::Radix4 => Some(walk::Format::Radix4),
            Self::Lpae | Self::LpaeOneSize => Some(walk::Format::Lpae),
            Self::Gfx9 => Some(walk::Format::Gfx9),
            Self::Tree => None,
        }
    }

    /// Whether the TLB must not get an address in two sizes.
    pub(crate) fn has_one_size(self) -> bool {
        self == Self::LpaeOneSize
    }
}

/// The selected format. All have four levels of 9 bits.
pub(crate) enum Chosen {}

/// Order of a leaf of 64 KiB.
const RUN_ORDER: u32 = 4;

impl Format for Chosen {
    type Word = u64;

    const LEVELS: u32 = 4;
    const BITS: u32 = 9;
    const LEAVES: &'static [u32] = &[0, RUN_ORDER, 9];

    fn break_before_make() -> bool {
        Selected::now().has_one_size()
    }

    // All of them: each entry is checked, and a look at the parameter takes as long as the rest of
    // it.
    fn can_hold(entry: DevicePte) -> bool {
        Radix4::can_hold(entry) && Lpae::can_hold(entry) && Gfx9::can_hold(entry)
    }

    fn can_link(address: u64) -> bool {
        match Selected::now() {
            Selected::Radix4 | Selected::Tree => Radix4::can_link(address),
            Selected::Lpae | Selected::LpaeOneSize => Lpae::can_link(address),
            Selected::Gfx9 => Gfx9::can_link(address),
        }
    }

    fn table(level: u32, address: u64) -> u64 {
        match Selected::now() {
            Selected::Radix4 | Selected::Tree => Radix4::table(level, address),
            Selected::Lpae | Selected::LpaeOneSize => Lpae::table(level, address),
            Selected::Gfx9 => Gfx9::table(level, address),
        }
    }

    fn leaf(order: u32, entry: DevicePte) -> u64 {
        match Selected::now() {
            // It has no leaves of 64 KiB: there each entry stands for itself.
            Selected::Radix4 | Selected::Tree if order == RUN_ORDER => Radix4::leaf(0, entry),
            Selected::Radix4 | Selected::Tree => Radix4::leaf(order, entry),
            Selected::Lpae | Selected::LpaeOneSize => Lpae::leaf(order, entry),
            Selected::Gfx9 => Gfx9::leaf(order, entry),
        }
    }
}
