// SPDX-License-Identifier: GPL-2.0

//! Page table formats of existing MMUs.

mod gfx9;
mod lpae;
mod radix;

pub use gfx9::Gfx9;
pub use lpae::{
    Lpae,
    Lpae16k,
    LpaeGranule, //
};
pub use radix::{
    Radix,
    Radix4,
    Radix5, //
};
