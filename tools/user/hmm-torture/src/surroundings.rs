// SPDX-License-Identifier: GPL-2.0
//! What makes the kernel restless: swap, a limit of memory, merging of pages,
//! making of huge pages.

use hmm::Settings;
use std::path::Path;

const GROUP: &str = "/tmp/hmm-torture-cgroup";
/// Memory of a lane at ease: more than it has without ballast.
const LANE_MIB: usize = 40;
/// Memory of the program.
const BASE_MIB: usize = 64;

/// Settings that go back when this is dropped.
pub struct Surroundings {
    _settings: Settings,
}

fn limit(lanes: usize) -> std::io::Result<()> {
    let group = Path::new(GROUP);
    if !group.join("cgroup.procs").exists() {
        std::fs::create_dir_all(group)?;
        // SAFETY: strings that end with a zero, no data.
        let ret = unsafe {
            libc::mount(
                c"none".as_ptr(),
                c"/tmp/hmm-torture-cgroup".as_ptr(),
                c"cgroup2".as_ptr(),
                0,
                std::ptr::null(),
            )
        };
        hmm::Errno::check(ret.into())?;
    }
    std::fs::write(group.join("cgroup.subtree_control"), "+memory")?;
    let own = group.join("torture");
    if !own.exists() {
        std::fs::create_dir(&own)?;
    }
    let high = (BASE_MIB + LANE_MIB * lanes) << 20;
    std::fs::write(own.join("memory.high"), high.to_string())?;
    std::fs::write(own.join("cgroup.procs"), std::process::id().to_string())
}

/// Prepares them, as far as the kernel has them: says what it has not.
pub fn prepare(lanes: usize, quiet: bool) -> Surroundings {
    let mut settings = Settings::new();
    let mut set = |path: &str, value: &str| {
        if !matches!(settings.set(path, value), Ok(true)) {
            eprintln!("note: no {path}");
        }
    };
    if !quiet {
        set("/sys/kernel/mm/ksm/sleep_millisecs", "100");
        set("/sys/kernel/mm/ksm/pages_to_scan", "300");
        set("/sys/kernel/mm/ksm/run", "1");
        let daemon = "/sys/kernel/mm/transparent_hugepage/khugepaged";
        set(&format!("{daemon}/alloc_sleep_millisecs"), "500");
        set(&format!("{daemon}/scan_sleep_millisecs"), "500");
    }
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().count() < 2 {
        eprintln!("note: no swap");
    }
    if let Err(error) = limit(lanes) {
        eprintln!("note: no limit of memory: {error}");
    }
    Surroundings { _settings: settings }
}
