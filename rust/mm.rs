// SPDX-License-Identifier: GPL-2.0

//! Safe types over the kernel's heterogeneous memory interfaces, one C interface each.
//!
//! Nothing here depends on the engine. `make patches` writes it as a series for the kernel crate.
//!
//! - [`addr`] has page-aligned ranges of virtual addresses.
//! - [`vma`] has address spaces in use (`mm_users`), and the mmap lock.
//! - [`notifier`] has `mmu_interval_notifier`, with the lock under which its retry check is valid.
//! - [`range_fault`] has `hmm_range_fault`, in the states collected and validated.
//! - [`range_map`] has maple trees that map ranges to numbers.
//! - [`folio`] has page contents and locked folios.
//! - [`user`] has copies to and from memory of the current process, without page faults.
//! - [`device_pages`] has `ZONE_DEVICE` memory and its CPU faults.
//! - `cpu_fault` has a CPU fault on device memory, while it is handled.
//! - [`location`] has memory and addresses of pages, as CPUs and devices use them.
//! - [`migrate`] has `migrate_vma_*`, in the states isolated and migrated.
//! - [`exclusive`] has `make_device_exclusive`.
//! - [`flush`] has the proof that the TLB of a device was flushed.
//! - `page_set` has sets of pages of a block.
//! - [`table_memory`] has memory of page tables that a device walks.
//! - `bar_tables` has page tables in the memory of the device, behind a BAR.
//! - [`pin`] has `pin_user_pages`, [`dma`] has DMA addresses.
//! - `pci` has BARs and peer-to-peer mappings of PCI devices, and interrupts.
//! - `mmap` has anonymous memory that is mapped from a device file.

pub mod addr;
#[cfg(CONFIG_PCI)]
pub mod bar_tables;
mod compat;
mod cpu_fault;
pub(crate) mod device_alloc;
pub mod device_pages;
pub mod dma;
pub mod exclusive;
pub mod flush;
pub mod folio;
pub mod location;
pub mod migrate;
#[cfg(CONFIG_RUST_HMM_MANAGED)]
pub(crate) mod mmap;
pub mod notifier;
pub(crate) mod page_set;
#[cfg(CONFIG_PCI)]
pub mod pci;
#[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
pub mod pin;
pub mod range_fault;
pub mod range_map;
pub(crate) mod registration;
pub mod table_memory;
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
mod tests;
pub mod user;
pub mod vma;
