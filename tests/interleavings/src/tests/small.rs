// SPDX-License-Identifier: GPL-2.0

//! Counters, and fault-around windows.

use crate::{
    debug::stats::{
        Counter,
        Stats, //
    },
    harness::{
        Test,
        full, //
    },
    mm::addr::PMD_SIZE,
    policy::fault_around::FaultWindows, //
};
use kernel::{
    model::spawn,
    prelude::*,
    sync::Arc, //
};

pub(crate) const TESTS: &[Test] = &[
    full("stats_lose_no_count", count),
    full("cpu_window_size_is_valid_after_concurrent_faults", window),
];

fn count() {
    let stats = Arc::new(Stats::new(), GFP_KERNEL).unwrap();
    let other = stats.clone();
    let thread = spawn(move || {
        other.add(Counter::Evicted, 1);
        other.add(Counter::Evicted, 1);
    });
    stats.add(Counter::Evicted, 3);
    thread.join();
    assert_eq!(stats.get(Counter::Evicted), 5);
}

fn window() {
    fn record_fault(windows: &FaultWindows) {
        for addr in [1 << 40, (1 << 40) + (64 << 10)] {
            let size = windows.record_fault(1, addr);
            assert!(size.is_power_of_two() && (1 << 12..=PMD_SIZE).contains(&size));
        }
    }
    let windows = Arc::new(FaultWindows::new().unwrap(), GFP_KERNEL).unwrap();
    let other = windows.clone();
    let thread = spawn(move || {
        record_fault(&other);
    });
    record_fault(&windows);
    thread.join();
}
