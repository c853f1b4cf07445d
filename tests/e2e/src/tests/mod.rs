// SPDX-License-Identifier: GPL-2.0
//! The tests, one module per group.

use crate::harness::Test;

mod attributes;
mod attributes_of_devices;
mod bad;
mod bounce;
mod c_mirror;
mod connect;
mod debugfs;
mod engine;
mod events;
mod evict;
mod extension;
mod faultless;
mod fork;
mod hmmctl;
mod hostile;
mod hw;
mod kinds;
mod layout;
mod life;
mod lifecycle;
mod lock;
mod lpae;
mod managed;
mod memory;
mod migrate;
mod mirror;
mod mirror_only;
mod numa;
mod overlap;
mod progress;
mod queue;
mod race;
mod reload;
mod room;
mod sharing;
mod stay;
mod stay_pull;
mod thp;
mod tiles;
mod trace;
mod unplug;
mod writeback;

/// Returns all tests in the order in which they run.
pub fn all() -> Vec<Test> {
    let faultless = faultless::tests();
    let groups: &[&[Test]] = &[
        mirror::TESTS,
        fork::TESTS,
        kinds::TESTS,
        writeback::TESTS,
        sharing::TESTS,
        migrate::TESTS,
        overlap::TESTS,
        stay::TESTS,
        thp::TESTS,
        layout::TESTS,
        life::TESTS,
        bad::TESTS,
        race::TESTS,
        engine::TESTS,
        extension::TESTS,
        attributes::TESTS,
        attributes_of_devices::TESTS,
        queue::TESTS,
        lock::TESTS,
        connect::TESTS,
        stay_pull::TESTS,
        managed::TESTS,
        mirror_only::TESTS,
        c_mirror::TESTS,
        lpae::TESTS,
        hostile::TESTS,
        trace::TESTS,
        events::TESTS,
        hmmctl::TESTS,
        &faultless,
        numa::tests(),
        lifecycle::TESTS,
        // These unload the modules or unplug devices, so they run last.
        hw::TESTS,
        memory::TESTS,
        progress::TESTS,
        unplug::TESTS,
        overlap::UNPLUGGED,
        evict::TESTS,
        room::TESTS,
        tiles::TESTS,
        stay::WITH_LITTLE_MEMORY,
        stay_pull::WITH_LITTLE_MEMORY,
        bounce::TESTS,
        events::WITH_PARAMETERS,
        hmmctl::WITHOUT_MODULES,
        debugfs::TESTS,
        reload::TESTS,
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
