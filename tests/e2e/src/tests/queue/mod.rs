// SPDX-License-Identifier: GPL-2.0
//! Queues, fences, and the operations in them.

use crate::harness::Test;

mod dma_fence;
mod fence;
mod graph;
mod order;

const OURS: &str = "the C driver has no queues";

pub const TESTS: &[Test] = &[
    Test::new("queue", "fences_are_queried_awaited_and_released", fence::life).only_rust(OURS),
    Test::new("queue", "fence_dropped_unsignalled_fails", fence::dropped).only_rust(OURS),
    Test::new("queue", "fence_wait_is_killable", fence::killed).only_rust(OURS),
    Test::new("queue", "fence_wait_with_a_pending_signal_sleeps", fence::signal_pending)
        .only_rust(OURS),
    Test::new("queue", "eventfd_and_poll_report_signalled_fences", fence::observed).only_rust(OURS),
    Test::new("queue", "fence_is_polled_thousands_of_times", fence::watched).only_rust(OURS),
    Test::new("queue", "fence_has_at_most_four_eventfds", fence::eventfds).only_rust(OURS),
    Test::new("queue", "blits_of_locked_memory_have_dma_fences", dma_fence::dma_fences)
        .only_rust(OURS),
    Test::new("queue", "fence_export_without_a_descriptor_fails", dma_fence::no_descriptor)
        .only_rust(OURS),
    Test::new("queue", "only_dma_fences_are_exported", dma_fence::not_exported).only_rust(OURS),
    Test::new("queue", "bad_blits_are_refused", dma_fence::bad_blits).only_rust(OURS),
    Test::new("queue", "fences_outlive_the_device_file", fence::outlives).only_rust(OURS),
    Test::new("queue", "merged_and_failed_dma_fences_are_imported", dma_fence::foreign)
        .only_rust(OURS),
    Test::new("queue", "operation_without_a_fence_number_is_refused", fence::numbered)
        .only_rust(OURS),
    Test::new("queue", "bad_input_is_refused", fence::bad_input).only_rust(OURS),
    Test::new("queue", "operations_wait_for_their_fences", order::after).only_rust(OURS),
    Test::new("queue", "failure_fails_dependants_only", order::failure).only_rust(OURS),
    Test::new("queue", "device_and_host_waits_are_counted", order::waits).only_rust(OURS),
    Test::new("queue", "queued_migrations_and_copies_work", order::memory).only_rust(OURS),
    Test::new("queue", "close_cancels_operations", order::closing).only_rust(OURS),
    Test::new("queue", "killed_process_exits_soon", order::killed).only_rust(OURS),
    Test::new("queue", "graph_of_1000_operations_respects_dependencies", graph::respects)
        .only_rust(OURS)
        .seconds(120),
];
