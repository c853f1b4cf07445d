// SPDX-License-Identifier: GPL-2.0
//~ ERROR E0599
//! A mirror is dropped once; to share it, use `Arc`.

use rust_hmm::mirror::{Device, Mirror};

pub fn duplicate<D: Device>(mirror: Mirror<D>) -> (Mirror<D>, Mirror<D>) {
    (mirror.clone(), mirror)
}
