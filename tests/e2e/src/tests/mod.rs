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
mod exclusive;
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
        exclusive::TESTS,
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

    /// Each test that a mutation names must exist: otherwise the mutation proves nothing.
    #[test]
    fn of_mutations_exist() {
        // The crate is built in a copy below the tree.
        let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let above = here.ancestors().map(|dir| dir.join("tests/mutations"));
        let dir = above.into_iter().find(|dir| dir.exists()).expect("no tests/mutations above");
        let mut wrong = Vec::new();
        let mut filters = 0;
        for file in std::fs::read_dir(&dir).expect("the mutations are in the tree") {
            let path = file.expect("the directory can be read").path();
            let text = std::fs::read_to_string(&path).expect("a mutation is text");
            let named = text.lines().find_map(|line| line.strip_prefix("# tests: "));
            for filter in named.unwrap_or("").split_whitespace() {
                // These are KUnit, and rows of hmm-stress.
                if filter == "kunit" || filter.starts_with("rows.") {
                    continue;
                }
                let timed = filter.strip_prefix("timed.");
                let name = timed.or(filter.strip_prefix("sized.")).unwrap_or(filter);
                filters += 1;
                let is_it = |test: &&super::Test| {
                    test.full_name().contains(name) && test.is_timed() == timed.is_some()
                };
                if !super::all().iter().any(|test| is_it(&test)) {
                    wrong.push(format!("{}: no test {filter}", path.display()));
                }
            }
        }
        assert!(filters > 100, "{filters} names in {}", dir.display());
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
