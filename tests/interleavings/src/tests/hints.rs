// SPDX-License-Identifier: GPL-2.0

//! Hints which pieces of device memory have what is looked for.

use super::hints::{Class, Hints};
use crate::harness::{full, Test};
use kernel::{model::spawn, prelude::*, sync::Arc};

pub(crate) const TESTS: &[Test] =
    &[full("hints_a_bit_that_is_set_during_a_search_is_found_later", found)];

/// The search finds that the bit of the group is stale.
fn found() {
    let hints = Hints::new(1).unwrap();
    hints.prepare(0).unwrap();
    hints.set(Class::Idle, 0);
    hints.clear(Class::Idle, 0);
    let shared = Arc::new(hints, GFP_KERNEL).unwrap();
    let other = shared.clone();
    let thread = spawn(move || {
        other.find(Class::Idle, 0);
    });
    shared.set(Class::Idle, 0);
    thread.join();
    assert_eq!(shared.find(Class::Idle, 0), Some(0));
}
