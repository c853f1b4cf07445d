// SPDX-License-Identifier: GPL-2.0
//~ PASS
//! Uses of fences: a DMA fence is exported as a sync file, and queues depend on fences of both
//! types.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use rust_hmm::{
    kernel::{
        dma_fence::{
            DmaDriverFence,
            DmaFenceAlloc,
            FenceContext, //
        },
        fence::{
            DriverFence,
            Fence, //
        },
        fence_watch::{
            FenceWatch,
            WatchedFence, //
        },
        identity::FenceType,
        sync_file::SyncFile, //
    },
    queue::Queue, //
};

/// Creates a pending DMA fence for an interrupt to signal, and a sync file for it.
pub fn export(timeline: &FenceContext) -> Result<(DmaDriverFence, SyncFile)> {
    let pending = DmaFenceAlloc::new()?.init(timeline, FenceType::NONE);
    let file = SyncFile::new(&pending.fence())?;
    Ok((pending, file))
}

/// Makes an operation depend on a host fence and on a sync file of any driver.
pub fn depends(queue: &Queue, fd: i32) -> Result<(DriverFence, Fence)> {
    let host = DriverFence::new(FenceType::NONE)?;
    queue.wait(host.fence())?;
    queue.wait(Fence::of(&SyncFile::fence(fd)?)?)?;
    Ok((host, queue.record()?))
}

/// Reports the end by an eventfd, and by the `poll` of a file.
pub fn observe(fence: Fence, fd: i32) -> Result<Pin<KBox<WatchedFence>>> {
    fence.eventfd(fd)?;
    WatchedFence::new(fence, FenceWatch::new()?)
}
