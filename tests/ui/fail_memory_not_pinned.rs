// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_driver
//! Device memory must be pinned, because the kernel keeps its address.

use rust_hmm::{
    memory::{
        Memory,
        MemoryOps, //
    },
    mm::device_pages::MemoryKind, //
};

pub fn movable<M: MemoryOps>(driver: M) -> Memory<M> {
    Memory::new(driver, MemoryKind::Private, 512)
    //~^ ERROR E0308: mismatched types: expected `Memory<M>`, found opaque type
}
