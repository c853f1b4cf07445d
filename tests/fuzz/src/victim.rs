// SPDX-License-Identifier: GPL-2.0
//! Another process with memory on the same devices, which no other process may read or change.

use crate::{
    calls::CANARY,
    stats::Shared,
    sys, //
};
use hmm::{
    engine::Way,
    Device,
    Mapping,
    PAGE_SIZE, //
};
use std::sync::atomic::Ordering::Relaxed;

const PAGES: usize = 64;
/// Number of pages where the device takes 200 ms for each.
const FEW: usize = 4;

/// Counts the readable words and those of them that are not the canary. Memory that cannot be read
/// now, because of an injected copy failure, is no error.
fn wrong_words(map: &Mapping) -> (u64, usize) {
    let mut bytes = vec![0u64; map.len() / 8];
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: map.len() };
    let remote = libc::iovec { iov_base: map.addr() as *mut _, iov_len: map.len() };
    let local = std::ptr::addr_of!(local);
    let remote = std::ptr::addr_of!(remote);
    let pid = std::process::id() as usize;
    let read =
        sys::call(libc::SYS_process_vm_readv, [pid, local as usize, 1, remote as usize, 1, 0]);
    let words = usize::try_from(read).unwrap_or(0) / 8;
    (bytes[..words].iter().filter(|word| **word != CANARY).count() as u64, words)
}

/// Migrates with the ioctl of `test_hmm`, which fails if a page is evicted concurrently. Returns
/// the number of pages on the device.
fn moved_by_hardware(device: &Device, map: &Mapping, data: &mut [u8]) -> Result<u64, hmm::Errno> {
    let _ = device.migrate_to_device(map.addr(), data);
    let states = device.snapshot(map.addr(), map.pages())?;
    Ok(states.iter().filter(|state| state.is_local()).count() as u64)
}

/// Runs in a process of its own until the run ends.
pub fn run(devices: u64, hardware: bool, shared: &Shared) -> Result<(), String> {
    let name = |error: hmm::Errno| error.to_string();
    let pages = if hardware { FEW } else { PAGES };
    let mut all = Vec::new();
    for index in 0..devices as u32 {
        let device = Device::open(index).map_err(name)?;
        let map = Mapping::anon(pages).map_err(name)?;
        for page in 0..pages {
            (0..PAGE_SIZE / 8).for_each(|word| map.set(page, word, CANARY));
        }
        all.push((device, map));
    }
    let mut data = vec![0u8; pages * PAGE_SIZE];
    while !shared.stop.load(Relaxed) {
        for (device, map) in &all {
            // Other processes evict it and let copies fail: both calls may fail.
            let moved = if hardware {
                moved_by_hardware(device, map, &mut data)
            } else {
                device.migrate(map.addr(), pages, Way::ToDevice).map(|done| done.moved)
            };
            shared.moved.fetch_add(moved.unwrap_or(0), Relaxed);
            let by_device = device.read(map.addr(), &mut data).is_ok();
            if by_device {
                let words = data.chunks_exact(8);
                let wrong = words.filter(|word| **word != CANARY.to_ne_bytes()).count();
                shared.damages.fetch_add(wrong as u64, Relaxed);
            }
            let (wrong, read) = wrong_words(map);
            shared.damages.fetch_add(wrong, Relaxed);
            if by_device && read == pages * PAGE_SIZE / 8 {
                shared.checks.fetch_add(1, Relaxed);
            }
        }
        sys::sleep_us(30_000);
    }
    Ok(())
}
