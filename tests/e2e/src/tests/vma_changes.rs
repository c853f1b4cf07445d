// SPDX-License-Identifier: GPL-2.0
//! Changes of the address space under the device: mremap, munmap, mprotect.

use crate::check_eq;
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    Test,
    What, //
};
use crate::support::*;
use hmm::abi::HUGE_PAGES;
use hmm::{
    pattern,
    Errno,
    Mapping,
    Prot,
    PAGE_SIZE, //
};

const PAGES: usize = 32;
const OOPS: &str = "a refault of its own device page: oops";

pub const TESTS: &[Test] = &[
    Test::new("vma_changes", "mremap_of_device_pages", mremap_small).defect(OOPS),
    Test::new("vma_changes", "mremap_of_huge_device_pages", mremap_huge).defect(OOPS),
    Test::new("vma_changes", "mremap_of_a_part_keeps_the_rest", mremap_part).defect(OOPS),
    Test::new("vma_changes", "munmap_of_the_first_half", |ctx| munmap_part(ctx, 0)).defect(OOPS),
    Test::new("vma_changes", "munmap_of_the_middle", |ctx| munmap_part(ctx, 128)).defect(OOPS),
    Test::new("vma_changes", "munmap_of_the_last_half", |ctx| munmap_part(ctx, 256)).defect(OOPS),
    Test::new("vma_changes", "munmap_of_a_mirrored_range", munmap_mirrored),
    Test::new("vma_changes", "mprotect_in_ram", mprotect_in_ram),
    Test::new("vma_changes", "mprotect_on_the_device", mprotect_on_device).defect(OOPS),
    Test::new("vma_changes", "soft_dirty_keeps_read_entries", soft_dirty)
        .only_rust("test_hmm removes entries that need only be write-protected"),
    Test::new("vma_changes", "mprotect_none_and_back", mprotect_none).defect(OOPS),
];

fn no_device_read(ctx: &Ctx, map: &Mapping, first: usize, npages: usize) -> Outcome {
    let device = ctx.open()?;
    let mut data = vec![0; npages * PAGE_SIZE];
    fails(device.read(map.page_addr(first), &mut data), Errno::EFAULT, "read of nothing")
}

fn mremap(ctx: &Ctx, from: &Mapping, to: &Mapping) -> Outcome {
    let pages = from.pages();
    let device = ctx.open()?;
    from.fill(1);
    migrate(&device, from, 1)?;
    let delta = Delta::start(ctx, &device)?;
    from.move_pages(0, pages, to, 0)?;
    delta.exactly("device_pages_used", 0, "after mremap")?;
    device_sees(&device, to, 1, "at the new address")?;
    let mut data = vec![0; PAGE_SIZE];
    fails(device.read(from.addr(), &mut data), Errno::EFAULT, "read at the old address")?;
    device_fills(&device, to, 2, "at the new address")?;
    cpu_sees(to, 2, "at the new address")?;
    device_sees(&device, to, 2, "after the CPU read")?;
    Ok(())
}

fn mremap_small(ctx: &Ctx) -> Outcome {
    mremap(ctx, &Mapping::anon(PAGES)?, &Mapping::anon(PAGES)?)
}

fn mremap_huge(ctx: &Ctx) -> Outcome {
    mremap(ctx, &huge(1, 1)?, &Mapping::anon_huge(1)?)
}

/// mremap() of a part of a huge device page. The rest stays at its address.
fn mremap_part(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = huge(1, 1)?;
    let to = Mapping::anon(200)?;
    migrate(&device, &map, 1)?;
    map.move_pages(100, 200, &to, 0)?;
    let mut data = vec![0xaa; to.len()];
    device.read(to.addr(), &mut data).what("device read of the moved part")?;
    pattern::check(1, 100, &data).what("device read of the moved part")?;
    device_sees_pages(&device, &map, 1, 0, 100, "in front of the moved part")?;
    device_sees_pages(&device, &map, 1, 300, 212, "behind the moved part")?;
    for page in 0..200 {
        check_eq!(to.get(page, 4), pattern::word(1, page + 100, 4), "moved page {page}");
    }
    map.check_pages(1, 0, 100).what("CPU read in front of the moved part")?;
    map.check_pages(1, 300, 212).what("CPU read behind the moved part")
}

