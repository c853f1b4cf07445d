// SPDX-License-Identifier: GPL-2.0

//! Work items that are queued repeatedly.

use crate::{
    bindings::works,
    harness::{
        full,
        Test, //
    },
    kernel::deferred::{
        Recurring,
        RecurringWork, //
    }, //
};
use kernel::{
    model::spawn,
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        Arc, //
    }, //
};

pub(crate) const TESTS: &[Test] = &[
    full("recurring_request_is_served", one),
    full("recurring_request_beside_another_is_served", two),
];

/// Handles the requests that it finds.
struct Work {
    asked: [Atomic<u32>; 2],
    done: [Atomic<u32>; 2],
}

impl RecurringWork for Work {
    fn run(&self) {
        for (asked, done) in self.asked.iter().zip(&self.done) {
            done.store(asked.load(Relaxed), Relaxed);
        }
    }
}

fn work() -> Arc<Recurring<Work>> {
    works::reset();
    let zero = || [Atomic::new(0), Atomic::new(0)];
    Recurring::new(Work { asked: zero(), done: zero() }).unwrap()
}

fn ask(work: &Arc<Recurring<Work>>, number: usize) {
    work.work().asked[number].store(1, Relaxed);
    work.queue();
}

/// Runs the work that is left, and checks that all requests were found by a run.
fn all_done(work: &Recurring<Work>, requests: usize) {
    while works::run() {}
    for number in 0..requests {
        assert_eq!(work.work().done[number].load(Relaxed), 1);
    }
}

/// A request is made while a worker runs the work of an earlier one.
fn one() {
    let work = work();
    work.queue();
    let theirs = work.clone();
    let worker = spawn(move || {
        works::run();
    });
    ask(&theirs, 0);
    worker.join();
    all_done(&work, 1);
}

/// As above, with two requests.
fn two() {
    let work = work();
    let worker = spawn(|| {
        works::run();
    });
    let theirs = work.clone();
    let other = spawn(move || ask(&theirs, 1));
    ask(&work, 0);
    worker.join();
    other.join();
    all_done(&work, 2);
}
