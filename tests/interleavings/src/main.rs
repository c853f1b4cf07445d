// SPDX-License-Identifier: GPL-2.0

//! Tests of lock-free code in all interleavings; see `Documentation/interleavings.rst`.
//!
//! usage: interleavings --list | [--break ROW] [--preemptions MOST|all] TEST
//!        interleavings --random COUNT [--seed N] [--break ROW] TEST

#![feature(arbitrary_self_types)]
#![allow(missing_docs, non_camel_case_types, non_upper_case_globals, clippy::all)]

#[path = "il/bindings.rs"]
mod bindings;
#[path = "il/harness.rs"]
mod harness;
#[macro_use]
#[path = "il/stand_ins.rs"]
mod stand_ins;
mod pgtable {
    pub(crate) mod chunk;
    mod cold;
    mod directory;
    pub(crate) mod dma;
    mod entry;
    mod flush;
    mod format;
    pub(crate) mod formats;
    mod grow;
    mod image;
    mod install;
    #[path = "../il/tests/pgtable.rs"]
    pub(crate) mod interleavings;
    mod layout;
    mod list;
    mod update;
    mod pool;
    mod prealloc;
    mod reader;
    mod scan;
    mod sizes;
    mod table;
    mod tree;
    mod walk;

    pub use crate::mm::flush::{
        Flushed,
        Flusher, //
    };
    pub use dma::DmaFormat;
    pub use entry::{
        DevicePte,
        Leaf, //
    };
    pub use flush::{
        FlushBatch,
        Flushing, //
    };
    pub use format::{
        Format,
        Word, //
    };
    pub use formats::{
        Radix,
        Radix4,
        Radix5, //
    };
    pub use layout::{
        Bits,
        FormatOf,
        Layout, //
    };
    pub use prealloc::Prealloc;
    pub use reader::TableReader;
    pub use table::Table;
    pub(crate) use format::{
        has_leaves,
        reaches, //
    };
}
mod attributes;
#[path = "il/tests/attributes.rs"]
mod attributes_interleavings;
mod debug {
    pub(crate) use crate::stand_ins::events;

    pub(crate) mod stats;
}

use stand_ins::inject;

mod kernel {
    pub(crate) use crate::stand_ins::cancel;

    pub(crate) mod completion;
    pub(crate) mod counted;
    #[path = "deferred.rs"]
    mod deferred_work;
    pub(crate) mod hash;
    pub(crate) mod limit;
    pub(crate) mod lock_classes;
    pub(crate) mod once_box;
    pub(crate) mod rcu_map;
    pub(crate) mod rcu_slot;
    pub(crate) mod reentry;
    pub(crate) mod word;

    /// Objects are dropped in place here; work items that recur are those of the library.
    pub(crate) mod deferred {
        pub(crate) use super::deferred_work::{
            Recurring,
            RecurringWork, //
        };
        pub(crate) use crate::stand_ins::deferred::*;
    }

    pub(crate) use crate::stand_ins::{
        identity,
        shrinker,
        zeroed, //
    };
}

mod mm {
    pub(crate) mod addr;
    pub(crate) mod device_alloc;
    pub(crate) mod dma;
    pub(crate) mod flush;
    pub(crate) mod page_set;
    pub(crate) mod range_map;
    pub(crate) mod registration;

    pub(crate) mod notifier {
        mod event_count;
        #[path = "../../il/tests/notifier.rs"]
        pub(crate) mod interleavings;
        #[path = "../../il/notifier.rs"]
        mod stand_in;

        pub(crate) use stand_in::*;
    }

    pub(crate) mod device_pages {
        mod hints;
        #[path = "../../il/tests/hints.rs"]
        pub(crate) mod hints_interleavings;
        #[path = "../../il/tests/chunk.rs"]
        pub(crate) mod interleavings;
        #[path = "../../il/device_pages.rs"]
        mod owner;
        pub(super) mod chunk;
        mod chunks;
        #[path = "../../il/tests/chunks.rs"]
        pub(crate) mod chunks_interleavings;
        mod region;

        pub use owner::*;
    }

    #[path = "../il/tests/device_alloc.rs"]
    pub(crate) mod device_alloc_interleavings;
    #[path = "../il/tests/dma.rs"]
    pub(crate) mod dma_interleavings;

    pub(crate) use crate::stand_ins::{
        folio,
        location,
        migrate,
        pin,
        range_fault,
        table_memory, //
    };
}

mod memory {
    mod arrivals;
    mod connection;
    mod copy;
    #[path = "../il/tests/memory.rs"]
    pub(crate) mod interleavings;
    mod connection_cache;
    mod lru;
    mod steps;

    pub use connection::Connection;

    /// A driver with copy operations.
    pub(crate) trait MemoryOps {
        fn copy_sync(&self, copy: &copy::CopyDesc<'_>) -> Option<kernel::error::Result>;
        fn copy(&self, job: copy::CopyJob);
    }
}

mod mirror {
    mod in_flight;
    #[path = "../il/tests/in_flight.rs"]
    pub(crate) mod in_flight_interleavings;
    mod walkers;
    #[path = "../il/tests/walkers.rs"]
    pub(crate) mod walkers_interleavings;
}

mod policy {
    pub(crate) use crate::stand_ins::bounces::Bounces;

    pub(crate) mod fault_around;
}

mod space {
    #[path = "../il/tests/space.rs"]
    pub(crate) mod interleavings;
    mod mirrors;
    #[path = "../il/space.rs"]
    mod owner;
    mod request;
    mod window;
    mod windows;

    pub(crate) use mirrors::{
        SpaceMirrors,
        StartedFlush, //
    };
    pub(crate) use owner::{
        find,
        Space,
        SpaceHandle,
        OPENING, //
    };
    pub(crate) use request::{
        Destination,
        EventMatch,
        MigrationDesc, //
    };
}

#[path = "il/tests/mod.rs"]
mod tests;

#[cfg(feature = "explore")]
#[global_allocator]
static ALLOCATOR: ::kernel::model::quarantine::Quarantine = ::kernel::model::quarantine::Quarantine;

fn main() {
    harness::main(tests::ALL);
}
