// SPDX-License-Identifier: GPL-2.0
//! Queues, fences, and the operations in them.

use crate::harness::Test;

mod fence;
mod graph;
mod order;

const OURS: &str = "the C driver has no queues";

pub const TESTS: &[Test] = &[
    Test::new("queue", "fences_are_checked_waited_for_and_released", fence::life).only_rust(OURS),
    Test::new("queue", "a_fence_dropped_without_a_signal_fails", fence::dropped).only_rust(OURS),
    Test::new("queue", "a_wait_for_a_fence_can_be_killed", fence::killed).only_rust(OURS),
    Test::new(
        "queue",
        "a_wait_with_a_pending_signal_sleeps_and_can_be_killed",
        fence::signal_pending,
    )
    .only_rust(OURS),
    Test::new("queue", "ends_are_reported_by_eventfd_and_poll", fence::observed).only_rust(OURS),
    Test::new("queue", "a_fence_is_watched_thousands_of_times", fence::watched).only_rust(OURS),
    Test::new("queue", "a_fence_has_at_most_four_eventfds", fence::eventfds).only_rust(OURS),
    Test::new("queue", "blits_of_locked_memory_have_dma_fences", fence::dma_fences).only_rust(OURS),
    Test::new("queue", "an_export_needs_a_descriptor", fence::no_descriptor).only_rust(OURS),
    Test::new("queue", "no_other_fence_becomes_a_dma_fence", fence::not_exported).only_rust(OURS),
    Test::new("queue", "bad_blits_are_refused", fence::bad_blits).only_rust(OURS),
    Test::new("queue", "fences_outlive_the_device_file", fence::outlives).only_rust(OURS),
    Test::new("queue", "fences_of_others_fit", fence::foreign).only_rust(OURS),
    Test::new("queue", "what_has_no_fence_is_not_queued", fence::numbered).only_rust(OURS),
    Test::new("queue", "bad_input", fence::bad_input).only_rust(OURS),
    Test::new("queue", "operations_wait_for_their_fences", order::after).only_rust(OURS),
    Test::new("queue", "a_failure_concerns_dependants_only", order::failure).only_rust(OURS),
    Test::new("queue", "waits_of_both_kinds", order::waits).only_rust(OURS),
    Test::new("queue", "memory_moves_and_is_copied", order::memory).only_rust(OURS),
    Test::new("queue", "closing_cancels", order::closing).only_rust(OURS),
    Test::new("queue", "a_killed_process_goes_soon", order::killed).only_rust(OURS),
    Test::new("queue", "a_graph_of_1000_respects_every_edge", graph::respects)
        .only_rust(OURS)
        .seconds(120),
];
