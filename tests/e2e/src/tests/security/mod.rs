// SPDX-License-Identifier: GPL-2.0
//! Hostile processes: access through a passed file descriptor, information leaks, and resources
//! that an attacker can hold or block. `hmm-fuzz` tests the same at random.

mod access;
mod addresses;
mod resources;

use crate::harness::Test;

const PAGES: usize = 16;
const OURS: &str = "the C driver has no engines";
const NOBODY: u32 = 65534;

pub const TESTS: &[Test] = &[
    Test::new("security", "only_root_may_open", access::only_root_may_open)
        .only_rust("as upstream, by the node"),
    Test::new("security", "inherited_file_accesses_the_opener", access::child_drives_parent),
    Test::new("security", "passed_file_accesses_the_opener_only", access::passed_file),
    Test::new("security", "exec_revokes_access", access::exec_revokes_access),
    Test::new("security", "setuid_keeps_the_mirror", access::setuid_keeps_the_mirror),
    Test::new(
        "security",
        "memory_of_exited_processes_is_cleared",
        access::memory_of_exited_processes_is_cleared,
    ),
    Test::new("security", "full_memory_of_exited_processes_is_cleared", access::full_memory)
        .only_rust(OURS)
        .private(),
    Test::new("security", "commands_on_kernel_addresses_are_refused", addresses::kernel_addresses)
        .only_rust(OURS),
    Test::new(
        "security",
        "commands_on_all_addresses_cost_mapped_memory_only",
        addresses::everything,
    )
    .only_rust("a known hang of test_hmm"),
    Test::new(
        "security",
        "commands_per_file_are_bounded",
        resources::commands_per_file_are_bounded,
    )
    .only_rust(OURS),
    Test::new(
        "security",
        "accesses_and_migrations_pin_no_pages",
        resources::accesses_and_migrations_pin_no_pages,
    ),
    Test::new("security", "lock_of_all_addresses_is_refused_at_once", addresses::lock_everything)
        .only_rust(OURS),
    Test::new("security", "pull_of_all_addresses_ends_at_a_hole", addresses::pull_everything)
        .only_rust(OURS),
    Test::new(
        "security",
        "page_tables_are_charged_to_the_cgroup",
        resources::page_tables_are_charged_to_the_cgroup,
    )
    .only_rust("memory is not charged to a process"),
    Test::new("security", "file_close_frees_page_tables", resources::files_give_back),
    Test::new("security", "kill_interrupts_copies", resources::kill_interrupts_copies)
        .only_rust(OURS),
    Test::new("security", "kill_interrupts_population", resources::kill_interrupts_population)
        .only_rust("a known defect of test_hmm: it takes all memory"),
];
