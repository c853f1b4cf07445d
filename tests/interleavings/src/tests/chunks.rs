// SPDX-License-Identifier: GPL-2.0

//! The table of chunks, which grows while it is read.

use core::marker::PhantomData;
use crate::harness::{
    full,
    Test, //
};
use kernel::{
    model::spawn,
    prelude::*,
    sync::Arc, //
};
use super::{
    chunk::Chunk,
    chunks::Chunks,
    CpuFault,
    DevicePageOps,
    DevicePages,
    FaultError, //
};

pub(crate) const TESTS: &[Test] = &[full("chunks_counted_chunk_is_found", counted)];

struct Driver;

impl DevicePageOps for Driver {
    fn migrate_to_ram(_: &DevicePages<Self>, _: CpuFault<'_>) -> Result<(), FaultError> {
        Err(FaultError::Lost)
    }
}

fn counted() {
    let owner: &DevicePages<Driver> = Box::leak(Box::new(DevicePages(PhantomData)));
    let chunks = Arc::new(Chunks::new(2).unwrap(), GFP_KERNEL).unwrap();
    let theirs = chunks.clone();
    let grows = spawn(move || {
        theirs.put(0, Chunk::new(owner, 0, 512).unwrap()).unwrap();
    });
    for index in 0..chunks.made() {
        assert!(chunks.get(index).is_some());
    }
    grows.join();
    assert_eq!(chunks.iter().count(), 1);
}
