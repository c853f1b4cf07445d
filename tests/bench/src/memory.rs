// SPDX-License-Identifier: GPL-2.0
//! Rows of policies, attributes, copies and eviction, which only `rust_dmirror` supports.

use crate::bench::{
    timed,
    Bench,
    Buffer, //
};
use crate::space;
use anyhow::{
    ensure,
    Result, //
};
use hmm::engine::Way;
use hmm::placement::{
    Attributes,
    Policy,
    Preferred, //
};
use hmm::{
    Command,
    Device,
    EngineOp,
    Mapping,
    QueueOp,
    HUGE_PAGES,
    HUGE_SIZE,
    PAGE_SIZE, //
};

/// MiB that fill a chunk of device memory.
const PIECE: usize = 256;

/// MiB of address space whose page tables are measured.
const SPACE: usize = 64;

/// Adds the rows.
pub fn rows(bench: &mut Bench) -> Result<()> {
    if Device::open(0)?.info().is_err() {
        // Another driver.
        return Ok(());
    }
    let pages = bench.pages();
    for (name, policy, read_mostly) in [
        ("engine in order, mapped in place", Policy::None, false),
        ("engine in order, default policy", Policy::Default, false),
        ("engine in order, one page per fault", Policy::OnePage, false),
        ("engine in order, read-mostly", Policy::Default, true),
    ] {
        bench.row(name, "page", pages, |bench| {
            let device = Device::open(0)?;
            let map = bench.small()?;
            bench.fill(&map, 1);
            device.set_policy(policy)?;
            if read_mostly {
                let new = Attributes::NONE.flag(Attributes::READ_MOSTLY, true);
                device.set_attributes(map.addr(), map.pages(), new)?;
            }
            let read = Command::new(EngineOp::Read, map.addr(), map.len());
            let cost = timed(|| {
                ensure!(device.run(read)?.error.is_none(), "an engine failed");
                Ok(())
            })?;
            bench.check(&map, 1)?;
            Ok(cost)
        })?;
    }
    // Full chunks must not be searched again for each page.
    bench.row("RAM to device, beside 256 MiB", "page", pages, |bench| {
        let (device, full, map) =
            (Device::open(0)?, Mapping::anon_huge((PIECE << 20) / HUGE_SIZE)?, bench.small()?);
        (0..full.pages()).step_by(HUGE_PAGES).for_each(|page| full.set(page, 0, 1));
        let there = device.migrate(full.addr(), full.pages(), Way::ToDevice)?;
        ensure!(there.moved as usize == full.pages(), "{} pages moved", there.moved);
        bench.fill(&map, 1);
        let cost = timed(|| {
            device.migrate(map.addr(), map.pages(), Way::ToDevice)?;
            Ok(())
        })?;
        bench.check(&map, 1)?;
        Ok(cost)
    })?;
    bench.row("prefetch of resident memory", "page", pages, |bench| {
        let map = bench.small()?;
        let device = bench.on_device(&map, &mut Buffer::new(bench))?;
        let queue = device.queue()?;
        let cost = timed(|| {
            let done = queue.submit(QueueOp::prefetch(map.addr(), map.len()), &[])?.done()?;
            ensure!(done.moved == 0, "{} pages moved", done.moved);
            Ok(())
        })?;
        bench.check(&map, 1)?;
        Ok(cost)
    })?;
    bench.row("bytes of tables, small pages", "page", (SPACE << 20) / PAGE_SIZE, |_| {
        Ok(space::fill(SPACE, false)?.1 as u64)
    })?;
    bench.row("attributes set and asked for", "call", 200, |bench| {
        let device = Device::open(0)?;
        let map = bench.small()?;
        bench.fill(&map, 1);
        timed(|| {
            for call in 0..100 {
                let prefer = if call % 2 == 0 { Preferred::Device } else { Preferred::System };
                let new = Attributes::NONE.prefer(prefer);
                let at = call * 7 % map.pages();
                let count = 16.min(map.pages() - at);
                device.set_attributes(map.page_addr(at), count, new)?;
                let found = device.attributes(map.page_addr(at), count.min(7))?;
                ensure!(found.preferred == prefer as u32, "wrong attributes");
            }
            Ok(())
        })
    })
}
