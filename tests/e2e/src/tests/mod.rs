// SPDX-License-Identifier: GPL-2.0
//! The tests, one module per group.

use crate::harness::Test;

mod attributes;
mod attributes_of_devices;
mod c_mirror;
mod debugfs;
mod engine;
mod events;
mod evict;
mod extension;
mod faultless;
mod file_lifetime;
mod fork;
mod hmmctl;
mod hw;
mod invalid_args;
mod lock;
mod lpae;
mod managed;
mod memory;
mod migrate;
mod mirror;
mod mirror_only;
mod module_reload;
mod module_stress;
mod numa;
mod overlap;
mod oversubscription;
mod p2p;
mod progress;
mod queue;
mod race;
mod security;
mod sharing;
mod stay;
mod stay_pull;
mod thp;
mod thrashing;
mod tiles;
mod trace;
mod unplug;
mod vma_changes;
mod vma_types;
mod writeback;

/// Returns all tests in the order in which they run.
pub fn all() -> Vec<Test> {
    let faultless = faultless::tests();
    let groups: &[&[Test]] = &[
        mirror::TESTS,
        fork::TESTS,
        vma_types::TESTS,
        writeback::TESTS,
        sharing::TESTS,
        migrate::TESTS,
        overlap::TESTS,
        stay::TESTS,
        thp::TESTS,
        vma_changes::TESTS,
        file_lifetime::TESTS,
        invalid_args::TESTS,
        race::TESTS,
        engine::TESTS,
        extension::TESTS,
        attributes::TESTS,
        attributes_of_devices::TESTS,
        queue::TESTS,
        lock::TESTS,
        p2p::TESTS,
        stay_pull::TESTS,
        managed::TESTS,
        mirror_only::TESTS,
        c_mirror::TESTS,
        lpae::TESTS,
        security::TESTS,
        trace::TESTS,
        events::TESTS,
        hmmctl::TESTS,
        &faultless,
        numa::tests(),
        module_stress::TESTS,
        // These unload the modules or unplug devices, so they run last.
        hw::TESTS,
        memory::TESTS,
        progress::TESTS,
        unplug::TESTS,
        overlap::UNPLUGGED,
        evict::TESTS,
        oversubscription::TESTS,
        tiles::TESTS,
        stay::WITH_LITTLE_MEMORY,
        stay_pull::WITH_LITTLE_MEMORY,
        thrashing::TESTS,
        events::WITH_PARAMETERS,
        hmmctl::WITHOUT_MODULES,
        debugfs::TESTS,
        module_reload::TESTS,
    ];
    groups.concat()
}

#[cfg(test)]
mod names {
    #[test]
    fn are_unique() {
        let mut names: Vec<String> = super::all().iter().map(|test| test.full_name()).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
