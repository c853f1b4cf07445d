// SPDX-License-Identifier: GPL-2.0

//! A chunk of device memory that is removed when it is idle. The frames are plain memory, which
//! mapping and unmapping write.

use core::{
    marker::PhantomData,
    pin::Pin, //
};
use crate::{
    bindings::frames,
    harness::{
        Test,
        bounded,
        full, //
    },
    kernel::identity::PgmapOwner,
    mm::device_alloc::{
        clear,
        set, //
    }, //
};
use kernel::{
    model::spawn,
    prelude::*,
    sync::{
        Arc,
        atomic::{
            Atomic,
            ordering::{
                Acquire,
                Release, //
            }, //
        }, //
    }, //
};
use super::{
    CpuFault,
    DevicePageOps,
    DevicePages,
    FaultError,
    MemoryKind,
    chunk::Chunk, //
};

pub(crate) const TESTS: &[Test] = &[
    bounded("chunk_with_a_used_page_is_not_removed", 3, used),
    full("chunk_is_not_removed_during_a_lookup", looked_at),
    full("chunk_added_again_is_found", again),
    full("chunk_stays_after_an_earlier_lookup", stays),
    full("chunk_freed_pages_are_hinted", room),
    full("chunk_lookup_of_a_handed_over_page_succeeds", lookup),
];

struct Driver;

impl DevicePageOps for Driver {
    fn migrate_to_ram(_: &DevicePages<Self>, _: CpuFault<'_>) -> Result<(), FaultError> {
        Err(FaultError::Lost)
    }
}

struct Shared {
    chunk: Pin<KBox<Chunk<Driver>>>,
    lowest: Atomic<usize>,
    _owner: KBox<DevicePages<Driver>>,
}

impl Shared {
    fn new() -> Arc<Self> {
        frames::reset();
        let owner = KBox::new(DevicePages(PhantomData), GFP_KERNEL).unwrap();
        let shared = Self {
            chunk: Chunk::new(&owner, 0, 512).unwrap(),
            lowest: Atomic::new(usize::MAX),
            _owner: owner,
        };
        let shared = Arc::new(shared, GFP_KERNEL).unwrap();
        shared.add();
        shared
    }

    fn add(&self) {
        assert_eq!(
            self.chunk.add(PgmapOwner(1), MemoryKind::Private, &self.lowest, &|_| Ok(())),
            Ok(())
        );
    }

    /// Allocates a page, uses it and frees it.
    fn cycle(&self) {
        if self.chunk.free.take_at(0, 0) {
            let folio = self.chunk.folio(0, 0);
            frames::write(folio.0);
            frames::free(folio.0);
        }
    }

    /// Accesses a frame.
    fn frame_guard(&self) -> bool {
        let Some(frame_guard) = self.chunk.frame_guard() else {
            return false;
        };
        let frames = frame_guard.frames();
        assert_eq!(frames.len(), 512);
        frames::frame_guard(frames.start);
        drop(frame_guard);
        true
    }
}

fn used() {
    let shared = Shared::new();
    let other = shared.clone();
    let thread = spawn(move || other.cycle());
    let removed = shared.chunk.remove_idle();
    assert_eq!(removed, !shared.chunk.is_there());
    thread.join();
    assert!(removed || shared.chunk.remove_idle());
    assert!(shared.chunk.free.take(0).is_none());
}

fn looked_at() {
    let shared = Shared::new();
    let other = shared.clone();
    let thread = spawn(move || other.frame_guard());
    let removed = shared.chunk.remove_idle();
    // The other thread may also have found no page because of an attempted removal that it
    // prevented: then no page was in use.
    thread.join();
    assert_eq!(shared.chunk.is_there(), !removed);
    assert_eq!(shared.frame_guard(), !removed);
}

/// The chunk is removed and added again, with other frames, while the frames are accessed.
fn again() {
    let shared = Shared::new();
    let other = shared.clone();
    let thread = spawn(move || {
        other.frame_guard();
    });
    if shared.chunk.remove_idle() {
        shared.add();
    }
    assert!(shared.frame_guard());
    thread.join();
}

/// After a failed removal, pages can be allocated as before.
fn stays() {
    let shared = Shared::new();
    let other = shared.clone();
    let thread = spawn(move || other.frame_guard());
    let removed = shared.chunk.remove_idle();
    if !removed {
        shared.cycle();
    }
    thread.join();
    assert_eq!(shared.frame_guard(), !removed);
}

/// The owner of a page finds its chunk, also from the lowest frame.
fn lookup() {
    let shared = Shared::new();
    assert!(shared.chunk.remove_idle());
    let page = Arc::new(Atomic::new(0usize), GFP_KERNEL).unwrap();
    let other = shared.clone();
    let theirs = page.clone();
    let thread = spawn(move || {
        other.add();
        let index = other.chunk.free.take(0).unwrap();
        theirs.store(other.chunk.folio(index, 0).0, Release);
    });
    let pfn = page.load(Acquire);
    if pfn != 0 {
        use kernel::sync::atomic::ordering::Relaxed;
        assert!(shared.lowest.load(Relaxed) <= pfn);
        assert_eq!(shared.chunk.base(), Some(pfn));
        frames::write(pfn);
        frames::free(pfn);
    }
    thread.join();
}

/// A page is freed while another task finds no free page: either that task gets it, or the hint is
/// set.
fn room() {
    let shared = Shared::new();
    assert!(shared.chunk.free.take_at(7, 0));
    assert_eq!(shared.chunk.free.offline(0, 7) + shared.chunk.free.offline(8, 504), 0);
    shared.chunk.gains_room(None);
    let hint = Arc::new(Atomic::new(1u64), GFP_KERNEL).unwrap();
    let change = |hint: &Atomic<u64>, may_have| {
        if may_have {
            set(hint, 1)
        } else {
            clear(hint, 1);
        }
    };
    let other = shared.clone();
    let theirs = hint.clone();
    let thread = spawn(move || {
        let taken = other.chunk.take(0, |may_have| change(&theirs, may_have));
        taken.is_some()
    });
    shared.chunk.free.release(7, 1);
    if shared.chunk.gains_room(Some(7)) & 1 != 0 {
        change(&hint, true);
    }
    let taken = thread.join();
    assert!(taken || hint.load(Acquire) != 0);
}
