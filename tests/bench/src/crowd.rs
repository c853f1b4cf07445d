// SPDX-License-Identifier: GPL-2.0
//! Rows with many other processes, each of which has a mirror that is open and not used.

use crate::bench::{
    timed,
    Bench,
    Buffer, //
};
use anyhow::{
    ensure,
    Result, //
};
use hmm::abi::PAGE_SIZE;
use hmm::{
    procfs,
    Crowd,
    Device, //
};
use std::hint::black_box;

/// Number of mirrors with which the memory of an open mirror is measured, too.
const MANY: usize = 1000;

const BYTES: &str = "bytes of an open mirror";

/// Names of the rows, for each number of mirrors.
const NAMES: [(usize, [&str; 2]); 3] = [
    (1, ["eviction, 1 mirror", "CPU faults on device pages, 1 mirror"]),
    (MANY, ["eviction, 1,000 mirrors", "CPU faults on device pages, 1,000 mirrors"]),
    (10_000, ["eviction, 10,000 mirrors", "CPU faults on device pages, 10,000 mirrors"]),
];

fn free_bytes() -> Result<u64> {
    let free = procfs::meminfo()?.get("MemFree").copied().unwrap_or(0) * 1024;
    Ok(free + procfs::pages_in_lists()? * PAGE_SIZE as u64)
}

/// Adds the rows with up to `most` mirrors.
pub fn rows(bench: &mut Bench, most: usize) -> Result<()> {
    let pages = bench.pages();
    for (count, names) in NAMES.into_iter().filter(|(count, _)| *count <= most.max(1)) {
        let wanted = names.iter().chain([&BYTES]).any(|name| bench.wants(name));
        if !wanted {
            continue;
        }
        let others = count - 1;
        let mut crowd = Crowd::new(others, || Device::open(0))?;
        let before = free_bytes()?;
        crowd.start()?;
        let after = free_bytes()?;
        if count == MANY {
            ensure!(after < before, "the mirrors take no memory");
            bench.row(BYTES, "mirror", others, |_| Ok(before - after))?;
        }
        let mut buffer = Buffer::new(bench);
        for (name, evict) in names.into_iter().zip([true, false]) {
            bench.row(name, "page", pages, |bench| {
                let map = bench.small()?;
                let device = bench.on_device(&map, &mut buffer)?;
                let cost = timed(|| {
                    if evict {
                        device.release()?;
                    } else {
                        (0..map.pages()).for_each(|page| {
                            black_box(map.get(page, 0));
                        });
                    }
                    Ok(())
                })?;
                bench.check(&map, 1)?;
                Ok(cost)
            })?;
        }
    }
    Ok(())
}
