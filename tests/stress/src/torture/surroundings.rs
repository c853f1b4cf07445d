// SPDX-License-Identifier: GPL-2.0
//! Kernel activity in the background: swap, a memory limit, KSM, and khugepaged.

use anyhow::{
    anyhow,
    bail,
    Context,
    Result, //
};
use hmm::{
    Settings,
    HUGE_SIZE, //
};
use std::path::Path;

const GROUP: &str = "/tmp/hmm-stress-cgroup";
/// Memory that a lane uses without ballast, part of which is regions of the size of huge pages and
/// their model.
const LANE_MIB: usize = 24 + 8 * (HUGE_SIZE >> 20);
/// Memory of the program itself.
const BASE_MIB: usize = 64;

/// Settings that are restored when this is dropped.
pub struct Surroundings {
    _settings: Settings,
}

fn limit(lanes: usize) -> std::io::Result<()> {
    let group = Path::new(GROUP);
    if !group.join("cgroup.procs").exists() {
        std::fs::create_dir_all(group)?;
        // SAFETY: NUL-terminated strings, no data.
        let ret = unsafe {
            libc::mount(
                c"none".as_ptr(),
                c"/tmp/hmm-stress-cgroup".as_ptr(),
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

/// A kind of background activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Merging of equal pages.
    Ksm,
    /// Making of huge pages.
    Khugepaged,
    /// Swap.
    Swap,
    /// A control group with a limit of memory.
    Cgroup,
}

/// Enables all parts except those in `without`.
///
/// # Errors
///
/// The kernel does not support one of them.
pub fn prepare(lanes: usize, quiet: bool, without: &[Part]) -> Result<Surroundings> {
    let mut settings = Settings::new();
    let wanted = |part: Part| !without.contains(&part);
    let mut set = |path: &str, value: &str| match settings.set(path, value) {
        Ok(true) => Ok(()),
        Ok(false) => Err(anyhow!("no {path}; see --without")),
        Err(error) => Err(anyhow!("{path}: {error}; see --without")),
    };
    if !quiet && wanted(Part::Ksm) {
        set("/sys/kernel/mm/ksm/sleep_millisecs", "100")?;
        set("/sys/kernel/mm/ksm/pages_to_scan", "300")?;
        set("/sys/kernel/mm/ksm/run", "1")?;
    }
    if !quiet && wanted(Part::Khugepaged) {
        let daemon = "/sys/kernel/mm/transparent_hugepage/khugepaged";
        set(&format!("{daemon}/alloc_sleep_millisecs"), "500")?;
        set(&format!("{daemon}/scan_sleep_millisecs"), "500")?;
    }
    if wanted(Part::Swap) {
        let swaps = std::fs::read_to_string("/proc/swaps").context("/proc/swaps")?;
        if swaps.lines().count() < 2 {
            bail!("no swap; see --without");
        }
    }
    if wanted(Part::Cgroup) {
        limit(lanes).context("no limit of memory; see --without")?;
    }
    Ok(Surroundings { _settings: settings })
}
