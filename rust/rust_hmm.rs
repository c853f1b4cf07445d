// SPDX-License-Identifier: GPL-2.0

//! Heterogeneous memory management for drivers in Rust.
//!
//! A device with its own page table and memory gets the address space of a process: it uses the
//! same pointers as the CPU, and pages move between system and device memory.
//!
//! - [`mirror`]: a device page table that follows an address space.
//! - [`migrate`]: moves a mirror's memory to the device and back.
//! - [`memory`]: the device's memory, the CPU fault on it, eviction.
//! - [`attributes`]: what a program says of ranges of its memory.
//! - [`policy`]: what a device fault brings to the device.
//! - [`pgtable`]: the table itself.
//! - [`connection`]: how memory of one device reaches another.
//! - [`managed`]: memory that CPU and devices use, and that migrates by itself.
//! - [`host_lock`]: memory of a process that stays where it is, for devices.
//! - [`queue`]: operations that run in their own time, with fences.
//! - [`mm`]: safe types over the kernel's C interfaces, which the rest is built on.
//! - [`node`]: the character device through which a process reaches a driver.
//! - [`thread`]: a kernel thread, as the engine of a software device.
//! - [`events`]: what happens, as tracepoints and drivers are told.
//! - [`mod@alarm`]: reports of broken rules.
//! - `capi`: the same for drivers in C, by `include/rust_hmm.h`.
//! - [`inject`]: fault injection.
//! - [`phases`]: where time goes.
//! - `space`: what is known of an address space: its mirrors.
//! - `overhead`: what page tables take, and what is mapped for DMA.
//! - `watch`: the mirrors and devices that there are.
//! - `deferred`: objects that a worker drops, because their owner could not wait.
//!
//! # Lock order
//!
//! Outer locks first; lockdep checks it on the `debug` kernel.
//!
//! 1. `mmap_lock` of the mirrored process, for reading. That of another process is only tried, but when device memory goes.
//! 2. Folio locks, of pages that are being migrated.
//! 3. The table lock of a mirror ([`mirror`]). It is taken in invalidation callbacks, so below
//!    reclaim: nothing allocates with reclaim or takes one of the locks above while it is held,
//!    and it is not held over a call that invokes notifiers (`migrate_vma_setup`).
//! 4. The mutex of a space's sets of attributes, and of those whose mapping has gone; the spinlock
//!    of their tree.
//! 5. The spinlock of the tree of a table's DMA windows. Pages are mapped under the table lock, without that one.
//! 6. Locks of the driver's TLB, in `flush_start` and `flush_wait`.
//!
//! Spinlocks of a `space`, of its places, windows and doubts, are held for a moment, and nothing is
//! taken under them. The mutexes under which mirrors are opened and attributes are watched are
//! taken before all of these. The mutex under which attributes change is taken below the
//! `mmap_lock`, and in no callback: it is held while memory is waited for.
//!
//! `table_memory`, under which memory of tables that a device walks is freed, may be taken in
//! reclaim; nothing is allocated under it, and none of the locks above is taken.
//!
//! `bar_tables_used`, under which pages of a device's own memory are allocated to tables, may be
//! taken in reclaim, too. `bar_tables_owners` is held while the list of their owners changes.
//! Nothing is taken under either.
//!
//! `owner`, under which a mirror gives table pages back for reclaim or for another mirror, is taken
//! by trylock, and unconditionally only where a mirror ends. The table lock is taken under it, by
//! trylock, and the locks that an invalidation takes under that.
//!
//! What is mapped for a device has mutexes of its own, under which it is unmapped: `dma_closing` (windows of a table) is
//! taken before the spinlock of their tree; `pci_users`, then `peer_mapped`; `dma_mappings`, then `dma_addresses`. None of
//! the locks above is taken under them but that spinlock.
//!
//! Device memory is allocated and freed without a lock, but for a huge page: what was to be split
//! there is forgotten under `splits`, the mutex of the table of huge pages that are split. This
//! one, and `split_pages`, under which the pages are found that a work item refers to, are taken
//! below folio locks, and nothing is taken under them. The mutex under which device memory grows is
//! taken before all of these.

pub mod alarm;
pub mod attributes;
pub mod connection;
pub mod events;
pub mod host_lock;
pub mod inject;
pub mod managed;
pub mod memory;
pub mod migrate;
pub mod mirror;
pub mod mm;
pub mod node;
pub mod pgtable;
pub mod phases;
pub mod policy;
pub mod queue;
pub mod stats;
pub mod thread;

mod bindings;
mod capi;
mod compat;
mod debugfs;
mod deferred;
mod limit;
mod locks;
mod names;
mod overhead;
mod space;
mod watch;
mod within;

use debugfs::{Contents, Directory, File};
use deferred::Workers;
use kernel::prelude::*;
use mm::{
    shrinker::owner::Owners,
    task_work::TaskWorks, //
};

module! {
    type: RustHmm,
    name: "rust_hmm",
    authors: ["The rust_hmm authors"],
    description: "Heterogeneous memory management for device drivers",
    license: "GPL",
}

/// What the library tells in debugfs, and where it can be made to fail.
fn files() -> Result<KVec<File>> {
    static MIRRORS: watch::Report = watch::Report(watch::Kind::Mirror);
    static DEVICES: watch::Report = watch::Report(watch::Kind::Device);
    let reports = [
        (c"phases", Contents::Text(&phases::Report)),
        (c"overlaps", Contents::Text(&migrate::Report)),
        (c"tables", Contents::Text(&overhead::Report)),
        (c"dma", Contents::Text(&overhead::Dma)),
        (c"alarms", Contents::Text(&alarm::Report)),
        (c"mirrors", Contents::Text(&MIRRORS)),
        (c"devices", Contents::Text(&DEVICES)),
        (c"map", Contents::Binary(&watch::Map)),
    ];
    let reports = reports.map(|(name, contents)| File {
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
    _files: Directory,
    _workers: Workers,
    // After the workers: these end what tasks sleep for.
    _task_works: TaskWorks,
    // After the workers: they may still free page tables.
    _owners: Owners,
}

impl Drop for RustHmm {
    fn drop(&mut self) {
        watch::exit();
    }
}

impl kernel::Module for RustHmm {
    fn init(module: &'static ThisModule) -> Result<Self> {
        // SAFETY: A module is initialized once.
        unsafe { watch::init() };
        // SAFETY: As above; there is no mirror yet.
        unsafe { space::init() };
        // SAFETY: As above; there is no page table yet.
        let owners = unsafe { Owners::new() }?;
        // SAFETY: As above; nothing that waits exists yet.
        let workers = unsafe { Workers::new() }?;
        Ok(Self {
            _workers: workers,
            _task_works: TaskWorks::new(),
            _owners: owners,
            _files: Directory::new(c"rust_hmm", module, files()?),
        })
    }
}
