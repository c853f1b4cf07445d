// SPDX-License-Identifier: GPL-2.0
//! Cost of mirrored address space, and the memory of its page tables, by size. The memory is mapped
//! to the zero page, so that 16 GiB of address space need no such memory. Leaves of 64 KiB need
//! folios, and have that memory.

use crate::bench::timed;
use anyhow::{
    Context,
    Result, //
};
use hmm::abi::{
    HUGE_SIZE,
    PAGE_SIZE, //
};
use hmm::files::SmallThp;
use hmm::mapping::{
    Mapping,
    Prot, //
};
use hmm::Device;
use serde_json::{
    json,
    Value, //
};

const TABLES: &str = "/sys/kernel/debug/rust_hmm/tables";

/// Pages of one ioctl, which are 32 MiB.
const CHUNK: usize = (32 << 20) / PAGE_SIZE;

/// Returns the bytes of the page tables of all mirrors.
fn table_bytes() -> Result<f64> {
    let text = std::fs::read_to_string(TABLES).with_context(|| TABLES.to_string())?;
    let bytes = text.lines().find_map(|line| line.strip_prefix("bytes "));
    Ok(bytes.context("no line with the bytes")?.trim().parse()?)
}

/// Has `device` read all of `map`, whose pages begin with `byte`. Returns the instructions.
fn read(device: &Device, map: &Mapping, byte: u8) -> Result<u64> {
    let mut room = vec![!byte; (CHUNK + 1) * PAGE_SIZE];
    let skip = room.as_ptr().align_offset(PAGE_SIZE);
    let mut sum = 0;
    for first in (0..map.pages()).step_by(CHUNK) {
        let count = CHUNK.min(map.pages() - first);
        let buffer = &mut room[skip..skip + count * PAGE_SIZE];
        buffer[0] = !byte;
        sum += timed(|| Ok(device.read(map.page_addr(first), buffer)?))?;
        anyhow::ensure!(buffer[0] == byte, "page {first} has other contents");
    }
    Ok(sum)
}

/// Reads `mib` MiB of new address space by the device. Returns the instructions per page and the
/// bytes of page tables.
pub fn fill(mib: usize, huge: bool) -> Result<(f64, f64)> {
    let device = Device::open(0)?;
    let before = table_bytes()?;
    let map = Mapping::reserve(mib << 20, Prot::ReadWrite)?;
    if huge {
        map.allow_huge()?;
    }
    let sum = read(&device, &map, 0)?;
    let mapped = device.counters()?.pages_mapped;
    anyhow::ensure!(mapped > 0, "nothing was mapped");
    Ok((sum as f64 / map.pages() as f64, table_bytes()? - before))
}

/// Measures one size, with small and with huge pages.
pub fn measure(mib: usize) -> Result<Value> {
    let bytes_mapped = mib << 20;
    anyhow::ensure!(bytes_mapped % HUGE_SIZE == 0, "--space must be whole huge pages");
    let (cost, bytes) = fill(mib, false)?;
    let (huge_cost, huge_bytes) = fill(mib, true)?;
    eprintln!("{mib} MiB of address space: {cost:.1} per page, {bytes} bytes of tables, huge {huge_bytes}");
    Ok(json!({
        "mib": mib,
        "cost": cost,
        "bytes_per_page": bytes / (bytes_mapped / PAGE_SIZE) as f64,
        "huge_cost": huge_cost,
        "huge_bytes": huge_bytes,
        "leaves": bytes_mapped / HUGE_SIZE,
    }))
}

/// Bytes of a leaf of 64 KiB.
const LEAF: usize = 64 << 10;

/// Measures `mib` MiB in folios of 64 KiB, which a format that has such leaves maps by them.
pub fn leaves(mib: usize) -> Result<Value> {
    let small = SmallThp::start().context("folios of 64 KiB")?;
    let map = Mapping::anon_huge((mib << 20) / HUGE_SIZE)?;
    (0..map.pages()).for_each(|page| map.set(page, 0, 1));
    let leaves = map.len() / LEAF;
    let made = small.made()?;
    anyhow::ensure!(made >= leaves as u64, "{made} folios of 64 KiB, not {leaves}");
    let device = Device::open(0)?;
    let before = table_bytes()?;
    let cost = read(&device, &map, 1)?;
    let bytes = table_bytes()? - before;
    eprintln!("{mib} MiB in leaves of 64 KiB: {bytes} bytes of tables");
    Ok(json!({
        "mib": mib,
        "cost": cost as f64 / map.pages() as f64,
        "bytes": bytes,
        "leaves": leaves,
    }))
}
