// SPDX-License-Identifier: GPL-2.0

//! The allocator of device pages. Each page is plain memory, which its owner writes.

use super::device_alloc::FreeMap;
use crate::harness::{
    bounded,
    full,
    Test, //
};
use kernel::{
    model::{
        spawn,
        Memory, //
    },
    prelude::*,
    sync::{
        atomic::{
            ordering::{
                Full,
                Relaxed, //
            },
            Atomic, //
        },
        Arc, //
    }, //
};

const PAGES: usize = 512;

pub(crate) const TESTS: &[Test] = &[
    full("free_map_pages_have_one_owner", single_pages),
    bounded("free_map_folios_have_one_owner", 4, folios),
    bounded("free_map_folios_of_several_words_have_one_owner", 2, large_folios),
    full("free_map_freed_page_can_be_allocated", given_back),
    full("free_map_offline_during_a_free", withdraw_give_back),
    full("free_map_online_during_a_free", restore_give_back),
    bounded("free_map_offline_during_an_allocation", 6, withdraw_take),
    full("free_map_freed_offline_page_is_not_free", withdrawn_given_back),
    full("free_map_offline_pages_are_not_counted_as_used", withdrawn_unused),
];

struct Pages {
    map: FreeMap,
    pages: Vec<Memory>,
}

impl Pages {
    fn new(watched: usize) -> Arc<Self> {
        let map = FreeMap::new(PAGES).unwrap();
        map.online(0, PAGES);
        let pages = (0..watched).map(|_| Memory::new(0)).collect();
        Arc::new(Self { map, pages }, GFP_KERNEL).unwrap()
    }

    fn use_pages(&self, index: usize, pages: usize) {
        for page in self.pages.iter().skip(index).take(pages) {
            page.write(1);
        }
    }

    /// Allocates a folio, uses it and frees it. Returns whether there was one.
    fn cycle(&self, order: u32) -> bool {
        let Some(index) = self.map.take(order) else {
            return false;
        };
        self.use_pages(index, 1 << order);
        self.map.release(index, 1 << order);
        true
    }

    fn check(&self, used: usize, withdrawn: usize) {
        assert_eq!((self.map.used(), self.map.withdrawn()), (used, withdrawn));
        assert_eq!(self.map.used_in_block(0), used);
    }
}

fn both(shared: Arc<Pages>, order: u32) {
    let other = shared.clone();
    let thread = spawn(move || other.cycle(order));
    let own = shared.cycle(order);
    let theirs = thread.join();
    assert!(own && theirs);
    shared.check(0, 0);
}

fn single_pages() {
    both(Pages::new(2), 0);
}

fn folios() {
    both(Pages::new(4), 1);
}

/// Two folios of 256 pages, with four words of the bitmap each.
fn large_folios() {
    let shared = Pages::new(1);
    let other = shared.clone();
    let thread = spawn(move || other.cycle(8));
    let own = shared.cycle(8);
    // The other half is always free.
    assert!(own && thread.join());
    shared.check(0, 0);
}

/// The last free page is freed and allocated concurrently.
fn given_back() {
    let shared = Pages::new(1);
    assert!(shared.map.take_at(0, 0));
    for order in 0..9 {
        assert!(shared.map.take_at(1 << order, order));
    }
    let other = shared.clone();
    shared.use_pages(0, 1);
    let thread = spawn(move || {
        other.use_pages(0, 1);
        other.map.release(0, 1);
    });
    if let Some(index) = shared.map.take(0) {
        assert_eq!(index, 0);
        shared.use_pages(0, 1);
        shared.map.release(0, 1);
    }
    if shared.map.take_at(0, 0) {
        shared.use_pages(0, 1);
        shared.map.release(0, 1);
    }
    thread.join();
    assert!(shared.map.take_at(0, 0));
    shared.check(PAGES, 0);
}

/// A page in use is freed while it is withdrawn. It must not be free afterwards, in either order.
fn withdraw_give_back() {
    let shared = Pages::new(1);
    assert!(shared.map.take_at(0, 0));
    let other = shared.clone();
    let thread = spawn(move || {
        other.use_pages(0, 1);
        other.map.release(0, 1);
    });
    let left = shared.map.offline(0, 1);
    if left == 0 {
        assert!(!shared.map.take_at(0, 0));
    }
    thread.join();
    assert_eq!(shared.map.offline(0, 1), 0);
    assert!(!shared.map.take_at(0, 0));
    shared.check(0, 1);
}

/// A withdrawn page in use is freed.
fn withdrawn_given_back() {
    let shared = Pages::new(1);
    assert!(shared.map.take_at(0, 0));
    assert_eq!(shared.map.offline(0, 1), 1);
    let other = shared.clone();
    let thread = spawn(move || {
        other.use_pages(0, 1);
        other.map.release(0, 1);
    });
    assert!(!shared.map.take_at(0, 0));
    thread.join();
    assert!(!shared.map.take_at(0, 0));
    shared.check(0, 1);
}

/// A withdrawn page in use is restored while it is freed: it must be free afterwards.
fn restore_give_back() {
    let shared = Pages::new(1);
    assert!(shared.map.take_at(0, 0));
    assert_eq!(shared.map.offline(0, 1), 1);
    let other = shared.clone();
    let thread = spawn(move || other.map.release(0, 1));
    shared.map.online(0, 1);
    thread.join();
    shared.check(0, 0);
    assert!(shared.map.take_at(0, 0));
}

fn withdraw_take() {
    let shared = Pages::new(1);
    let other = shared.clone();
    let thread = spawn(move || {
        let taken = other.map.take_at(0, 0);
        if taken {
            other.use_pages(0, 1);
            other.map.release(0, 1);
        }
    });
    if shared.map.offline(0, 1) == 0 {
        assert!(!shared.map.take_at(0, 0));
    }
    thread.join();
    assert_eq!(shared.map.offline(0, 1), 0);
    shared.check(0, 1);
    shared.map.online(0, 1);
    shared.check(0, 0);
    assert!(shared.map.take_at(0, 0));
}

/// If all pages are withdrawn and a barrier follows, as in `Chunk::remove_idle`, all accesses by
/// users of a page have ended.
fn withdrawn_unused() {
    let shared = Pages::new(1);
    assert!(shared.map.take_at(0, 0));
    let other = shared.clone();
    let thread = spawn(move || {
        other.use_pages(0, 1);
        other.map.release(0, 1);
    });
    if shared.map.offline(0, 1) == 0 {
        let barrier = Atomic::new(0u32);
        barrier.xchg(1, Full);
        let _ = barrier.load(Relaxed);
        shared.use_pages(0, 1);
    }
    thread.join();
}
