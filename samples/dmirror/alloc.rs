// SPDX-License-Identifier: GPL-2.0

//! The ioctl that allocates managed memory.

use crate::{
    arguments::Alloc,
    client::Client,
    extension::{
        no_flags,
        Structure, //
    },
    FILE_OPS, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rust_hmm::managed::{
    self,
    Flags, //
};

/// Number of the ioctl.
pub(crate) const ALLOC: u32 = 0x79;

const HOST_SHARED: u32 = 1;
const POPULATE: u32 = 2;
const HUGE: u32 = 4;

/// `DMIRROR_ALLOC`.
#[inline(never)]
pub(crate) fn alloc(client: &Arc<Client>, user: usize) -> Result {
    let mut raw = Structure::<Alloc>::read(user, 40)?;
    let flags = raw.flags;
    no_flags(flags & !(HOST_SHARED | POPULATE | HUGE))?;
    let flags = Flags {
        host_shared: flags & HOST_SHARED != 0,
        populate: flags & POPULATE != 0,
        huge: flags & HUGE != 0,
    };
    let fd = raw.fd;
    let queue = raw.queue;
    let bytes = usize::try_from(raw.bytes)?;
    if !FILE_OPS.with(fd, |file| Arc::ptr_eq(file.client(), client))? {
        return Err(EBADF);
    }
    if queue == 0 {
        let memory = managed::allocate(&FILE_OPS, fd, bytes, flags)?;
        client.mirror().finish_allocation(&memory)?;
        raw.addr = memory.range().start() as u64;
        return raw.write().inspect_err(|_| {
            // User space did not receive the address. The memory may have been unmapped
            // concurrently.
            let _gone = client.mirror().release(&memory);
        });
    }
    // Look up the queue and reserve the number before memory is mapped, so that a failure needs no
    // cleanup.
    let queue = client.queues.queue(queue)?;
    let number = client.queues.number()?;
    let memory = managed::allocate(&FILE_OPS, fd, bytes, flags)?;
    let id = number.allocated(client, &queue, memory)?;
    raw.addr = memory.range().start() as u64;
    raw.fence = id;
    raw.write().inspect_err(|_| {
        let _gone = client.mirror().release(&memory);
        let _forgotten = client.queues.release(id);
    })
}
