// SPDX-License-Identifier: GPL-2.0

//! The tests. Those that access private items are submodules of the tested modules.

use crate::harness::Test;

mod once_box;
mod rcu_map;
mod rcu_slot;
mod recurring;
mod small;
mod within;
mod word;

/// All tests.
pub(crate) const ALL: &[&[Test]] = &[
    word::TESTS,
    crate::attributes_interleavings::TESTS,
    once_box::TESTS,
    rcu_map::TESTS,
    rcu_slot::TESTS,
    recurring::TESTS,
    within::TESTS,
    small::TESTS,
    crate::memory::interleavings::TESTS,
    crate::mirror::in_flight_interleavings::TESTS,
    crate::mirror::walkers_interleavings::TESTS,
    crate::mm::device_alloc_interleavings::TESTS,
    crate::mm::device_pages::chunks_interleavings::TESTS,
    crate::mm::device_pages::hints_interleavings::TESTS,
    crate::mm::device_pages::interleavings::TESTS,
    crate::mm::dma_interleavings::TESTS,
    crate::mm::notifier::interleavings::TESTS,
    crate::pgtable::interleavings::TESTS,
    crate::space::interleavings::TESTS,
];
