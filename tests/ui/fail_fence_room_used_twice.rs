// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0382
//! Memory for a fence becomes one fence.

use rust_hmm::mm::{
    fence::{FenceRoom, Timeline},
    notifier::Cookie,
};

pub fn twice(room: FenceRoom, timeline: &Timeline) {
    let one = room.make(timeline, Cookie::NONE);
    let two = room.make(timeline, Cookie::NONE);
    drop((one, two));
}
