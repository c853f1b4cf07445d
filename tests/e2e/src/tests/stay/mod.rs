// SPDX-License-Identifier: GPL-2.0
//! Memory that cannot migrate or need not. No page is unmapped, copied or evicted for it.

mod access;
mod immovable;
mod partial;
mod resident;
mod time;

use crate::check;
use crate::harness::{
    Outcome,
    Stop,
    Test,
    What, //
};
use hmm::placement::Placement;
use hmm::{
    Counters,
    Device,
    HUGE_PAGES, //
};

const OURS: &str = "needs counters, engines and outcomes";

pub const TESTS: &[Test] = &[
    Test::new("migrate", "block_migrates_without_its_immovable_page", partial::one_page_of_a_block)
        .only_rust(OURS),
    Test::new("migrate", "migration_of_resident_memory_has_no_effect", resident::resident_memory)
        .only_rust(OURS),
    Test::new(
        "migrate",
        "migration_of_written_resident_memory_never_faults",
        resident::resident_and_written,
    )
    .only_rust(OURS),
    Test::new("migrate", "half_resident_block_migrates_the_other_half", resident::half_resident)
        .only_rust(OURS)
        .private(),
    Test::new("migrate", "lost_write_access_is_restored_in_place", access::write_access)
        .only_rust(OURS)
        .private(),
    Test::new("thp", "split_leaf_is_merged_again", access::split_leaf).only_rust(OURS).private(),
    Test::new("thp", "rest_of_a_run_stays_accessible", access::broken_run)
        .only_rust(OURS)
        .private(),
];

/// Tests in the group that unloads modules.
pub const WITH_LITTLE_MEMORY: &[Test] = &[
    Test::new("memory", "immovable_memory_causes_no_eviction", immovable::immovable_memory)
        .only_rust(OURS)
        .seconds(180),
    Test::new("memory", "immovable_page_of_a_block_causes_no_eviction", partial::full_memory)
        .only_rust(OURS)
        .seconds(120),
    Test::new("memory", "policy_adds_little_time_on_immovable_memory", time::time_of_a_pass)
        .only_rust(OURS)
        .timed()
        .seconds(180),
    Test::new("memory", "private_copies_among_file_pages_migrate", partial::private_copies)
        .only_rust(OURS)
        .seconds(180),
];

/// Number of blocks of each kind of memory that cannot migrate.
const BLOCKS: usize = 2;

const PAGES: usize = BLOCKS * HUGE_PAGES;

/// Returns the counters of a file, its device and its policy.
fn all(device: &Device) -> Result<(Counters, Placement), Stop> {
    Ok((device.counters().what("counters")?, device.placement().what("placement")?))
}

/// Checks that there were fewer events than one attempt for each request or fault would cause. The
/// test's own allocator may unmap memory, which causes an event.
fn few_events(before: &Counters, after: &Counters, when: &str) -> Outcome {
    let events = after.invalidations - before.invalidations;
    check!(events < 5, "{events} invalidations {when}");
    Ok(())
}
