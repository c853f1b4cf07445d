// SPDX-License-Identifier: GPL-2.0
//! Memory that a device accesses exclusively, while the kernel reclaims memory.

use super::module_stress::Limited;
use crate::check;
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    Test,
    What, //
};
use hmm::{
    Child,
    Mapping,
    PAGE_SIZE, //
};
use std::time::Duration;

pub const TESTS: &[Test] = &[Test::new("sharing", "exclusive_pages_survive_reclaim", survive)
    .only_rust("test_hmm does not avoid this bug of the kernel")];

/// Reclaim looks for references of pages of which a device has exclusive access. On arm64 that
/// damaged their CPU PTEs, so that `fork()` and CPU accesses did not end.
fn survive(ctx: &Ctx) -> Outcome {
    let group = Limited::new("exclusive", 1 << 30)?;
    group.permit_swap()?;
    let mut child = Child::spawn(|| reclaimed(ctx, &group))?;
    let ended = child.wait_timeout(Duration::from_secs(60));
    check!(ended.is_some(), "the process with exclusive memory does not end");
    child.join().map_err(Stop::Fail)
}

fn reclaimed(ctx: &Ctx, group: &Limited) -> Outcome {
    const PAGES: usize = 64;
    group.enter()?;
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.forbid_huge()?;
    map.fill(1);
    let mut data = vec![0; PAGES * PAGE_SIZE];
    device.exclusive(map.addr(), &mut data).what("exclusive access")?;
    let before = group.scanned()?;
    group.reclaim(4 * PAGES * PAGE_SIZE)?;
    let scanned = group.scanned()? - before;
    check!(scanned >= PAGES as u64, "reclaim has examined {scanned} pages");
    // A fork copies the entries.
    let other = Child::spawn(|| map.check(1).what("CPU read after fork"))?;
    other.join().map_err(Stop::Fail)?;
    map.check(1).what("CPU read after reclaim")
}
