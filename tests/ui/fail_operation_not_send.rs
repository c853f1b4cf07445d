// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0277
//! An operation runs in the queue's thread.

use kernel::prelude::*;
use rust_hmm::{mm::fence::Fence, queue::Queue};

pub fn submit(queue: &Queue, secret: *const u8) -> Result<Fence> {
    queue.submit(KVec::new(), move |_| {
        let _secret = secret;
        Ok(())
    })
}