/// Unmaps half of a huge device page. The other half must keep its contents.
fn munmap_part(ctx: &Ctx, first: usize) -> Outcome {
    const HALF: usize = HUGE_PAGES / 2;
    let device = ctx.open()?;
    let map = huge(1, 1)?;
    let delta = Delta::start(ctx, &device)?;
    migrate(&device, &map, 1)?;
    map.unmap_pages(first, HALF)?;
    let rest = [(0, first), (first + HALF, HUGE_PAGES - first - HALF)];
    let rest = rest.iter().filter(|(_, npages)| *npages > 0);
    no_device_read(ctx, &map, first, 1)?;
    for &(from, npages) in rest.clone() {
        device_sees_pages(&device, &map, 1, from, npages, "of the remaining mapping")?;
        device_fills_pages(&device, &map, 2, from, npages, "of the remaining mapping")?;
    }
    for &(from, npages) in rest.clone() {
        map.check_pages(2, from, npages).what("CPU read of the remaining mapping")?;
        device_sees_pages(&device, &map, 2, from, npages, "after the CPU read")?;
    }
    for &(from, npages) in rest {
        map.unmap_pages(from, npages)?;
    }
    delta.exactly("device_pages_used", 0, "when all is unmapped")
}

fn munmap_mirrored(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    device_fills(&device, &map, 2, "before munmap")?;
    let delta = Delta::start(ctx, &device)?;
    map.unmap_pages(8, 8)?;
    delta.at_least("invalidations", 1, "of munmap")?;
    delta.exactly("invalidated_pages", 8, "of munmap")?;
    let mut data = vec![0; PAGE_SIZE];
    for page in [8, 15] {
        fails(device.read(map.page_addr(page), &mut data), Errno::EFAULT, "read of nothing")?;
        let written = device.write(map.page_addr(page), &data);
        fails(written, Errno::EFAULT, "write of nothing")?;
    }
    let mut all = vec![0; map.len()];
    fails(device.read(map.addr(), &mut all), Errno::EFAULT, "read over a hole")?;
    let done = device_sees_pages(&device, &map, 2, 0, 8, "in front of the hole")?;
    check_eq!(done.faults, 0, "fault rounds in front of the hole");
    device_sees_pages(&device, &map, 2, 16, 16, "behind the hole")?;
    Ok(())
}

fn mprotect(ctx: &Ctx, map: &Mapping, on_device: bool) -> Outcome {
    let device = ctx.open()?;
    map.fill(1);
    if on_device {
        migrate(&device, map, 1)?;
    }
    device_fills(&device, map, 2, "before mprotect")?;
    map.protect(Prot::Read)?;
    let data = pattern::buffer(9, 0, map.pages());
    fails(device.write(map.addr(), &data), Errno::EPERM, "write of read-only memory")?;
    device_sees(&device, map, 2, "of read-only memory")?;
    cpu_sees(map, 2, "of read-only memory")?;
    fails(device.write(map.addr(), &data), Errno::EPERM, "write after reads")?;
    map.protect(Prot::ReadWrite)?;
    device_fills(&device, map, 3, "after mprotect back")?;
    cpu_sees(map, 3, "after mprotect back")
}

fn mprotect_in_ram(ctx: &Ctx) -> Outcome {
    mprotect(ctx, &Mapping::anon(PAGES)?, false)
}

fn mprotect_on_device(ctx: &Ctx) -> Outcome {
    mprotect(ctx, &Mapping::anon(PAGES)?, true)?;
    mprotect(ctx, &huge(1, 1)?, true)
}

fn mprotect_none(ctx: &Ctx) -> Outcome {
    for on_device in [false, true] {
        let device = ctx.open()?;
        let map = Mapping::anon(PAGES)?;
        map.fill(1);
        if on_device {
            migrate(&device, &map, 1)?
        } else {
            device_sees(&device, &map, 1, "before").map(|_| ())?
        }
        map.protect(Prot::None)?;
        let mut data = vec![0x55; map.len()];
        fails(device.read(map.addr(), &mut data), Errno::EFAULT, "read of PROT_NONE")?;
        if data.iter().any(|byte| *byte != 0x55) {
            return Err(Stop::Fail("a failed read changed the buffer".to_string()));
        }
        fails(device.write(map.addr(), &data), Errno::EFAULT, "write of PROT_NONE")?;
        map.protect(Prot::ReadWrite)?;
        device_sees(&device, &map, 1, "after PROT_NONE")?;
        cpu_sees(&map, 1, "after PROT_NONE")?;
    }
    Ok(())
}

/// Events that only remove write access leave device PTEs readable.
fn soft_dirty(ctx: &Ctx) -> Outcome {
    let device = ctx.open()?;
    let map = Mapping::anon(PAGES)?;
    map.fill(1);
    device_fills(&device, &map, 2, "before clear_refs")?;
    // Write-protects every page of the process for soft-dirty tracking.
    std::fs::write("/proc/self/clear_refs", "4").what("clear_refs")?;
    let read = device_sees(&device, &map, 2, "after clear_refs")?;
    check_eq!(read.faults, 0, "fault rounds of a read after write protection");
    device_fills(&device, &map, 3, "after clear_refs")?;
    cpu_sees(&map, 3, "after clear_refs and a device write")
}
