// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_queue
//! An operation must be `Send`, because it runs on the queue's thread.

use kernel::prelude::*;
use rust_hmm::{
    kernel::fence::Fence,
    queue::Queue, //
};

pub fn submit(queue: &Queue, secret: *const u8) -> Result<Fence> {
    queue.submit(KVec::new(), move |_| {
    //~^ ERROR E0277: `*const u8` cannot be sent between threads safely: `*const u8` cannot be sent
        let _secret = secret;
        Ok(())
    })
}
