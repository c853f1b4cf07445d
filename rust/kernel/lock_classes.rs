// SPDX-License-Identifier: GPL-2.0

//! Lock classes.
//!
//! Lockdep identifies a class by the addresses of its key and name. All locks of a class must
//! therefore be initialized with the same two objects. Generic and inlined code is also compiled
//! into drivers, where a key or name written in it would be another object. So all of them are
//! here, in functions that are neither generic nor inlined. The crate root has the lock order.

use kernel::{
    prelude::*,
    static_lock_class,
    sync::LockClassKey, //
};

/// Name and key of a class.
pub(crate) type LockClass = (&'static CStr, Pin<&'static LockClassKey>);

macro_rules! classes {
    ($($(#[$doc:meta])* $function:ident = $name:literal;)*) => {$(
        $(#[$doc])*
        #[inline(never)]
        pub(crate) fn $function() -> LockClass {
            ($name, static_lock_class!())
        }
    )*};
}

classes! {
    /// Growth of device memory.
    adding = c"rust_hmm::adding";
    /// The list of mirrors of a device memory.
    memory_mirrors = c"rust_hmm::memory_mirrors";
    /// A mirror of that list, while it is used.
    memory_mirror = c"rust_hmm::memory_mirror";
    /// Spaces whose pages were evicted and whose mirrors have not been notified yet.
    victims = c"rust_hmm::victims";
    /// Steps of migrations to the device, for which an unplug waits.
    arrivals = c"rust_hmm::arrivals";
    /// Wait queue of that unplug.
    arrivals_idle = c"rust_hmm::arrivals_idle";
    /// Steps of migrations from the device, for which an unplug waits.
    departures = c"rust_hmm::departures";
    /// Wait queue of that unplug.
    departures_idle = c"rust_hmm::departures_idle";
    /// Wait queue of faults that wait for an in-flight migration.
    ended = c"rust_hmm::ended";
    /// A walker of a device page table.
    walker = c"rust_hmm::walker";
    /// Work items of the worker thread of a device memory.
    deferred_work = c"rust_hmm::deferred_work";
    /// Table of huge device pages that are being split.
    splits = c"rust_hmm::splits";
    /// Wait queue of the memory, which waits until no huge page is being split.
    splits_idle = c"rust_hmm::splits_idle";
    /// The reference to the device pages that new work items of splits get.
    split_pages = c"rust_hmm::split_pages";
    /// List of the users of a DMA device.
    dma_users = c"rust_hmm::dma_users";
    /// DMA addresses of pinned pages, and whether the pages are mapped.
    #[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
    dma_addresses = c"rust_hmm::dma_addresses";
    /// Whether memory of a PCI device is mapped for another one.
    peer_mapped = c"rust_hmm::peer_mapped";
    /// Removal of the DMA mappings of a page table.
    dma_closing = c"rust_hmm::dma_closing";
    /// Devices that have mapped memory of a PCI device.
    pci_users = c"rust_hmm::pci_users";
    /// Pages behind a BAR that are allocated to page tables.
    bar_tables_used = c"rust_hmm::bar_tables_used";
    /// List of the page tables that own these pages.
    bar_tables_owners = c"rust_hmm::bar_tables_owners";
    /// Removal of the mapping of these pages.
    bar_tables_closing = c"rust_hmm::bar_tables_closing";
    /// Tree of the DMA windows of a page table.
    dma_windows = c"rust_hmm::dma_windows";
    /// Wait queue of the worker thread of a device memory.
    deferred_work_wake = c"rust_hmm::deferred_work_wake";
    /// Access stream that a policy follows.
    policy = c"rust_hmm::policy";
    /// Ranges that thrash between a device and other memory.
    bounces = c"rust_hmm::bounces";
    /// Attribute sets, and attributes whose VMA was unmapped or moved.
    attributes = c"rust_hmm::attributes";
    /// Serializes changes and moves of attributes.
    attribute_changes = c"rust_hmm::attribute_changes";
    /// List of the mirrors of an address space.
    mirrors = c"rust_hmm::mirrors";
    /// Registration of an address space for interval notifiers.
    registration = c"rust_hmm::registration";
    /// The wait of a worker for the events of a notifier.
    event_wait = c"rust_hmm::event_wait";
    /// Notifier windows of an address space.
    windows = c"rust_hmm::windows";
    /// Notifier windows that a worker checks and removes if they are unused.
    removal_candidates = c"rust_hmm::removal_candidates";
    /// The notifier that detects unmapped memory with attributes.
    attribute_watch = c"rust_hmm::attribute_watch";
    /// Started flushes that are waited for later.
    flushes = c"rust_hmm::flushes";
    /// Operations of a queue.
    #[cfg(CONFIG_RUST_HMM_QUEUE)]
    queue = c"rust_hmm::queue";
    /// Fences that a file reports by `poll()`.
    #[cfg(CONFIG_RUST_HMM_QUEUE)]
    fence_watch = c"rust_hmm::fence_watch";
    /// Workers that help with an operation.
    #[cfg(CONFIG_RUST_HMM_QUEUE)]
    worker_pool = c"rust_hmm::worker_pool";
    /// Condition variable: a worker was called, or has finished.
    #[cfg(CONFIG_RUST_HMM_QUEUE)]
    worker_pool_wake = c"rust_hmm::worker_pool_wake";
    /// Progress of an operation that several workers share.
    #[cfg(CONFIG_RUST_HMM_QUEUE)]
    shares = c"rust_hmm::shares";
    /// Serializes locking and unlocking of host memory.
    #[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
    host_locks = c"rust_hmm::host_locks";
    /// Users of a locked range of host memory.
    #[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
    lock_users = c"rust_hmm::lock_users";
    /// Devices for which a locked range is mapped.
    #[cfg(CONFIG_RUST_HMM_HOST_LOCK)]
    dma_mappings = c"rust_hmm::dma_mappings";
    /// Cached memory connections, as the drivers reported them.
    connections = c"rust_hmm::connections";
    /// The table lock of a mirror of a driver in C.
    #[cfg(CONFIG_RUST_HMM_CAPI)]
    c_mirror = c"rust_hmm::c_mirror";
    /// Freeing of page table memory that a device walks.
    table_memory = c"rust_hmm::table_memory";
    /// A mirror or device memory, while a debugfs file reports it.
    watched = c"rust_hmm::watched";
    /// Owners of table pages, while one of them is asked to give some back.
    owner = c"rust_hmm::owner";
    /// Pool of free table pages.
    table_pool = c"rust_hmm::table_pool";
}
