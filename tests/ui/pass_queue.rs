// SPDX-License-Identifier: GPL-2.0
//~ PASS
//! Operations and threads that own their data.

use kernel::prelude::*;
use rust_hmm::{
    kernel::{
        fence::Fence,
        kthread::Thread, //
    },
    queue::Queue, //
};

pub fn submit(queue: &Queue, value: usize) -> Result<Fence> {
    queue.submit(KVec::new(), move |_| {
        let _value = value;
        Ok(())
    })
}

pub fn spawn() -> Result<Thread> {
    let local = 1u32;
    Thread::spawn(c"test", move || {
        let _copy = local;
    })
}
