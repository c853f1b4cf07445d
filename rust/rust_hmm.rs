// SPDX-License-Identifier: GPL-2.0

//! Heterogeneous memory management for drivers in Rust.
//!
//! The library mirrors the address space of a process in the page table of a device that has its
//! own MMU and memory. The device uses the same pointers as the CPU, and pages migrate between
//! system and device memory.
//!
//! - [`mirror`]: a device page table that follows an address space.
//! - [`fault`]: device faults, which may migrate memory.
//! - [`migrate`]: migrates memory of a mirror to the device and back.
//! - [`memory`]: device memory: allocation, CPU faults, eviction.
//! - [`attributes`]: attributes that a program sets for ranges of its memory.
//! - [`policy`]: chooses the pages that a device fault maps or migrates.
//! - [`pgtable`]: the device page table itself.
//! - [`connection`]: access to the memory of another device, and migration between devices.
//! - [`managed`]: allocations that CPU and devices share and that migrate on demand.
//! - [`host_lock`]: system memory of a process that is pinned for devices.
//! - [`queue`]: asynchronous operations, with fences.
//! - [`mm`]: safe types over the kernel's interfaces of memory management.
//! - [`mod@kernel`]: safe types over other interfaces, among them the character device through
//!   which a process uses a driver, and kernel threads.
//! - [`debug`]: tracepoints and the events that drivers get, counters, and files in debugfs.
//! - [`mod@alarm`]: reports of broken rules.
//! - [`inject`]: fault injection.
//! - `capi`: the same interface for drivers in C, declared in `include/rust_hmm.h`.
//! - `space`: the state of an address space that its mirrors share.
//!
//! # Lock order
//!
//! Outer locks come first. Lockdep checks the order on the `debug` kernel. `owner`, for
//! example, is the lock class that lockdep reports as `rust_hmm::owner`.
//!
//! 1. `mmap_lock` of the mirrored process, for reading. The `mmap_lock` of another process is only
//!    taken by trylock, except when device memory is torn down.
//! 2. Folio locks of pages that are being migrated.
//! 3. The table lock of a mirror ([`mirror`]). Invalidation callbacks take it, also in reclaim.
//!    Therefore no task that holds it allocates with reclaim, takes one of the locks above, or
//!    calls a function that invokes notifiers (`migrate_vma_setup`).
//! 4. `attributes`, the mutex of a space's attribute sets and of the attributes whose VMA was
//!    unmapped or moved; then the spinlock of their maple tree.
//! 5. The spinlock of the tree of a table's DMA windows. Pages are mapped for DMA under the table
//!    lock, without this spinlock.
//! 6. Locks of the driver's TLB, in `flush_start` and `flush_wait`.
//!
//! The spinlocks of a `space` (`mirrors`, `windows`, `candidates`) are held for a short time, and
//! no lock is taken under them. The mutexes under which mirrors are opened and attributes are
//! watched (`attribute_watch`) are taken before all of these. `attribute_changes`, the mutex that
//! serializes changes of attributes, is taken below the `mmap_lock` and in no callback, because
//! allocations under it may reclaim.
//!
//! `table_memory`, under which memory of tables that a device walks is freed, may be taken in
//! reclaim. No task that holds it allocates or takes one of the locks above.
//!
//! `bar_tables_used`, under which pages of a device's own memory are allocated to tables, may be
//! taken in reclaim, too. `bar_tables_owners` protects the list of their owners. No lock is taken
//! under either.
//!
//! `owner`, under which a mirror gives table pages back for reclaim or for another mirror, is taken
//! by trylock, and unconditionally only where a mirror is closed. Under it, the table lock is taken
//! by trylock, and then the locks that an invalidation takes under the table lock.
//!
//! DMA mappings are removed under mutexes of their own. `dma_closing` (the windows of a table) is
//! taken before the spinlock of their tree; `pci_users` before `peer_mapped`; `dma_mappings` before
//! `dma_addresses`. Of the locks above, only that spinlock is taken under them.
//!
//! Device memory is allocated and freed without a lock, except huge pages: the allocation of one
//! removes the request to split its predecessor, under `splits`, the mutex of the table of huge
//! pages that are being split. `split_pages` protects the reference to the device pages that work
//! items of splits get. Both are taken below folio locks, and no lock is taken under them.
//! `adding`, the mutex under which device memory grows, is taken before all of these.

