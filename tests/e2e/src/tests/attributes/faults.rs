// SPDX-License-Identifier: GPL-2.0
//! Effect of the place, the granularity and mapping in place on device faults and migrations.

use super::{
    engine_reads,
    none,
    set,
    DEVICE, //
};
use crate::harness::{
    Ctx,
    Outcome, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::engine::Way;
use hmm::placement::{
    Attributes,
    Policy,
    Preferred, //
};
use hmm::{
    Errno,
    Mapping,
    Prot,
    HUGE_PAGES,
    PAGE_SIZE, //
};

pub(super) fn preferred_location(ctx: &Ctx) -> Outcome {
    const HALF: usize = HUGE_PAGES / 2;
    /// Pages of 64 KiB, which the policy migrates at least.
    const LEAF: usize = (64 << 10) / PAGE_SIZE;
    let device = ctx.open()?;
    device.set_policy(Policy::Default)?;
    let map = Mapping::anon_aligned(1)?;
    map.forbid_huge()?;
    map.fill(1);
    set(&device, &map, 0, HUGE_PAGES, none().prefer(Preferred::System))?;
    check_eq!(engine_reads(&device, &map, 5)?, 0, "pages that moved though they should not");
    device_sees(&device, &map, 1, "of memory in the system")?;
    check_eq!(device.placement()?.in_place, 1, "faults that left it where it is");
    set(&device, &map, HALF, HALF, none().prefer(Preferred::Device))?;
    device.discard(map.addr(), HUGE_PAGES)?;
    check!(engine_reads(&device, &map, HALF + 44)? >= LEAF, "what prefers the device did not move");
    check_eq!(resident(&device, &map, 0, HALF)?, 0, "pages of the other half");
    cpu_sees(&map, 1, "in both places")
}

pub(super) fn never_migrate(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(64)?;
    map.fill(1);
    set(&device, &map, 16, 16, none().flag(Attributes::NEVER_MIGRATE, true))?;
    let done = device.migrate(map.addr(), 64, Way::ToDevice)?;
    check_eq!((done.moved, done.skipped), (48, 16), "moved, skipped");
    check_eq!(resident(&device, &map, 16, 16)?, 0, "pages that moved though they must not");
    device.set_policy(Policy::OnePage)?;
    engine_reads(&device, &map, 20)?;
    check_eq!(resident(&device, &map, 16, 16)?, 0, "pages that a fault moved");
    // Memory without read access is refused, with the attribute as well as without it.
    map.protect_pages(Prot::None, 20, 4)?;
    for (first, pages) in [(20, 1), (20, 4), (18, 4), (23, 2)] {
        let refused = device.migrate(map.page_addr(first), pages, Way::ToDevice);
        check_eq!(refused.err(), Some(Errno::EINVAL), "{pages} pages from {first} on");
    }
    check_eq!(device.migrate(map.page_addr(16), 4, Way::ToDevice)?.skipped, 4, "before them");
    map.protect_pages(Prot::ReadWrite, 20, 4)?;
    set(&device, &map, 16, 16, none().flag(Attributes::NEVER_MIGRATE, false))?;
    check_eq!(device.migrate(map.addr(), 64, Way::ToDevice)?.moved, 16, "moved then");
    cpu_sees(&map, 1, "after all")
}

pub(super) fn accessed_by(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(64)?;
    map.fill(1);
    set(&device, &map, 0, 64, none().flag(Attributes::ACCESSED_BY, true))?;
    let done = device_sees(&device, &map, 1, "of memory that is always mapped")?;
    check_eq!(done.faults, 0, "faults on memory that is always mapped");
    Ok(())
}

pub(super) fn granularity(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    device.set_policy(Policy::Default)?;
    let map = Mapping::anon_aligned(1)?;
    map.forbid_huge()?;
    map.fill(1);
    for (order, page) in [(0, 3), (3, 70), (6, 200)] {
        device.migrate(map.addr(), HUGE_PAGES, Way::ToSystem)?;
        set(&device, &map, 0, HUGE_PAGES, none().order(Some(order)))?;
        check_eq!(engine_reads(&device, &map, page)?, 1 << order, "pages of order {order}");
    }
    cpu_sees(&map, 1, "after all")
}

/// Attributes also apply without a fault policy, for engines and for commands.
pub(super) fn attributes_apply_without_a_fault_policy(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon_aligned(1)?;
    map.forbid_huge()?;
    map.fill(1);
    set(&device, &map, 64, 64, DEVICE.order(Some(3)))?;
    check_eq!(engine_reads(&device, &map, 3)?, 0, "pages of which nothing was said");
    check_eq!(engine_reads(&device, &map, 65)?, 8, "pages that prefer the device");
    // A command on the whole range: each part is placed by its attributes.
    device_sees(&device, &map, 1, "of both parts")?;
    check_eq!(resident(&device, &map, 64, 64)?, 64, "pages of that part");
    check_eq!(resident(&device, &map, 0, HUGE_PAGES)?, 64, "pages of all");
    cpu_sees(&map, 1, "after all")
}

/// If each page has other attributes, a device fault handles the pages one after the other. Another
/// thread invalidates the first page again and again, faster than the fault handles all. The fault
/// must complete nevertheless.
pub(super) fn concurrent_invalidations(ctx: &Ctx) -> Outcome {
    let map = Mapping::anon_aligned(1)?;
    map.forbid_huge()?;
    map.fill(1);
    comes_to_an_end(|| {
        let device = ctx.open()?;
        device.set_policy(Policy::OnePage)?;
        for page in (0..map.pages()).step_by(2) {
            set(&device, &map, page, 1, none().order(Some(0)))?;
        }
        while_taken(&map, || {
            device_sees(&device, &map, 1, "while a page is taken away").map(|_| ())
        })
    })
}
