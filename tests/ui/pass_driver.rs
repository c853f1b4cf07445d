// SPDX-License-Identifier: GPL-2.0
//~ PASS
//! The smallest driver: it compiles, and needs no `unsafe`.

#![forbid(unsafe_code)]

use kernel::{mm::MmWithUser, prelude::*};
use rust_hmm::{
    memory::{Copy, Memory, MemoryOps},
    mirror::{Device, Mirror},
    mm::{addr::PageRange, range_fault::Access},
};

/// A device without memory.
pub struct MirrorOnly;

impl MemoryOps for MirrorOnly {
    fn copy(&self, _copy: &Copy<'_>) -> Result {
        Err(EINVAL)
    }
}

impl Device for MirrorOnly {
    type Memory = Self;
    type Flush = ();

    fn memory(&self) -> Option<&Memory<Self>> {
        None
    }

    fn flush_start(&self, _range: PageRange) {}

    fn flush_wait(&self, (): ()) {}
}

/// Mirrors a process and faults a range in.
pub fn attach(mm: &MmWithUser, range: PageRange) -> Result<Pin<KBox<Mirror<MirrorOnly>>>> {
    let init = rust_hmm::new_mirror!(mm, MirrorOnly)?;
    let mirror = KBox::pin_init(init, GFP_KERNEL)?;
    mirror.fault(range, Access::Read)?;
    Ok(mirror)
}
