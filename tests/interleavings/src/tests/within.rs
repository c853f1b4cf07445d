// SPDX-License-Identifier: GPL-2.0

//! The table of tasks in callbacks. All tasks of a test hash to the same slot.

use crate::{
    harness::{
        Test,
        bounded,
        full, //
    },
    kernel::{
        limit::RateLimit,
        reentry::{
            ReentryGuard,
            is_within, //
        }, //
    }, //
};
use kernel::{
    model::{
        set_born,
        spawn, //
    },
    prelude::*,
    sync::Arc, //
};

pub(crate) const TESTS: &[Test] = &[
    bounded("within_two_tasks_take_different_places", 2, two),
    full("within_freed_place_is_reused", taken_over),
    full("limit_allows_no_more_than_the_burst", limit),
];

/// Enters twice, and counts as inside until the outer guard is dropped.
fn enter() {
    set_born(1);
    assert!(!is_within());
    {
        let _outer = ReentryGuard::enter();
        assert!(is_within());
        {
            let _inner = ReentryGuard::enter();
        }
        assert!(is_within());
    }
    assert!(!is_within());
}

fn two() {
    let thread = spawn(enter);
    enter();
    thread.join();
}

/// Like [`two`], without the calls that only read.
fn enter_only() {
    set_born(1);
    let _outer = ReentryGuard::enter();
    {
        let _inner = ReentryGuard::enter();
    }
    assert!(is_within());
}

/// A slot that a task frees may be reused by the next one, with the depth of the new task.
fn taken_over() {
    let thread = spawn(enter_only);
    enter_only();
    thread.join();
}

fn limit() {
    let limit = Arc::new(RateLimit::new(1), GFP_KERNEL).unwrap();
    let count = |limit: &RateLimit| usize::from(limit.allows()) + usize::from(limit.allows());
    let other = limit.clone();
    let thread = spawn(move || count(&other));
    assert_eq!(count(&limit) + thread.join(), 1);
}
