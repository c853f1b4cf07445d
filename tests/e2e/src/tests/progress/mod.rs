// SPDX-License-Identifier: GPL-2.0
//! Progress of a process beside another process that is stalled.

mod faults;
mod split_waits;
mod stalled;

use crate::harness::Test;
use std::time::Duration;

const OURS: &str = "test_hmm waits for other processes";

pub const TESTS: &[Test] = &[
    Test::new("progress", "eviction_is_not_delayed_by_a_stalled_process", stalled::eviction)
        .only_rust(OURS)
        .timed()
        .seconds(180),
    Test::new("progress", "splits_are_not_delayed_by_a_stalled_process", stalled::splits)
        .only_rust(OURS)
        .private()
        .timed()
        .seconds(180),
    Test::new("progress", "split_wait_sleeps", split_waits::sleeps).only_rust(OURS).private(),
    Test::new("progress", "split_wait_is_killable", split_waits::killed).only_rust(OURS).private(),
    Test::new("progress", "fault_during_an_invalidation_is_killable", faults::invalidated)
        .only_rust(OURS)
        .private(),
    Test::new("progress", "invalidations_elsewhere_do_not_delay_faults", faults::elsewhere)
        .only_rust(OURS)
        .private(),
    Test::new("progress", "faults_beside_four_discarding_threads_succeed", faults::beside)
        .only_rust(OURS)
        .private(),
    Test::new("progress", "split_waits_of_many_threads_complete", split_waits::many)
        .only_rust(OURS)
        .private(),
    Test::new("progress", "debugger_read_completes_beside_a_writer", split_waits::debugger)
        .only_rust(OURS)
        .private()
        .seconds(120),
];

/// Bound of the time from a SIGKILL to the end of a task whose wait is killable. Nothing that the
/// test delays is part of it: 24 ms were measured. A wait that is not killable takes until the end
/// of a flush, which is 8 times the bound.
const KILLED: Duration = Duration::from_secs(1);
