// SPDX-License-Identifier: GPL-2.0
//! Attributes of ranges, and their effect on device faults of engines.

mod faults;
mod ranges;
mod read_mostly;

use crate::check_eq;
use crate::harness::{
    Outcome,
    Stop,
    Test,
    What, //
};
use crate::support::*;
use hmm::placement::{
    Attributes,
    Preferred, //
};
use hmm::{
    Command,
    Device,
    EngineOp,
    Mapping,
    PAGE_SIZE, //
};

pub(super) const OURS: &str = "test_hmm knows no attributes";

pub const TESTS: &[Test] = &[
    Test::new(
        "attributes",
        "common_attributes_of_a_range_are_reported",
        ranges::common_attributes_of_a_range_are_reported,
    )
    .only_rust(OURS),
    Test::new("attributes", "invalid_arguments_are_refused", ranges::errors).only_rust(OURS),
    Test::new("attributes", "munmap_clears_attributes", ranges::unmapped).only_rust(OURS),
    Test::new("attributes", "mremap_moves_attributes", ranges::moved).only_rust(OURS),
    Test::new("attributes", "munmap_after_distant_mremap_clears_attributes", ranges::moved_far)
        .only_rust(OURS),
    Test::new("attributes", "child_inherits_no_attributes", ranges::child_inherits_no_attributes)
        .only_rust(OURS),
    Test::new(
        "attributes",
        "mprotect_migration_and_fork_keep_attributes",
        ranges::mprotect_migration_and_fork_keep_attributes,
    )
    .only_rust(OURS),
    Test::new("attributes", "preferred_location_controls_migration", faults::preferred_location)
        .only_rust(OURS),
    Test::new("attributes", "never_migrate_maps_in_place", faults::never_migrate).only_rust(OURS),
    Test::new("attributes", "accessed_by_maps_without_a_fault", faults::accessed_by)
        .only_rust(OURS),
    Test::new("attributes", "read_mostly_is_mapped_in_place", read_mostly::read_mostly)
        .only_rust(OURS),
    Test::new(
        "attributes",
        "read_mostly_writes_after_fork_are_private",
        read_mostly::read_mostly_writes_after_fork_are_private,
    )
    .only_rust(OURS),
    Test::new(
        "attributes",
        "read_mostly_pages_are_mapped_by_two_devices",
        read_mostly::read_mostly_on_two,
    )
    .only_rust(OURS),
    Test::new("attributes", "read_mostly_write_fault_migrates", read_mostly::read_mostly_write)
        .only_rust(OURS),
    Test::new("attributes", "granularity_bounds_fault_migration", faults::granularity)
        .only_rust(OURS),
    Test::new(
        "attributes",
        "attributes_apply_without_a_fault_policy",
        faults::attributes_apply_without_a_fault_policy,
    )
    .only_rust(OURS),
    Test::new(
        "attributes",
        "fault_completes_with_concurrent_invalidations",
        faults::concurrent_invalidations,
    )
    .only_rust(OURS),
];

pub(super) const DEVICE: Attributes =
    Attributes { what: Attributes::PREFERRED, preferred: Preferred::Device as u32, ..none() };

pub(super) const fn none() -> Attributes {
    Attributes::NONE
}

pub(super) fn set(
    device: &Device,
    map: &Mapping,
    first: usize,
    pages: usize,
    new: Attributes,
) -> Outcome {
    device.set_attributes(map.page_addr(first), pages, new).what("set attributes")
}

pub(super) fn get(
    device: &Device,
    map: &Mapping,
    first: usize,
    pages: usize,
) -> Result<Attributes, Stop> {
    device.attributes(map.page_addr(first), pages).what("get attributes")
}

/// Checks that the range has the default attributes.
pub(super) fn has_none(
    device: &Device,
    map: &Mapping,
    first: usize,
    pages: usize,
    when: &str,
) -> Outcome {
    let expected = Attributes { what: Attributes::ALL, ..none() };
    check_eq!(get(device, map, first, pages)?, expected, "attributes {when}");
    Ok(())
}

pub(super) fn has_device(
    device: &Device,
    map: &Mapping,
    first: usize,
    pages: usize,
    when: &str,
) -> Outcome {
    let expected = Attributes { what: Attributes::ALL, ..DEVICE };
    check_eq!(get(device, map, first, pages)?, expected, "attributes {when}");
    Ok(())
}

/// Reads a page by an engine. Returns the number of pages of the mapping that are on the device
/// afterwards.
pub(super) fn engine_reads(device: &Device, map: &Mapping, page: usize) -> Result<usize, Stop> {
    let read = Command::new(EngineOp::Read, map.page_addr(page), PAGE_SIZE);
    check_eq!(device.run(read).what("engine")?.error, None, "an engine's read");
    resident(device, map, 0, map.pages())
}
