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
/// Number of lines about wrong words, of which each describes a page.
const REPORTS: usize = 64;

/// Copies the readable part of `map` to `data`, as far as it fits, and returns its length in bytes.
/// Memory that cannot be read now, because of an injected copy failure, is no error.
fn read_by_cpu(map: &Mapping, data: &mut [u8]) -> usize {
    let local = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
    let remote = libc::iovec { iov_base: map.addr() as *mut _, iov_len: map.len() };
    let local = std::ptr::addr_of!(local);
    let remote = std::ptr::addr_of!(remote);
    let pid = std::process::id() as usize;
    let read =
        sys::call(libc::SYS_process_vm_readv, [pid, local as usize, 1, remote as usize, 1, 0]);
    usize::try_from(read).unwrap_or(0)
}

/// Migrates with the ioctl of `test_hmm`, which fails if a page is evicted concurrently. Returns
/// the number of pages on the device.
fn moved_by_hardware(device: &Device, map: &Mapping, data: &mut [u8]) -> Result<u64, hmm::Errno> {
    let _ = device.migrate_to_device(map.addr(), data);
    let states = device.snapshot(map.addr(), map.pages())?;
    Ok(states.iter().filter(|state| state.is_local()).count() as u64)
}

/// Describes the words of a page that are not the canary: their number, and the first and last of
/// them with their offset in bytes. `None` if there are none.
fn describe(page: &[u8]) -> Option<(u64, String)> {
    let words = page.chunks_exact(8).map(|word| word.try_into().map(u64::from_ne_bytes));
    let wrong: Vec<_> = words.flatten().enumerate().filter(|(_, word)| *word != CANARY).collect();
    let ((first, from), (last, to)) = (wrong.first()?, wrong.last()?);
    let count = wrong.len() as u64;
    let (first, last) = (first * 8, last * 8);
    Some((count, format!("{count} words, from {from:#x} at {first} to {to:#x} at {last}")))
}

/// Counts words that are not the canary in `data`, which `reader` has read, and reports them.
fn check(shared: &Shared, reports: &mut usize, reader: &str, data: &[u8]) {
    for (index, page) in data.chunks(PAGE_SIZE).enumerate() {
        let Some((count, what)) = describe(page) else { continue };
        shared.damages.fetch_add(count, Relaxed);
        *reports += 1;
        if *reports <= REPORTS {
            let checks = shared.checks.load(Relaxed);
            eprintln!("after {checks} checks, {reader} has read in page {index}: {what}");
        }
    }
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
    let mut reports = 0;
    while !shared.stop.load(Relaxed) {
        for (index, (device, map)) in all.iter().enumerate() {
            // Other processes evict it and let copies fail: both calls may fail.
            let moved = if hardware {
                moved_by_hardware(device, map, &mut data)
            } else {
                device.migrate(map.addr(), pages, Way::ToDevice).map(|done| done.moved)
            };
            shared.moved.fetch_add(moved.unwrap_or(0), Relaxed);
            data.fill(0);
            let by_device = device.read(map.addr(), &mut data).is_ok();
            if by_device {
                check(shared, &mut reports, &format!("device {index}"), &data);
            }
            data.fill(0);
            let read = read_by_cpu(map, &mut data);
            check(shared, &mut reports, &format!("the CPU (memory {index})"), &data[..read]);
            if by_device && read == map.len() {
                shared.checks.fetch_add(1, Relaxed);
            }
        }
        sys::sleep_us(30_000);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_words_are_described() {
        let mut page = CANARY.to_ne_bytes().repeat(PAGE_SIZE / 8);
        assert_eq!(describe(&page), None);
        page[16..24].fill(0);
        page[32..40].fill(1);
        let what = "2 words, from 0x0 at 16 to 0x101010101010101 at 32".to_string();
        assert_eq!(describe(&page), Some((2, what)));
    }
}
