// SPDX-License-Identifier: GPL-2.0
//~ PASS
//! Fences that are made and signalled once.

use rust_hmm::mm::{
    fence::{
        FenceRoom,
        Pending,
        Timeline, //
    },
    notifier::Cookie,
};

pub fn make(room: FenceRoom, timeline: &Timeline) {
    drop(room.make(timeline, Cookie::NONE));
}

pub fn signal(pending: Pending) {
    pending.signal(Ok(()));
}
