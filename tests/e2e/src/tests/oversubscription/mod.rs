// SPDX-License-Identifier: GPL-2.0
//! Device memory: reservation, allocation, charging to control groups, and reclaim.

mod allocation;
mod size;
mod tables;

use crate::harness::Test;

const OURS: &str = "test_hmm has no limit of its memory";

/// Tests in the group that unloads modules.
pub const TESTS: &[Test] = &[
    Test::new(
        "memory",
        "offlined_pages_are_not_allocated",
        allocation::offlined_pages_are_not_allocated,
    )
    .only_rust(OURS),
    Test::new(
        "memory",
        "busy_pages_are_offlined_when_freed",
        allocation::busy_pages_are_offlined_when_freed,
    )
    .only_rust(OURS),
    Test::new(
        "memory",
        "driver_allocator_suggests_pages",
        allocation::driver_allocator_suggests_pages,
    )
    .only_rust(OURS),
    Test::new(
        "memory",
        "device_pages_are_charged_to_their_owner",
        allocation::device_pages_are_charged_to_their_owner,
    )
    .only_rust(OURS),
    Test::new("memory", "idle_chunks_are_removed", size::idle_chunks_are_removed)
        .only_rust(OURS)
        .private(),
    Test::new(
        "memory",
        "small_memory_is_filled_to_its_end",
        size::small_memory_is_filled_to_its_end,
    )
    .only_rust(OURS)
    .private(),
    Test::new("memory", "device_of_16_tib_works", size::device_of_16_tib_works).only_rust(OURS),
    Test::new(
        "memory",
        "bookkeeping_of_16_tib_is_small_beside_used_memory",
        size::bookkeeping_of_16_tib_is_small,
    )
    .only_rust(OURS)
    .private(),
    Test::new("memory", "shrinker_frees_unused_tables", tables::free_tables)
        .only_rust(OURS)
        .private(),
    Test::new("memory", "cgroup_reclaim_frees_its_own_tables_only", tables::free_tables_of_a_group)
        .only_rust(OURS)
        .private(),
    Test::new("memory", "cgroup_reclaim_frees_cold_tables", tables::cold_tables)
        .only_rust(OURS)
        .private(),
    Test::new(
        "memory",
        "table_reclaim_lets_a_busy_device_progress",
        tables::table_reclaim_lets_a_busy_device_progress,
    )
    .only_rust(OURS)
    .private(),
];
