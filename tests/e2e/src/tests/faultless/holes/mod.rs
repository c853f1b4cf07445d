// SPDX-License-Identifier: GPL-2.0
//! The holes through which faultless migration could go wrong, H1 to H17 of
//! Documentation/faultless.rst.

use super::*;
use crate::harness::Test;

mod copy;
mod others;
mod pages;

pub const TESTS: &[Test] = &[
    Test::new("faultless", "h01_device_write_during_the_copy", copy::h01_write).only_rust(OURS),
    Test::new("faultless", "h02_fault_in_flight", copy::h02_fault_in_flight).only_rust(OURS),
    Test::new("faultless", "h03_dontneed_during_the_copy", copy::h03_dontneed).only_rust(OURS),
    Test::new("faultless", "h04_dontneed_before_the_step", copy::h04_before).only_rust(OURS),
    Test::new("faultless", "h05_pinned_page", pages::h05_pinned).only_rust(OURS),
    Test::new("faultless", "h05_writes_to_a_pinned_page_never_fault", pages::h05_written)
        .only_rust(OURS),
    Test::new("faultless", "h06_holes_and_the_zero_page", pages::h06_holes).only_rust(OURS),
    Test::new("faultless", "h06_cpu_write_to_a_filled_hole_is_kept", pages::h06_written)
        .only_rust(OURS),
    Test::new("faultless", "h07_page_shared_by_fork", pages::h07_fork).only_rust(OURS),
    Test::new("faultless", "h08_partially_mapped_thp", pages::h08_partial_thp).only_rust(OURS),
    Test::new("faultless", "h09_second_mirror", others::h09_second_mirror).only_rust(OURS),
    Test::new("faultless", "h09_second_mirror_keeps_write_access", others::h09_keeps)
        .only_rust(OURS),
    Test::new("faultless", "h10_other_device", others::h10_other_device).only_rust(OURS).private(),
    Test::new("faultless", "h12_eviction", others::h12_eviction).only_rust(OURS),
    Test::new("faultless", "h13_overlapping_migrations", others::h13_overlapping).only_rust(OURS),
    Test::new("faultless", "h14_cpu_faults", others::h14_cpu_faults).only_rust(OURS),
    Test::new("faultless", "h14_cpu_fault_keeps_the_entry", others::h14_keeps).only_rust(OURS),
    Test::new("faultless", "h15_flush_before_the_source_is_freed", copy::h15_flush).only_rust(OURS),
    Test::new("faultless", "h16_madv_free_keeps_device_writes", copy::h16_free).only_rust(OURS),
    Test::new("faultless", "h17_merged_pages_stay", pages::h17_ksm).only_rust(OURS),
];
