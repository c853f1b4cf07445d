// SPDX-License-Identifier: GPL-2.0

//! Where memory should be: what a device fault brings to the device, and what is left where it is.
//!
//! Nothing here touches hardware, page tables or locks of the engine: a policy is asked with what is
//! known ([`Wanted`]) and answers ([`Placement`]); [`Mirror::serve`](crate::mirror::Mirror::serve) carries it
//! out. So all of it is tested with plain numbers and a clock that a test sets.
//!
//! - [`Density`]: the default. A tree over blocks of 2 MiB, streams that cross their borders, and memory that
//!   bounces stays where it is for a while.
//! - [`OnePage`]: each fault moves what was touched, as the kernel's `lib/test_hmm.c` does.
//! - [`InPlace`]: nothing moves.

use crate::{
    attributes::Attributes,
    mm::addr::{PageRange, PMD_PAGES, PMD_SIZE},
};

mod bounces;
mod density;
mod immovable;
mod stream;
mod thrash;
pub(crate) mod window;

pub use crate::mm::mask::Mask;
pub use bounces::Bounces;
pub use density::{Density, Parameters};
pub(crate) use immovable::Immovable;

/// What a device fault is about.
pub struct Wanted<'a> {
    /// The pages that were touched, within 2 MiB.
    pub range: PageRange,
    /// Whether the device writes.
    pub write: bool,
    /// Where pages may be moved along: the mapping, as far as its attributes are the same.
    pub limits: PageRange,
    /// The attributes of the range.
    pub attributes: Attributes,
    /// Pages of device memory that are free.
    pub free: usize,
    /// Pages of device memory in all.
    pub total: usize,
    /// The time in ms, from any moment on.
    pub now: u64,
    /// The pages of the 2 MiB block at an address that are in the device's memory, as far as the device
    /// has entries for them, in this mirror or another one of the process.
    pub resident: &'a dyn Fn(usize) -> Mask,
    /// What moved to this device and was wanted again, by all mirrors of the process.
    pub bounces: &'a Bounces,
}

/// What to do about a device fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Move these pages to the device, best effort, then map what was touched.
    Move {
        /// The pages; those that were touched among them.
        range: PageRange,
        /// Whether others may leave the device for them.
        evict: bool,
    },
    /// Map these pages where they are.
    InPlace(PageRange),
    /// The same, because they bounce.
    Stay(PageRange),
    /// Ask again after so many ms, for others use the memory where it is. Whoever waits sleeps, and can be killed. After
    /// a few times in a row it counts as `InPlace`.
    Later(u64),
}

/// Decides about device faults. One object decides for one mirror.
pub trait Policy: Send + Sync {
    /// What to do about a fault. Context: may sleep; no lock of the library is held.
    fn place(&self, wanted: &Wanted<'_>) -> Placement;

    /// Whether it moves nothing of its own accord, so that memory goes only where attributes want it.
    fn is_idle(&self) -> bool {
        false
    }

    /// The pages of `range` have moved to the device, or were there: called for each run of them among those that were to
    /// move, in order, unless none has moved. Context: as [`Self::place`].
    fn moved(&self, range: PageRange, now: u64) {
        let _ = (range, now);
    }
}

/// Moves nothing but what attributes want on the device.
pub struct InPlace;

impl Policy for InPlace {
    fn place(&self, wanted: &Wanted<'_>) -> Placement {
        Placement::InPlace(wanted.range)
    }

    fn is_idle(&self) -> bool {
        true
    }
}

/// Moves what was touched.
pub struct OnePage;

impl Policy for OnePage {
    fn place(&self, wanted: &Wanted<'_>) -> Placement {
        Placement::Move {
            range: wanted.range,
            evict: true,
        }
    }
}

/// The start of the 2 MiB block at `addr`.
pub(crate) fn block_start(addr: usize) -> usize {
    addr & !(PMD_SIZE - 1)
}

/// The 2 MiB block at `addr`; `None` for the last one of the address space, which no process has.
pub(crate) fn block(addr: usize) -> Option<PageRange> {
    PageRange::from_pages(block_start(addr), PMD_PAGES).ok()
}
