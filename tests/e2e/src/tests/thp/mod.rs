// SPDX-License-Identifier: GPL-2.0
//! Huge pages migrate as a whole, and in parts if they must.

mod failed_allocation;
mod migration;
mod shrinker;
mod way_back;

use crate::harness::Test;

const SHARED_SPLIT: &str = "gives small pages for a shared huge page: oops in the kernel";

const OOPS: &str = "a refault of its own device page: oops";

pub const TESTS: &[Test] = &[
    Test::new("thp", "cpu_access_migrates_back", migration::migrates_back_on_cpu_access).private(),
    Test::new("thp", "request_migrates_back", migration::back_by_request),
    Test::new("thp", "several_huge_pages_keep_device_writes", migration::several),
    Test::new("thp", "parts_of_huge_pages_migrate", migration::parts_of_huge_pages_migrate)
        .defect(OOPS),
    Test::new(
        "thp",
        "read_from_the_middle_of_a_huge_page",
        migration::read_from_the_middle_of_a_huge_page,
    )
    .defect(OOPS),
    Test::new("thp", "huge_zero_page_migrates_as_zero", migration::huge_zero_page),
    Test::new(
        "thp",
        "failed_allocation_falls_back_to_small_pages",
        failed_allocation::failed_allocation,
    )
    .private(),
    Test::new(
        "thp",
        "failed_allocation_of_a_migration_back_splits",
        failed_allocation::failed_way_back,
    )
    .private(),
    Test::new(
        "thp",
        "failed_allocation_of_a_cpu_fault_splits",
        failed_allocation::failed_cpu_fault,
    )
    .private(),
    Test::new(
        "thp",
        "failed_allocation_for_another_device_splits",
        failed_allocation::failed_for_another,
    )
    .private()
    .only_rust("two devices"),
    Test::new("thp", "snapshot_reports_remote_huge_page_as_absent", migration::snapshot_of_remote)
        .private()
        .only_rust("two devices"),
    Test::new(
        "thp",
        "failed_allocation_for_a_debugger_splits",
        failed_allocation::failed_for_a_debugger,
    )
    .private(),
    Test::new(
        "thp",
        "failed_allocation_of_a_shared_page_keeps_contents",
        failed_allocation::shared_and_failed,
    )
    .defect(SHARED_SPLIT),
    Test::new(
        "thp",
        "page_shared_by_fork_keeps_contents",
        migration::page_shared_by_fork_keeps_contents,
    )
    .defect(OOPS),
    Test::new("thp", "dontneed_of_a_part_reads_zero", migration::dontneed_of_a_part_reads_zero)
        .defect(OOPS),
    Test::new(
        "thp",
        "cpu_fault_on_a_pte_mapped_huge_page",
        migration::cpu_fault_on_a_pte_mapped_huge_page,
    )
    .private()
    .only_rust("failing copies"),
    Test::new(
        "thp",
        "dontneed_during_a_migration_back",
        way_back::dontneed_during_a_migration_back,
    )
    .private()
    .only_rust("slow copies"),
    Test::new("thp", "exit_of_sharers_during_a_migration_back", way_back::exit_of_sharers)
        .private()
        .only_rust("slow copies"),
    Test::new(
        "thp",
        "page_held_by_the_shrinker_migrates_later",
        shrinker::page_held_by_the_shrinker_migrates_later,
    )
    .only_rust("more tries"),
];
