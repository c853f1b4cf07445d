// SPDX-License-Identifier: GPL-2.0
//! Time that a policy adds to a pass over memory that cannot migrate.

use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    What, //
};
use crate::support::*;
use crate::tests::memory::{
    engine_reads,
    with, //
};
use crate::tests::module_reload::unload;
use crate::{
    check,
    check_eq, //
};
use hmm::placement::Policy;
use hmm::{
    files,
    Command,
    Device,
    EngineOp,
    Mapping,
    Settings,
    HUGE_PAGES, //
};
use std::fs::File;
use std::time::{
    Duration,
    Instant, //
};

/// Pages of the file whose mappings are measured: twice the size of device memory.
const TIMED: usize = 8 * HUGE_PAGES;

/// Kinds of memory that cannot migrate. Of `PrivateFile` a single page can.
#[derive(Clone, Copy, Debug)]
enum Stays {
    Shared,
    Memfd,
    /// A private mapping of a file of which one page was written.
    PrivateFile,
    /// Pinned for a device.
    Pinned,
    /// Pages that pipes hold, too.
    Pipes,
    Mergeable,
    Hugetlb,
}

/// Objects that keep the pages of a mapping in place.
struct Keeper<'d> {
    owner: &'d Device,
    pinned: Option<usize>,
    _pipes: Vec<files::Pin>,
}

impl Drop for Keeper<'_> {
    fn drop(&mut self) {
        if let Some(addr) = self.pinned {
            let _ = self.owner.unlock(addr);
        }
    }
}

impl Stays {
    /// Returns the size of a mapping that is measured. Without a policy each page of some kinds
    /// faults separately.
    fn pages(self) -> usize {
        match self {
            Stays::Pipes | Stays::Mergeable => TIMED / 4,
            _ => TIMED,
        }
    }

    /// Maps memory with the pattern 1, of which no policy has any history. `file` has the same
    /// pattern.
    fn map<'d>(self, owner: &'d Device, file: &File) -> Result<(Keeper<'d>, Mapping), Stop> {
        let pages = self.pages();
        let map = match self {
            Stays::Shared => Mapping::shared(pages)?,
            Stays::Memfd => Mapping::file_shared(file, pages)?,
            Stays::PrivateFile => Mapping::file_private(file, pages)?,
            Stays::Pinned | Stays::Pipes | Stays::Mergeable => {
                Mapping::anon_aligned(pages / HUGE_PAGES)?
            }
            Stays::Hugetlb => Mapping::hugetlb(pages / HUGE_PAGES).what("map hugetlb pages")?,
        };
        let mut keeper = Keeper { owner, pinned: None, _pipes: Vec::new() };
        match self {
            Stays::Memfd => map.check_pages(1, 0, pages).what("CPU read")?,
            Stays::PrivateFile => {
                map.check_pages(1, 0, pages).what("CPU read")?;
                map.fill_pages(1, 77, 1);
            }
            Stays::Shared | Stays::Hugetlb => map.fill(1),
            Stays::Pinned | Stays::Pipes | Stays::Mergeable => {
                map.forbid_huge()?;
                map.fill(1);
            }
        }
        match self {
            Stays::Pinned => {
                let locked = owner.lock(map.addr(), map.len(), 1, false).what("lock")?;
                keeper.pinned = Some(locked.device_addr);
            }
            Stays::Pipes => {
                for page in (0..pages).step_by(files::Pin::MOST) {
                    let pin = files::Pin::of_pages(map.page_addr(page), files::Pin::MOST);
                    keeper._pipes.push(pin.what("give pages to a pipe")?);
                }
                settle()?;
            }
            Stays::Mergeable => {
                map.advise(hmm::mapping::MADV_MERGEABLE).what("make memory mergeable")?;
            }
            _ => {}
        }
        Ok((keeper, map))
    }
}

/// A policy adds at most a tenth to the time of a first pass over memory that cannot migrate, for
/// each kind. The shorter of two passes counts, because the kernel's own work may disturb one of
/// them.
pub(super) fn time_of_a_pass(ctx: &Ctx) -> Outcome {
    let mut settings = Settings::new();
    check!(settings.set("/proc/sys/vm/nr_hugepages", "8")?, "no hugetlb pages");
    let _restore = with(ctx, &vram(4))?;
    let device = ctx.open()?;
    let owner = ctx.open()?;
    let file = files::memfd(1, TIMED)?;
    let mut slow = Vec::new();
    for kind in [
        Stays::Shared,
        Stays::Memfd,
        Stays::PrivateFile,
        Stays::Pinned,
        Stays::Pipes,
        Stays::Mergeable,
        Stays::Hugetlb,
    ] {
        // Returns the time of a pass.
        let pass = |policy: Policy| -> Result<Duration, Stop> {
            let (keeper, map) = kind.map(&owner, &file)?;
            device.set_policy(policy)?;
            let read = Command::new(EngineOp::Checksum, map.addr(), map.len());
            let begin = Instant::now();
            let end = device.run(read).what("engine")?;
            let took = begin.elapsed();
            check_eq!(end.error, None, "an engine's read");
            engine_reads(&device, &map, 1)?;
            drop(keeper);
            Ok(took)
        };
        let mut without = Duration::MAX;
        let mut by_default = Duration::MAX;
        for _ in 0..2 {
            without = without.min(pass(Policy::None)?);
            by_default = by_default.min(pass(Policy::Default)?);
        }
        let text = format!("{kind:?}: {by_default:?} with the default policy, {without:?} without");
        println!("# {text}");
        if by_default * 10 > without * 11 {
            slow.push(text);
        }
    }
    check!(slow.is_empty(), "a policy costs more than a tenth: {}", slow.join("; "));
    device.close().what("close")?;
    owner.close().what("close")?;
    unload(ctx)
}
