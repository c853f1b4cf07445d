// SPDX-License-Identifier: GPL-2.0
//! Rows that every driver of the common interface supports.

use crate::bench::{
    timed,
    Bench,
    Buffer, //
};
use anyhow::Result;
use hmm::mapping::{
    Mapping,
    Prot,
    MADV_DONTNEED, //
};
use hmm::{
    Device,
    HUGE_PAGES,
    PAGE_SIZE, //
};

const PAGE: &str = "page";
const CALL: &str = "call";

/// Touches one word of each page in ascending order.
fn touch(map: &Mapping) {
    for page in 0..map.pages() {
        std::hint::black_box(map.get(page, 0));
    }
}

/// Does the same in an order in which a driver cannot detect a pattern.
fn touch_random(map: &Mapping) {
    // The generator visits all numbers below a power of two.
    let period = map.pages().next_power_of_two();
    let mut at = 0usize;
    for _ in 0..period {
        at = (at * 1_664_525 + 101) % period;
        if at < map.pages() {
            std::hint::black_box(map.get(at, 0));
        }
    }
}

fn read(device: &Device) -> impl FnMut(usize, &mut [u8]) -> Result<()> + '_ {
    |addr, part| {
        device.read(addr, part)?;
        Ok(())
    }
}

/// Adds the rows of device faults and device accesses.
pub fn faults(bench: &mut Bench) -> Result<()> {
    let pages = bench.pages();
    let mut buffer = Buffer::new(bench);
    bench.row("device read fault, populated", PAGE, pages, |bench| {
        let device = Device::open(0)?;
        let map = bench.small()?;
        bench.fill(&map, 1);
        bench.chunks(&map, &mut buffer, Some(1), read(&device))
    })?;
    bench.row("device re-read", PAGE, pages, |bench| {
        let device = Device::open(0)?;
        let map = bench.small()?;
        bench.fill(&map, 1);
        bench.untimed(&map, &mut buffer, None, read(&device))?;
        bench.chunks(&map, &mut buffer, Some(1), read(&device))
    })?;
    bench.row("device read of one mapped page", CALL, 100, |_| {
        let device = Device::open(0)?;
        let map = Mapping::anon(1)?;
        map.fill(1);
        let page = buffer.pages(1);
        device.read(map.addr(), page)?;
        timed(|| {
            for _ in 0..100 {
                device.read(map.addr(), page)?;
            }
            Ok(())
        })
    })?;
    bench.row("CPU first touch", PAGE, pages, |bench| {
        let map = bench.small()?;
        timed(|| {
            (0..map.pages()).for_each(|page| map.set(page, 0, 1));
            Ok(())
        })
    })?;
    bench.row("device write fault, unpopulated", PAGE, pages, |bench| {
        let device = Device::open(0)?;
        let map = bench.small()?;
        let data = bench.small()?;
        bench.fill(&data, 2);
        // The device reads the data from one mapping and then writes it to another, which only the
        // write populates.
        let mut sum = 0;
        bench.untimed(&data, &mut buffer, Some(2), |addr, part| {
            device.read(addr, part)?;
            sum += timed(|| Ok(device.write(map.addr() + (addr - data.addr()), part)?))?;
            Ok(())
        })?;
        bench.check(&map, 2)?;
        Ok(sum)
    })
}

/// Adds the rows of migrations in both directions.
pub fn migrations(bench: &mut Bench) -> Result<()> {
    let pages = bench.pages();
    let mut buffer = Buffer::new(bench);
    // Device memory is added on first use. The cheapest of several rounds does not include that,
    // but a single round would.
    if bench.is_single() {
        drop(bench.on_device(&bench.small()?, &mut buffer)?);
        if bench.huge_pages() > 0 {
            drop(bench.on_device(&bench.huge()?, &mut buffer)?);
        }
    }
    let mut to_device = |bench: &Bench, map: Mapping| {
        let device = Device::open(0)?;
        bench.fill(&map, 1);
        bench.chunks(&map, &mut buffer, Some(1), |addr, part| {
            device.migrate_to_device(addr, part)?;
            Ok(())
        })
    };
    bench.row("RAM to device, with read-back", PAGE, pages, |bench| {
        to_device(bench, bench.small()?)
    })?;
    if bench.huge_pages() > 0 {
        bench.row("RAM to device, THP, with read-back", PAGE, pages, |bench| {
            to_device(bench, bench.huge()?)
        })?;
    }
    let mut buffer = Buffer::new(bench);
    let mut touched = |bench: &Bench, map: Mapping, touch: fn(&Mapping)| {
        let _device = bench.on_device(&map, &mut buffer)?;
        let cost = timed(|| {
            touch(&map);
            Ok(())
        })?;
        bench.check(&map, 1)?;
        Ok(cost)
    };
    bench.row("device to RAM, CPU touch, sequential", PAGE, pages, |bench| {
        touched(bench, bench.small()?, touch)
    })?;
    bench.row("device to RAM, CPU touch, random", PAGE, pages, |bench| {
        touched(bench, bench.small()?, touch_random)
    })?;
    if bench.huge_pages() > 0 {
        bench.row("device to RAM, THP, CPU touch", PAGE, pages, |bench| {
            touched(bench, bench.huge()?, touch)
        })?;
    }
    bench.row("device to RAM by request", PAGE, pages, |bench| {
        let map = bench.small()?;
        let device = bench.on_device(&map, &mut buffer)?;
        let cost = bench.chunks(&map, &mut buffer, None, |addr, part| {
            device.migrate_to_system(addr, part.len() / PAGE_SIZE)?;
            Ok(())
        })?;
        bench.check(&map, 1)?;
        Ok(cost)
    })?;
    bench.row("prefetch of resident memory, with read-back", PAGE, pages, |bench| {
        let map = bench.small()?;
        let device = bench.on_device(&map, &mut buffer)?;
        bench.chunks(&map, &mut buffer, Some(1), |addr, part| {
            device.migrate_to_device(addr, part)?;
            Ok(())
        })
    })?;
    bench.row("close of a device full of pages", PAGE, pages, |bench| {
        let map = bench.small()?;
        let device = bench.on_device(&map, &mut buffer)?;
        let cost = timed(|| Ok(device.close()?))?;
        bench.check(&map, 1)?;
        Ok(cost)
    })
}

