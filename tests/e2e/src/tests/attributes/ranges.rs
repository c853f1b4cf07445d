// SPDX-License-Identifier: GPL-2.0
//! Attributes of a range: refused values, and the effect of events on them.

use super::{
    get,
    has_device,
    has_none,
    none,
    set,
    DEVICE, //
};
use crate::harness::{
    Ctx,
    Outcome,
    Stop, //
};
use crate::support::*;
use crate::{
    check,
    check_eq, //
};
use hmm::placement::{
    Attributes,
    Preferred, //
};
use hmm::{
    Child,
    Errno,
    Mapping,
    Prot,
    HUGE_PAGES, //
};

pub(super) fn common_attributes_of_a_range_are_reported(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(64)?;
    has_none(&device, &map, 0, 64, "at first")?;
    set(&device, &map, 8, 16, DEVICE.flag(Attributes::READ_MOSTLY, true))?;
    set(&device, &map, 16, 32, none().flag(Attributes::NEVER_MIGRATE, true).order(Some(4)))?;
    set(&device, &map, 20, 1, none().prefer(Preferred::System))?;
    let all = Attributes { what: Attributes::ALL, ..none() };
    let first = all.prefer(Preferred::Device).flag(Attributes::READ_MOSTLY, true);
    check_eq!(get(&device, &map, 8, 8)?, first, "of the first part");
    let both = first.flag(Attributes::NEVER_MIGRATE, true).order(Some(4));
    check_eq!(get(&device, &map, 16, 4)?, both, "where both hold");
    check_eq!(get(&device, &map, 20, 1)?, both.prefer(Preferred::System), "of one page");
    // Attributes that differ within the range are left out and read as 0.
    let part = both.what & !Attributes::PREFERRED;
    let expected = Attributes { what: part, preferred: 0, ..both };
    check_eq!(get(&device, &map, 16, 8)?, expected, "of a range in which the place differs");
    let found = get(&device, &map, 0, 64)?;
    check_eq!(found, none().flag(Attributes::ACCESSED_BY, false), "of everything");
    // Back to the defaults.
    let clear = Attributes { what: Attributes::ALL, ..none() };
    set(&device, &map, 0, 64, clear)?;
    has_none(&device, &map, 0, 64, "when they were taken back")
}

pub(super) fn errors(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(8)?;
    let bad = |new: Attributes, what: &str| {
        fails(device.set_attributes(map.addr(), 8, new), Errno::EINVAL, what)
    };
    bad(Attributes { what: 32, ..none() }, "an unknown attribute")?;
    bad(Attributes { what: 2, values: 1, ..none() }, "an unknown value")?;
    bad(Attributes { what: 1, preferred: 3, ..none() }, "an unknown place")?;
    bad(none().order(Some(HUGE_PAGES.ilog2() + 1)), "an order that is too large")?;
    fails(device.set_attributes(map.addr() + 1, 1, DEVICE), Errno::EINVAL, "no page")?;
    fails(device.set_attributes(map.addr(), 0, DEVICE), Errno::EINVAL, "no pages")?;
    map.unmap_pages(4, 1)?;
    let hole = device.set_attributes(map.addr(), 8, DEVICE);
    fails(hole, Errno::EFAULT, "a range with a hole")?;
    has_device(&device, &map, 0, 4, "of the part before the hole")?;
    has_none(&device, &map, 4, 4, "of the hole and the part after it")
}

pub(super) fn unmapped(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(64)?;
    for touched in [false, true] {
        if touched {
            map.fill(1);
        }
        set(&device, &map, 0, 64, DEVICE)?;
        map.unmap_pages(16, 16)?;
        has_device(&device, &map, 0, 16, "before the unmapped range")?;
        has_none(&device, &map, 16, 16, "of the unmapped range")?;
        has_device(&device, &map, 32, 32, "behind the unmapped range")?;
        map.map_again(16, 16, None)?;
        has_none(&device, &map, 16, 16, "of the range mapped again")?;
    }
    // Unmap and map again immediately, with no query in between.
    set(&device, &map, 0, 64, DEVICE)?;
    map.unmap_pages(0, 32)?;
    map.map_again(0, 32, None)?;
    map.fill_pages(2, 0, 32);
    has_none(&device, &map, 0, 32, "of new memory at an old place")?;
    has_device(&device, &map, 32, 32, "of the old memory")
}

