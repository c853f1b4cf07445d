// SPDX-License-Identifier: GPL-2.0
//~ PASS pass_queue
//! A thread cannot borrow data of the function that starts it.

use kernel::prelude::*;
use rust_hmm::kernel::kthread::Thread;

pub fn borrow() -> Result<Thread> {
    let local = 1u32;
    let reference: &u32 = &local;
    //~^ ERROR E0597: `local` does not live long enough: borrowed value does not live long enough
    Thread::spawn(c"test", move || {
        let _copy = *reference;
    })
}
