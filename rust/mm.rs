// SPDX-License-Identifier: GPL-2.0

//! Safe types over the kernel's heterogeneous memory interfaces, one C interface each.
//!
//! Nothing here knows of the engine above: `make patches` writes it as a series for the kernel crate.
//!
//! - [`addr`] has page-aligned ranges of virtual addresses.
//! - [`space`] has an address space in use, and its mmap lock.
//! - [`notifier`] has `mmu_interval_notifier`, with the lock that makes its retry check mean something.
//! - [`range_fault`] has `hmm_range_fault`, in the states collected and validated.
//! - [`range_map`] has a map from ranges to numbers, a maple tree.
//! - [`page`] has page contents and locked folios.
//! - [`user`] has memory of the current process, to be copied to and from without faults.
//! - [`device_pages`] has `ZONE_DEVICE` memory and the CPU fault on it.
//! - [`migrate`] has `migrate_vma_*`, in the states isolated and migrated.
//! - [`shrinker`] has what gives memory back.
//! - [`exclusive`] has `make_device_exclusive`.
//! - [`fence`] has fences of operations that may fault, [`fence_watch`] reports them by `poll`, [`bell`] wakes a waiter.
//! - [`dma_fence`] has `dma_fence`, [`sync_file`] has files of those.
//! - [`flush`] has the proof that a device's translations were flushed.
//! - `mask` has sets of the pages of 2 MiB.
//! - [`table_memory`] has memory of page tables that a device walks, `bar_tables` those in its own
//!   memory.
//! - `task_work` has the sleep of a task before it returns to user mode.
//! - [`pin`] has `pin_user_pages`, [`dma`] what devices know such pages by.
//! - `pci` has memory of PCI devices as others see it, and interrupts.
//! - `anon` has anonymous memory that comes from a device file.
//! - `trace` has the tracepoints.
//! - `once_box` has places that are filled once.
//! - `word` has words that are read and written without a call.

pub mod addr;
pub(crate) mod anon;
#[cfg(CONFIG_PCI)]
pub mod bar_tables;
pub mod bell;
pub(crate) mod device_alloc;
pub mod device_pages;
pub mod dma;
pub mod dma_fence;
pub mod exclusive;
pub mod fence;
pub mod fence_watch;
pub mod flush;
pub(crate) mod mask;
pub mod migrate;
pub mod notifier;
pub(crate) mod once_box;
pub mod page;
#[cfg(CONFIG_PCI)]
pub mod pci;
pub mod pin;
pub mod range_fault;
pub mod range_map;
pub(crate) mod rcu_map;
pub(crate) mod rcu_slot;
pub(crate) mod registration;
pub mod shrinker;
pub mod space;
pub mod sync_file;
pub mod table_memory;
pub(crate) mod task_work;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;
pub(crate) mod trace;
pub mod user;
pub(crate) mod word;
pub(crate) mod zeroed;
