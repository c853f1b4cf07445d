// SPDX-License-Identifier: GPL-2.0

//! The format of page tables, which a parameter of the module selects.

use crate::hardware::walk;
#[cfg(not(any(hmm_mock_radix5, hmm_mock_lpae16k)))]
use crate::{
    module_parameters,
    number, //
};
use kernel::prelude::*;
#[cfg(hmm_mock_lpae16k)]
use rust_hmm::pgtable::formats::Lpae16k as Built;
#[cfg(hmm_mock_radix5)]
use rust_hmm::pgtable::Radix5 as Built;
#[cfg(not(any(hmm_mock_radix5, hmm_mock_lpae16k)))]
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
    /// The formats of other numbers of levels, or of larger tables. The geometry of a table is a
    /// constant of its type, so that the module is built for one of them, and has no other one.
    Radix5,
    Lpae16k,
}

/// The format that the module was built for; `None` if it has those of four levels of 9 bits.
const BUILT: Option<Selected> = if cfg!(hmm_mock_radix5) {
    Some(Selected::Radix5)
} else if cfg!(hmm_mock_lpae16k) {
    Some(Selected::Lpae16k)
} else {
    None
};

impl Selected {
    /// By the value of the parameter. `EINVAL`.
    pub(crate) fn new(number: u64) -> Result<Self> {
        let selected = match number {
            0 => Self::Radix4,
            1 => Self::Lpae,
            2 => Self::Gfx9,
            3 => Self::Tree,
            4 => Self::LpaeOneSize,
            5 => Self::Radix5,
            6 => Self::Lpae16k,
            _ => return Err(EINVAL),
        };
        let is_built = match selected {
            Self::Tree => true,
            Self::Radix5 | Self::Lpae16k => BUILT == Some(selected),
            _ => BUILT.is_none(),
        };
        is_built.then_some(selected).ok_or(EINVAL)
    }

    /// The selected format. The parameter was checked when the module was loaded.
    #[cfg(not(any(hmm_mock_radix5, hmm_mock_lpae16k)))]
    fn now() -> Self {
        Self::new(number(module_parameters::format.value())).unwrap_or(Self::Tree)
    }

    /// Value of the format register of the hardware. `None` if it has no table.
    pub(crate) fn register(self) -> Option<walk::Format> {
        match self {
            Self::Radix4 => Some(walk::Format::Radix4),
            Self::Lpae | Self::LpaeOneSize => Some(walk::Format::Lpae),
            Self::Gfx9 => Some(walk::Format::Gfx9),
            Self::Radix5 => Some(walk::Format::Radix5),
            Self::Lpae16k => Some(walk::Format::Lpae16k),
            Self::Tree => None,
        }
    }

    /// Whether the TLB must not get an address in two sizes.
    pub(crate) fn has_one_size(self) -> bool {
        self == Self::LpaeOneSize
    }
}

/// The format that the module was built for.
#[cfg(any(hmm_mock_radix5, hmm_mock_lpae16k))]
pub(crate) type Chosen = Built;

/// The selected format. All have four levels of 9 bits.
#[cfg(not(any(hmm_mock_radix5, hmm_mock_lpae16k)))]
pub(crate) enum Chosen {}

/// Order of a leaf of 64 KiB.
#[cfg(not(any(hmm_mock_radix5, hmm_mock_lpae16k)))]
const RUN_ORDER: u32 = 4;

#[cfg(not(any(hmm_mock_radix5, hmm_mock_lpae16k)))]
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
            Selected::Lpae | Selected::LpaeOneSize => Lpae::can_link(address),
            Selected::Gfx9 => Gfx9::can_link(address),
            _ => Radix4::can_link(address),
        }
    }

    fn table(level: u32, address: u64) -> u64 {
        match Selected::now() {
            Selected::Lpae | Selected::LpaeOneSize => Lpae::table(level, address),
            Selected::Gfx9 => Gfx9::table(level, address),
            _ => Radix4::table(level, address),
        }
    }

    fn leaf(order: u32, entry: DevicePte) -> u64 {
        match Selected::now() {
            Selected::Lpae | Selected::LpaeOneSize => Lpae::leaf(order, entry),
            Selected::Gfx9 => Gfx9::leaf(order, entry),
            // It has no leaves of 64 KiB: there each entry stands for itself.
            _ if order == RUN_ORDER => Radix4::leaf(0, entry),
            _ => Radix4::leaf(order, entry),
        }
    }
}