pub(super) fn moved(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    for touched in [false, true] {
        let map = Mapping::anon(64)?;
        let target = Mapping::anon(64)?;
        if touched {
            map.fill(1);
        }
        set(&device, &map, 8, 32, DEVICE)?;
        set(&device, &target, 0, 64, none().prefer(Preferred::System))?;
        map.move_pages(0, 32, &target, 32)?;
        let when = format!("when it was moved (touched: {touched})");
        has_none(&device, &map, 0, 32, &when)?;
        has_device(&device, &map, 32, 8, &when)?;
        has_none(&device, &target, 32, 8, &when)?;
        has_device(&device, &target, 40, 24, &when)?;
        let system = get(&device, &target, 0, 32)?;
        check_eq!(system.preferred, Preferred::System as u32, "of the ranges not replaced {when}");
        // Move a part of it again.
        let third = Mapping::anon(16)?;
        target.move_pages(44, 8, &third, 4)?;
        has_device(&device, &third, 4, 8, &when)?;
        has_none(&device, &third, 0, 4, &when)?;
        has_device(&device, &target, 52, 12, &when)?;
    }
    Ok(())
}

/// Attributes follow memory that is moved to a place far from all attributes, and are removed when
/// the memory is unmapped there.
pub(super) fn moved_far(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(6 * 16)?;
    let to = Mapping::anon(6 << 15)?;
    map.fill(1);
    set(&device, &map, 0, map.pages(), DEVICE)?;
    // The notifier covers 64 MiB around attributes. The last destination is the nearest one and is
    // found first.
    let at = |n: usize| if to.addr() < map.addr() { n << 15 } else { ((6 - n) << 15) - 16 };
    for (part, first) in (0..6).map(at).enumerate() {
        check!(to.page_addr(first).abs_diff(map.addr()) > 100 << 20, "the target is near");
        map.move_pages(16 * part, 16, &to, first)?;
    }
    for first in (0..6).map(at) {
        has_device(&device, &to, first, 16, "where it was moved")?;
        to.unmap_pages(first, 16)?;
        has_none(&device, &to, first, 16, "of the unmapped range")?;
        to.map_again(first, 16, None)?;
        has_none(&device, &to, first, 16, "of the range mapped again")?;
    }
    Ok(())
}

pub(super) fn child_inherits_no_attributes(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(16)?;
    map.fill(1);
    set(&device, &map, 0, 16, DEVICE)?;
    let child = Child::spawn(|| -> Outcome {
        let own = ctx.open()?;
        has_none(&own, &map, 0, 16, "of the child")?;
        set(&own, &map, 0, 16, none().prefer(Preferred::System))?;
        // The mirror of the inherited file is that of the parent's memory.
        has_device(&device, &map, 0, 16, "of the parent, asked by the child")
    })?;
    child.join().map_err(Stop::Fail)?;
    has_device(&device, &map, 0, 16, "of the parent")
}

pub(super) fn mprotect_migration_and_fork_keep_attributes(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(64)?;
    map.fill(1);
    set(&device, &map, 0, 64, DEVICE)?;
    map.advise(libc::MADV_DONTNEED)?;
    has_device(&device, &map, 0, 64, "after MADV_DONTNEED")?;
    map.protect(Prot::Read)?;
    has_device(&device, &map, 0, 64, "after mprotect")?;
    map.protect(Prot::ReadWrite)?;
    map.fill(2);
    migrate(&device, &map, 2)?;
    cpu_sees(&map, 2, "after a migration")?;
    has_device(&device, &map, 0, 64, "after a migration")?;
    let child = Child::spawn(|| -> Outcome { cpu_sees(&map, 2, "in a child") })?;
    child.join().map_err(Stop::Fail)?;
    has_device(&device, &map, 0, 64, "after fork")
}
