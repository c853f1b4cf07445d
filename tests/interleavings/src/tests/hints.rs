// SPDX-License-Identifier: GPL-2.0

//! Hints on the chunks of device memory with free pages.

use super::hints::{
    HintClass,
    Hints, //
};
use crate::harness::{
    full,
    Test, //
};
use kernel::{
    model::spawn,
    prelude::*,
    sync::Arc, //
};

pub(crate) const TESTS: &[Test] = &[full("hints_bit_set_during_a_search_is_found_later", found)];

/// A search clears the stale bit of a group.
fn found() {
    let hints = Hints::new(1).unwrap();
    hints.prepare(0).unwrap();
    hints.set(HintClass::Idle, 0);
    hints.clear(HintClass::Idle, 0);
    let shared = Arc::new(hints, GFP_KERNEL).unwrap();
    let other = shared.clone();
    let thread = spawn(move || {
        other.find(HintClass::Idle, 0);
    });
    shared.set(HintClass::Idle, 0);
    thread.join();
    assert_eq!(shared.find(HintClass::Idle, 0), Some(0));
}
