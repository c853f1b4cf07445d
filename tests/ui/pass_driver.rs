// SPDX-License-Identifier: GPL-2.0
//~ PASS
//! A minimal driver, without `unsafe`.

#![forbid(unsafe_code)]

use kernel::{
    mm::MmWithUser,
    prelude::*, //
};
use rust_hmm::{
    memory::{
        CopyJob,
        Memory,
        MemoryOps,
        NoMemory, //
    },
    mirror::{
        Device,
        Mirror, //
    },
    mm::{
        addr::PageRange,
        range_fault::Access, //
    },
    pgtable::Radix4, //
};

/// Device memory that completes each copy with an error.
pub struct Vram;

impl MemoryOps for Vram {
    fn copy(&self, job: CopyJob) {
        job.complete(Err(EINVAL));
    }
}

/// A device without memory.
pub struct MirrorOnly;

impl Device for MirrorOnly {
    type Memory = NoMemory;
    type Format = Radix4;
    type Walker = ();
    type Flush = ();

    fn memory(&self) -> Option<&Memory<NoMemory>> {
        None
    }

    fn flush_start(&self, _range: PageRange) {}

    fn flush_wait(&self, (): ()) {}
}

/// Creates a mirror of a process, and faults a range in.
pub fn attach(mm: &MmWithUser, range: PageRange) -> Result<Mirror<MirrorOnly>> {
    let mirror = rust_hmm::new_mirror!(mm, MirrorOnly)?;
    mirror.fault(range, Access::Read)?;
    Ok(mirror)
}