/// Adds the rows of address space changes, of mirrored and of other memory.
pub fn invalidations(bench: &mut Bench) -> Result<()> {
    let pages = bench.pages();
    let mut buffer = Buffer::new(bench);
    let mut row = |name, mirrored: bool, change: fn(&Mapping) -> Result<()>| {
        bench.row(name, PAGE, pages, |bench| {
            let device = Device::open(0)?;
            let map = bench.small()?;
            bench.fill(&map, 1);
            if mirrored {
                bench.untimed(&map, &mut buffer, Some(1), read(&device))?;
            }
            timed(|| change(&map))
        })
    };
    let unmap = |map: &Mapping| Ok(map.unmap_pages(0, map.pages())?);
    let protect = |map: &Mapping| Ok(map.protect(Prot::Read)?);
    row("munmap, not mirrored", false, unmap)?;
    row("munmap, mirrored", true, unmap)?;
    row("mprotect, not mirrored", false, protect)?;
    row("mprotect, mirrored", true, protect)?;
    one_page(bench)
}

/// Adds the rows of invalidations of a single page. Each page is in another huge page and has a
/// mapped neighbour, so that its page table stays and freeing it is not measured.
fn one_page(bench: &mut Bench) -> Result<()> {
    const TIMES: usize = 64;
    const ROUNDS: usize = 11;
    let names = ["madvise of a page, not mirrored", "madvise of a page, mirrored"];
    // By turns, because the kernel's own cost differs by more than a peer does from us.
    bench.by_turns(names, ROUNDS, (CALL, TIMES), |number| {
        let device = Device::open(0)?;
        let map = Mapping::reserve(TIMES * HUGE_PAGES * PAGE_SIZE, Prot::ReadWrite)?;
        let pages = || (0..map.pages()).step_by(HUGE_PAGES);
        let mut buffer = vec![0; 2 * PAGE_SIZE];
        for page in pages() {
            map.fill_pages(1, page, 2);
            if number == 1 {
                device.read(map.page_addr(page), &mut buffer)?;
                hmm::pattern::check(1, page, &buffer)?;
            }
        }
        timed(|| Ok(pages().try_for_each(|page| map.advise_pages(MADV_DONTNEED, page, 1))?))
    })
}

/// Adds the rows of a large, sparse address space with ten pages in its middle.
pub fn sparse(bench: &mut Bench) -> Result<()> {
    const PAGES: usize = 10;
    const TIMES: usize = 16;
    let mut row = |name, bytes: usize, mirrored: bool| {
        let once = || {
            let device = Device::open(0)?;
            let map = Mapping::reserve(bytes, Prot::ReadWrite)?;
            let first = map.pages() / 2;
            map.fill_pages(1, first, PAGES);
            if mirrored {
                let mut buffer = vec![1; PAGES * PAGE_SIZE];
                device.read(map.page_addr(first), &mut buffer)?;
                hmm::pattern::check(1, first, &buffer)?;
            }
            timed(|| Ok(map.unmap_pages(0, map.pages())?))
        };
        // The allocator's occasional work costs as much as the rest of one call, so take the
        // cheapest of several.
        bench.row(name, CALL, 1, |_| {
            let costs: Vec<u64> = (0..TIMES).map(|_| once()).collect::<Result<_>>()?;
            Ok(costs.into_iter().min().unwrap_or(0))
        })
    };
    row("munmap of 1 MiB with 10 pages, not mirrored", 1 << 20, false)?;
    row("munmap of 1 MiB with 10 mirrored pages", 1 << 20, true)?;
    row("munmap of 1 TiB with 10 pages, not mirrored", 1 << 40, false)?;
    row("munmap of 1 TiB with 10 mirrored pages", 1 << 40, true)
}
