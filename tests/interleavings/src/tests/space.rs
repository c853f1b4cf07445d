// SPDX-License-Identifier: GPL-2.0

//! The mirrors and the notifier windows of a space: users of both while they are closed.

use crate::{
    bindings::works,
    debug::events::EvictReason,
    harness::{
        bounded,
        full,
        Test, //
    },
    kernel::{
        identity::{
            DeviceId,
            MemoryId,
            MigrationId, //
        },
        lock_classes,
        rcu_map::RcuArc, //
    },
    mm::{
        addr::{
            PageRange,
            PMD_SIZE, //
        },
        migrate::Moved,
        notifier::NotifierRange,
        page_set::PageSet,
        range_fault::AddressSpace, //
    },
    pgtable::Flushed, //
};
use core::ops::ControlFlow;
use kernel::{
    model::{
        spawn,
        Memory, //
    },
    prelude::*,
    sync::{
        Arc,
        SpinLock, //
    }, //
};
use super::{
    mirrors::{
        Invalidated,
        Membership,
        MirrorOps,
        OwnMemory, //
    },
    owner::create,
    MigrationDesc,
    Space,
    SpaceHandle,
    StartedFlush, //
};

pub(crate) const TESTS: &[Test] = &[
    full("mirror_close_waits_for_its_users", close),
    bounded("mirror_close_waits_for_the_last_user", 4, close_users),
    bounded("window_with_an_entry_is_not_removed", 3, window),
    full("window_space_is_registered_before_its_notifiers", registered),
];

/// A mirror without a device.
struct Mirror {
    /// What the users of a mirror read, and its end writes.
    state: Memory,
    /// The device PTE, with the table lock.
    entry: SpinLock<u64>,
}

impl Mirror {
    fn new() -> Arc<Self> {
        let (name, key) = lock_classes::event_wait();
        let entry = SpinLock::new(0, name, key);
        Arc::new(Self { state: Memory::new(0), entry }, GFP_KERNEL).unwrap()
    }

    /// Opens it in `space`. `ended` is called when no user is left, before the count of users is
    /// freed, because the drop of the last reference of the count orders the same accesses.
    fn open(
        self: &Arc<Self>,
        space: &RcuArc<Space>,
        ended: impl Fn() + Send + Sync + 'static,
    ) -> Membership {
        let space = SpaceHandle { space: space.clone(), ended: Box::new(ended) };
        Membership::new(space, self.clone()).unwrap()
    }
}

impl MirrorOps for Mirror {
    fn invalidate(&self, _: &NotifierRange<'_>, _: bool) -> ControlFlow<(), Invalidated> {
        ControlFlow::Break(())
    }

    fn link(&self, _: usize, _: StartedFlush) {}

    fn finish(&self, _: usize) -> Option<StartedFlush> {
        None
    }

    fn leave_window(&self, _: PageRange) -> bool {
        *self.entry.lock() == 0
    }

    fn evicted(&self, _: EvictReason) {}

    fn device_name(&self) -> DeviceId {
        DeviceId(1)
    }

    fn own_memory(&self) -> OwnMemory {
        OwnMemory::Memory(MemoryId(1))
    }

    fn add_resident(&self, _: OwnMemory, _: PageRange, _: &mut PageSet) {}

    fn restore(&self, _: Option<PageRange>) {
        self.state.read();
    }

    fn join(&self, _: MigrationDesc) -> bool {
        false
    }

    fn switch(&self, _: MigrationId, _: &Moved<'_>) -> Flushed<'_> {
        unimplemented!()
    }

    fn forget_moved(&self, _: &Moved<'_>) -> Flushed<'_> {
        unimplemented!()
    }

    fn permit_writes(&self, _: MigrationId, _: PageRange) {}

    fn leave(&self, _: MigrationId, _: PageRange) {}
}

fn close_beside<const USERS: usize>() {
    let (space, _) = create();
    works::reset();
    let mirror = Mirror::new();
    let ending = mirror.clone();
    let opened = mirror.open(&space, move || ending.state.write(1));
    let threads = [(); USERS].map(|()| {
        let space = space.clone();
        spawn(move || space.mirrors().entered(None).for_each(|mirror| mirror.restore(None)))
    });
    drop(opened);
    for thread in threads {
        thread.join();
    }
    assert_eq!(mirror.state.read(), 1);
}

fn close() {
    close_beside::<1>();
}

fn close_users() {
    close_beside::<2>();
}

/// Whether the second window of `space` can be found by the events of its range.
fn is_there(space: &Space) -> bool {
    let below = PageRange::new(0, PMD_SIZE).unwrap();
    space.windows().any_behind(below, PageRange::new(0, 2 * PMD_SIZE).unwrap())
}

/// A fault installs an entry, while the worker checks whether the window is needed.
fn window() {
    let (space, mm) = create();
    works::reset();
    let mirror = Mirror::new();
    let opened = mirror.open(&space, || ());
    drop(Space::window(&space, &AddressSpace(mm), PMD_SIZE).unwrap());
    let theirs = space.clone();
    let entry = mirror.clone();
    let fault = spawn(move || {
        let user = Space::window(&theirs, &AddressSpace(mm), PMD_SIZE).unwrap();
        *entry.entry.lock() = 1;
        assert!(is_there(&theirs));
        drop(user);
    });
    space.windows().queue_check(PMD_SIZE, true);
    works::run();
    fault.join();
    space.windows().queue_check(PMD_SIZE, true);
    works::run();
    // The entry is still there, and so is the window.
    assert!(is_there(&space));
    drop(opened);
}

/// Two faults create the first windows of an address space.
fn registered() {
    let (space, mm) = create();
    works::reset();
    let theirs = space.clone();
    let fault = spawn(move || {
        drop(Space::window(&theirs, &AddressSpace(mm), PMD_SIZE).unwrap());
    });
    drop(Space::window(&space, &AddressSpace(mm), 0).unwrap());
    fault.join();
}
