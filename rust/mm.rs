// SPDX-License-Identifier: GPL-2.0

//! Safe types over the kernel's heterogeneous memory interfaces, one C interface each.
//!
//! Nothing here knows of the engine above; each file could go upstream as it is.
//!
//! - [`addr`]: page-aligned ranges of virtual addresses.
//! - [`space`]: an address space in use, and its mmap lock.
//! - [`notifier`]: `mmu_interval_notifier`, with the lock that makes its retry check mean something.
//! - [`range_fault`]: `hmm_range_fault`, in the states collected and validated.
//! - [`page`]: page contents and locked folios.
//! - [`device_pages`]: `ZONE_DEVICE` memory and the CPU fault on it.
//! - [`migrate`]: `migrate_vma_*` and `migrate_device_*`, in the states isolated and migrated.
//! - [`exclusive`]: `make_device_exclusive`.

pub mod addr;
mod device_alloc;
pub mod device_pages;
pub mod exclusive;
pub mod migrate;
pub mod notifier;
pub mod page;
pub mod range_fault;
pub mod space;