pub mod alarm;
pub mod attributes;
pub mod connection;
pub mod debug;
pub mod fault;
#[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
pub mod host_lock;
pub mod inject;
pub mod kernel;
#[cfg(CONFIG_RUST_HMM_MANAGED)]
pub mod managed;
pub mod memory;
pub mod migrate;
pub mod mirror;
pub mod mm;
pub mod pgtable;
pub mod policy;
#[cfg(CONFIG_RUST_HMM_QUEUE)]
pub mod queue;

mod bindings;
#[cfg(CONFIG_RUST_HMM_CAPI)]
mod capi;
mod space;

use self::{
    debug::{
        footprint,
        registry,
        timing, //
    },
    kernel::{
        debugfs::{
            DebugDirectory,
            DebugFile,
            FileContents, //
        },
        deferred::Workqueue,
        shrinker::owner::Owners,
        task_work::TaskWorks, //
    }, //
};
use ::kernel::prelude::*;

module! {
    type: RustHmm,
    name: "rust_hmm",
    authors: ["The rust_hmm authors"],
    description: "Heterogeneous memory management for device drivers",
    license: "GPL",
}

/// Returns the files of the debugfs directory: reports, and controls of fault injection.
fn files() -> Result<KVec<DebugFile>> {
    static MIRRORS_REPORT: registry::ObjectReport =
        registry::ObjectReport(registry::ObjectKind::Mirror);
    static DEVICES_REPORT: registry::ObjectReport =
        registry::ObjectReport(registry::ObjectKind::Device);
    let reports = [
        (c"phases", FileContents::Text(&timing::PhaseReport)),
        (c"overlaps", FileContents::Text(&migrate::OverlapReport)),
        (c"tables", FileContents::Text(&footprint::TablesReport)),
        (c"dma", FileContents::Text(&footprint::DmaReport)),
        (c"alarms", FileContents::Text(&alarm::AlarmReport)),
        (c"mirrors", FileContents::Text(&MIRRORS_REPORT)),
        (c"devices", FileContents::Text(&DEVICES_REPORT)),
        (c"map", FileContents::Binary(&registry::MapFile)),
    ];
    let reports = reports.map(|(name, contents)| DebugFile {
        below: None,
        name,
        contents,
    });
    let mut files = KVec::new();
    for file in Iterator::chain(reports.into_iter(), inject::files()) {
        files.push(file, GFP_KERNEL)?;
    }
    Ok(files)
}

/// The library module.
struct RustHmm {
    _files: DebugDirectory,
    _workers: Workqueue,
    // Dropped after the workers, which complete the work that sleeping tasks wait for.
    _task_works: TaskWorks,
    // Dropped after the workers, which may still free page tables.
    _owners: Owners,
}

impl Drop for RustHmm {
    fn drop(&mut self) {
        registry::exit();
    }
}

impl ::kernel::Module for RustHmm {
    fn init(module: &'static ThisModule) -> Result<Self> {
        // SAFETY: `init` is called once, when the module is loaded.
        unsafe { registry::init() };
        // SAFETY: `init` is called once, and no mirror exists yet.
        unsafe { space::init() };
        // SAFETY: `init` is called once, and no page table exists yet.
        let owners = unsafe { Owners::new() }?;
        // SAFETY: `init` is called once, and no deferred object exists yet.
        let workers = unsafe { Workqueue::new() }?;
        Ok(Self {
            _workers: workers,
            _task_works: TaskWorks::new(),
            _owners: owners,
            _files: DebugDirectory::new(c"rust_hmm", module, files()?),
        })
    }
}
