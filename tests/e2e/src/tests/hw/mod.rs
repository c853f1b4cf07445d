// SPDX-License-Identifier: GPL-2.0
//! Hardware: DMA addresses behind an IOMMU, a copy engine with interrupts, memory on the bus,
//! unplug. The test runner outside the machine counts the faults of the IOMMU.

mod bounced;
mod copies;
mod failures;
mod mapping;
mod unbound;
mod unplug;

use crate::check;
use crate::harness::{
    Ctx,
    Outcome,
    Stop,
    Test,
    What, //
};
use hmm::module;
use std::fs;

const PAGES: usize = 16;

pub const TESTS: &[Test] = &[
    Test::new("hw", "dma_mappings_follow_entries", mapping::mapped).only_hw(),
    Test::new("hw", "device_pages_have_no_dma_mapping", mapping::moved).only_hw(),
    Test::new("hw", "unpopulated_pages_read_zero_after_migration", mapping::hole).only_hw(),
    Test::new("hw", "huge_pages_are_mapped_in_one_piece", mapping::huge_pages).only_hw(),
    Test::new("hw", "tables_in_coherent_memory_are_walked", mapping::coherent_tables).only_hw(),
    Test::new("hw", "reads_never_fault_during_migrations", copies::faultless).only_hw(),
    Test::new("hw", "reads_complete_during_slow_copies", copies::slow_copies).only_hw(),
    Test::new("hw", "dontneed_waits_for_device_accesses", copies::during).only_hw(),
    Test::new("hw", "oversubscription_evicts_lru_memory", copies::eviction).only_hw(),
    Test::new("hw", "locked_memory_is_accessed_in_place", mapping::pin).only_hw(),
    Test::new("hw", "locked_pages_do_not_migrate", mapping::pin_of_a_part).only_hw(),
    Test::new("hw", "locking_migrates_pages_back", mapping::pin_of_device_memory).only_hw(),
    Test::new("hw", "peer_pages_are_copied_directly", copies::peer).only_hw(),
    Test::new("hw", "pages_without_a_dma_address_stay", failures::no_address).only_hw(),
    Test::new("hw", "pages_without_memory_stay", failures::no_memory).only_hw(),
    Test::new("hw", "peer_without_a_dma_address_is_unconnected", failures::no_peer).only_hw(),
    Test::new("hw", "probe_fails_without_a_dma_address_for_vram", failures::no_vram).only_hw(),
    Test::new("hw", "probe_fails_with_a_narrow_dma_mask", failures::narrow).only_hw(),
    Test::new("hw", "unbind_works_in_any_order", unbound::memory_first).only_hw(),
    Test::new("hw", "unbind_without_driver_teardown_unmaps_all", unbound::forgotten).only_hw(),
    Test::new("hw", "objects_dropped_in_callbacks_are_freed", unbound::dropped_in_callbacks)
        .only_hw(),
    Test::new("hw", "unplug_during_migrations_keeps_contents", unplug::unplug).only_hw(),
    // Tests of a machine that bounces DMA, which tests/run/hw starts.
    Test::new("swiotlb", "gpu_behind_an_iommu_works", bounced::translated).only_hw(),
    Test::new("swiotlb", "gpu_without_an_iommu_is_refused", bounced::direct).only_hw(),
    Test::new("swiotlb", "locked_memory_is_coarse_grained", bounced::locked).only_hw(),
];

/// Returns the number of pages that are mapped for DMA now, and the number of all mappings so far.
fn dma() -> Result<(u64, u64), Stop> {
    let account = hmm::dma::account().what("read the account of DMA")?;
    Ok((account.live(), account.mapped))
}

fn live() -> Result<u64, Stop> {
    Ok(dma()?.0)
}

/// Returns the PCI address of the copy engine of device `index`.
fn slot(index: u32) -> Result<String, Stop> {
    let bound = fs::read_dir("/sys/bus/pci/drivers/qemu_gpu").what("list the engines")?;
    let mut names: Vec<String> = bound
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("0000:") && name.ends_with(".1"))
        .collect();
    names.sort();
    let name = names.get(index as usize);
    name.cloned().ok_or_else(|| Stop::Fail(format!("no GPU {index} among {names:?}")))
}

/// Returns the kernel log since `mark` was written to it.
fn log_since(mark: &str) -> Result<String, Stop> {
    let size = 1 << 20;
    let mut text = vec![0u8; size];
    // SAFETY: SYSLOG_ACTION_READ_ALL writes at most `size` bytes to the buffer, which has that
    // size.
    let got = unsafe { libc::klogctl(3, text.as_mut_ptr().cast(), size as i32) };
    check!(got >= 0, "cannot read the kernel's log");
    let text = String::from_utf8_lossy(&text[..got as usize]).into_owned();
    Ok(text.rsplit_once(mark).map_or(String::new(), |(_, rest)| rest.to_string()))
}

fn load_driver(ctx: &Ctx, params: &str) -> Outcome {
    module::load(&ctx.modules.join("qemu_gpu.ko"), params).what("load qemu_gpu")
}
