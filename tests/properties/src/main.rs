// SPDX-License-Identifier: GPL-2.0

//! Properties of the library's data structures; see `Documentation/properties.rst`.
//!
//! usage: properties --list
//!        properties [--cases N] [--share N] [--seed S] [--break ROW] [--persist DIRECTORY]
//!                   [--no-shrink] PROPERTY

#![allow(missing_docs, non_camel_case_types, non_upper_case_globals, clippy::all)]

// The path that samples use for the library.
extern crate self as rust_hmm;

#[path = "properties/bindings.rs"]
mod bindings;
#[path = "properties/harness.rs"]
mod harness;
#[macro_use]
#[path = "properties/stand_ins.rs"]
mod stand_ins;

/// The parts of the mock GPU's hardware that need no thread. There is no directory of that name.
#[path = "."]
mod hardware {
    #[path = "../samples/dmirror/hardware/bus.rs"]
    pub(crate) mod bus;
    #[path = "../samples/dmirror/hardware/counters.rs"]
    pub(crate) mod counters;
    #[path = "../samples/dmirror/hardware/mmu.rs"]
    pub(crate) mod mmu;
    #[path = "../samples/dmirror/hardware/monitor.rs"]
    pub(crate) mod monitor;
    #[path = "../samples/dmirror/hardware/tlb.rs"]
    pub(crate) mod tlb;
    #[path = "../samples/common/walk.rs"]
    pub(crate) mod walk;

    #[path = "properties/hardware.rs"]
    pub(crate) mod properties;
}

mod attributes;
#[path = "properties/attributes.rs"]
mod attributes_properties;

mod kernel {
    pub(crate) mod hash;
    pub(crate) mod lock_classes;
    pub(crate) mod once_box;
    pub(crate) mod rcu_slot;
    pub(crate) mod word;

    pub(crate) use crate::stand_ins::{
        deferred,
        identity,
        shrinker,
        thread as kthread,
        within as reentry,
        zeroed, //
    };
}

mod memory {
    mod lru;
    #[path = "../properties/lru.rs"]
    pub(crate) mod properties;
}

mod mirror {
    mod in_flight;
    mod lost;

}

mod mm {
    pub(crate) mod addr;
    pub(crate) mod device_alloc;
    pub(crate) mod dma;
    pub(crate) mod flush;
    pub(crate) mod page_set;
    pub(crate) mod range_map;

    #[path = "../properties/addr.rs"]
    pub(crate) mod addr_properties;
    #[path = "../properties/page_set.rs"]
    pub(crate) mod page_set_properties;
    #[path = "../properties/range_map.rs"]
    pub(crate) mod range_map_properties;

    pub(crate) use crate::stand_ins::{
        device_pages,
        folio,
        location,
        notifier,
        pin,
        table_memory, //
    };
}

mod pgtable;
mod policy;

mod space {
    mod request;

    pub(crate) use request::{
        Destination,
        EventMatch,
        MigrationDesc, //
    };
}

use stand_ins::{
    alarm,
    inject, //
};

fn main() {
    harness::main(&[
        pgtable::properties::ALL,
        mm::range_map_properties::ALL,
        attributes_properties::ALL,
        mm::device_alloc::properties::ALL,
        mm::page_set_properties::ALL,
        mm::addr_properties::ALL,
        memory::properties::ALL,
        policy::properties::ALL,
        hardware::properties::ALL,
    ]);
}
