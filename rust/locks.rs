// SPDX-License-Identifier: GPL-2.0

//! Lock classes. A class has one key and one name, and both must be the same objects wherever the
//! lock is made. Generic and inlined code is compiled into drivers too, where a name written in it
//! would be another object; so they are all here, in functions that are neither.

use kernel::{prelude::*, static_lock_class, sync::LockClassKey};

/// Name and key.
pub(crate) type Class = (&'static CStr, Pin<&'static LockClassKey>);

macro_rules! classes {
    ($($(#[$doc:meta])* $function:ident = $name:literal;)*) => {$(
        $(#[$doc])*
        #[inline(never)]
        pub(crate) fn $function() -> Class {
            ($name, static_lock_class!())
        }
    )*};
}

classes! {
    /// Pieces are added to device memory.
    adding = c"rust_hmm::adding";
    /// The mirrors of a device's memory.
    peers = c"rust_hmm::peers";
    /// One of them is used.
    peer = c"rust_hmm::peer";
    /// Spaces of which pages were evicted.
    victims = c"rust_hmm::victims";
    /// A migration waits for its copies.
    copies = c"rust_hmm::copies";
    /// The same.
    copies_idle = c"rust_hmm::copies_idle";
    /// The device is unplugged, and waits for migrations to it.
    arrivals = c"rust_hmm::arrivals";
    /// The same.
    arrivals_idle = c"rust_hmm::arrivals_idle";
    /// The device is unplugged, and waits for migrations from it.
    departures = c"rust_hmm::departures";
    /// The same.
    departures_idle = c"rust_hmm::departures_idle";
    /// A fault waits for a migration.
    ended = c"rust_hmm::ended";
    /// A walker.
    walker = c"rust_hmm::walker";
    /// The thread of a device's memory looks for work.
    chores = c"rust_hmm::chores";
    /// Huge device pages that are split.
    splits = c"rust_hmm::splits";
    /// The memory waits until none is.
    splits_idle = c"rust_hmm::splits_idle";
    /// The pages that those who split them refer to.
    split_pages = c"rust_hmm::split_pages";
    /// What has mappings for a device.
    dma_users = c"rust_hmm::dma_users";
    /// Addresses of pinned pages, and whether they are mapped.
    dma_addresses = c"rust_hmm::dma_addresses";
    /// Whether memory of a PCI device is mapped for another one.
    peer_mapped = c"rust_hmm::peer_mapped";
    /// The mappings of a page table are taken away.
    dma_closing = c"rust_hmm::dma_closing";
    /// Who has mapped memory of a PCI device.
    pci_users = c"rust_hmm::pci_users";
    /// Pages behind a BAR that are allocated to page tables.
    bar_tables_used = c"rust_hmm::bar_tables_used";
    /// The page tables that these are of.
    bar_tables_owners = c"rust_hmm::bar_tables_owners";
    /// The mapping of these is removed.
    bar_tables_closing = c"rust_hmm::bar_tables_closing";
    /// The windows of a page table of DMA addresses.
    dma_windows = c"rust_hmm::dma_windows";
    /// That thread waits.
    chores_wake = c"rust_hmm::chores_wake";
    /// The stream that a policy follows.
    policy = c"rust_hmm::policy";
    /// What bounces between a device and others.
    bounces = c"rust_hmm::bounces";
    /// Sets of attributes, and those that lost their mapping.
    attributes = c"rust_hmm::attributes";
    /// Attributes change, or are moved.
    attribute_changes = c"rust_hmm::attribute_changes";
    /// The mirrors of an address space.
    mirrors = c"rust_hmm::mirrors";
    /// What registers an address space.
    registration = c"rust_hmm::registration";
    /// The windows of an address space.
    windows = c"rust_hmm::windows";
    /// Windows that may not be needed any more.
    doubts = c"rust_hmm::doubts";
    /// Memory is watched for its attributes.
    attribute_watch = c"rust_hmm::attribute_watch";
    /// Flushes that are waited for later.
    flushes = c"rust_hmm::flushes";
    /// What stands in a queue.
    queue = c"rust_hmm::queue";
    /// Fences that a file reports by `poll`.
    fence_watch = c"rust_hmm::fence_watch";
    /// Who helps with an operation.
    crew = c"rust_hmm::crew";
    /// Somebody is called, or has left.
    crew_wake = c"rust_hmm::crew_wake";
    /// How far an operation is that several do.
    shares = c"rust_hmm::shares";
    /// Host memory is locked or unlocked.
    host_locks = c"rust_hmm::host_locks";
    /// Who has locked a range.
    lock_users = c"rust_hmm::lock_users";
    /// For whom a locked range is mapped.
    dma_mappings = c"rust_hmm::dma_mappings";
    /// What drivers have said of memory connections.
    connections = c"rust_hmm::connections";
    /// The table lock of a mirror of a driver in C.
    c_mirror = c"rust_hmm::c_mirror";
    /// Memory of tables that a device walks is freed.
    table_memory = c"rust_hmm::table_memory";
    /// Somebody looks at a mirror or at device memory.
    watched = c"rust_hmm::watched";
    /// An owner of memory is asked to give some back.
    owner = c"rust_hmm::owner";
    /// Free table pages.
    table_pool = c"rust_hmm::table_pool";
}
