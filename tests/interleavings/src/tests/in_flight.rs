// SPDX-License-Identifier: GPL-2.0

//! The marks of migrations, with the table lock held as in `rust/mirror`, beside faults, foreign
//! events and an engine that walks without the lock.

use crate::{
    harness::{
        full,
        Test, //
    },
    kernel::{
        identity::{
            EventOwner,
            MigrationId, //
        },
        word::{
            load_u64,
            store_u64, //
        }, //
    },
    mm::{
        addr::{
            PageRange,
            PMD_SIZE, //
        },
        notifier::{
            NotifierEvent,
            NotifierRange, //
        },
        page_set::PageSet, //
    },
    pgtable::DevicePte,
    space::{
        Destination,
        EventMatch,
        MigrationDesc, //
    }, //
};
use kernel::{
    model::{
        spawn,
        Memory, //
    },
    prelude::*,
    sync::{
        atomic::Atomic,
        Arc,
        LockClassKey,
        Mutex, //
    }, //
};
use super::{
    in_flight::{
        InFlightMigrations,
        InFlightNode, //
    },
    walkers::Walkers, //
};

pub(crate) const TESTS: &[Test] = &[
    full("marks_switch_beside_a_foreign_event", event_beside_switch),
    full("marks_switch_beside_a_removal", removal_beside_switch),
    full("marks_fault_beside_a_copy", fault_beside_copy),
    full("marks_two_migrations_do_not_share_a_page", two),
    full("marks_write_access_beside_a_fork", fork_beside_permission),
];

/// Names of migrations.
const OURS: MigrationId = MigrationId(1);
const THEIRS: MigrationId = MigrationId(2);

/// Frame numbers of the page before and after a migration.
const SOURCE: usize = 1;
const DESTINATION: usize = 2;

/// The page that the tests use.
fn page() -> PageRange {
    PageRange::from_pages(PMD_SIZE, 1).unwrap()
}

/// The state under the table lock.
struct State {
    in_flight: InFlightMigrations,
    /// Number of invalidations, which a fault compares.
    events: u64,
}

/// A mirror with one page, and an engine.
struct Mirror {
    state: Mutex<State>,
    /// The device PTE. It changes with the table lock held. The engine reads it without.
    entry: Atomic<u64>,
    walkers: Arc<Walkers<()>>,
    /// The page frames. A frame that was freed is used by another process.
    frames: [Memory; 3],
}

impl Mirror {
    /// A mirror that maps the source.
    fn new(writable: bool) -> Arc<Self> {
        let state = State { in_flight: InFlightMigrations::new(), events: 0 };
        let mirror = Self {
            state: Mutex::new(state, c"table", Pin::static_ref(&LockClassKey)),
            entry: Atomic::new(0),
            walkers: Walkers::new(1, |_| Ok(())).unwrap(),
            frames: [0, 7, 0].map(Memory::new),
        };
        mirror.set(DevicePte::system(SOURCE, writable));
        Arc::new(mirror, GFP_KERNEL).unwrap()
    }

    /// The device PTE.
    fn get(&self) -> DevicePte {
        match load_u64(&self.entry) as usize {
            0 => DevicePte::NONE,
            word => DevicePte::system(word >> 1, word & 1 != 0),
        }
    }

    /// Changes the device PTE. The table lock is held.
    fn set(&self, entry: DevicePte) {
        let word = if entry.is_valid() {
            entry.number() << 1 | usize::from(entry.is_writable())
        } else {
            0
        };
        store_u64(&self.entry, word as u64);
    }

    /// Waits for accesses by old entries.
    fn flush(&self) {
        self.walkers.drain(|()| ());
    }

    /// A read by the engine.
    fn read(&self) -> Option<u64> {
        let read = |entry: DevicePte| self.frames[entry.number()].read();
        let access = || Some(self.get()).filter(|entry| entry.is_valid()).map(read);
        self.walkers.with(0, |()| access()).unwrap()
    }

    /// A write by the engine. Returns whether the entry permits it.
    fn write(&self, value: u64) -> bool {
        let access = || {
            let entry = self.get();
            if entry.is_writable() {
                self.frames[entry.number()].write(value);
            }
            entry.is_writable()
        };
        self.walkers.with(0, |()| access()).unwrap()
    }

    /// Announces a migration, and write-protects the entry.
    fn announce(&self, name: MigrationId) {
        let request = MigrationDesc {
            name,
            identity: EventMatch::Name,
            range: page(),
            faultless: true,
            destination: Destination::Any,
        };
        let node = InFlightNode::new().unwrap();
        let mut state = self.state.lock();
        state.in_flight.begin(request, node).unwrap();
        self.set(self.get().write_protected());
        drop(state);
        self.flush();
    }

    /// Handles an event.
    fn invalidate(&self, reason: NotifierEvent, owner: impl Into<EventOwner>) {
        let event = NotifierRange::new(reason, page(), owner);
        let mut state = self.state.lock();
        state.events += 1;
        let own = state.in_flight.handle_event(&event);
        let own = own.and_then(|name| state.in_flight.get(name, PMD_SIZE));
        let entry = self.get();
        if !own.is_some_and(|own| own.keeps(page(), entry)) {
            self.set(match reason {
                NotifierEvent::ProtectionPage => entry.write_protected(),
                _ => DevicePte::NONE,
            });
        }
        drop(state);
        self.flush();
    }

    /// Copies the page, and switches the entry.
    fn switch(&self, name: MigrationId) {
        self.frames[DESTINATION].write(self.frames[SOURCE].read());
        let state = self.state.lock();
        if state.in_flight.owns(name, PMD_SIZE) {
            self.set(DevicePte::system(DESTINATION, false));
        } else if !self.get().is_writable() {
            self.set(DevicePte::NONE);
        }
        drop(state);
        self.flush();
        self.frames[SOURCE].write(0);
    }

    /// Makes the entry writable again.
    fn permit_writes(&self, name: MigrationId) {
        let state = self.state.lock();
        let own = state.in_flight.get(name, PMD_SIZE).unwrap();
        let mut all = PageSet::EMPTY;
        all.insert(0);
        if own.owned_of(PMD_SIZE, &all).has(0) && self.get().is_valid() {
            self.set(self.get().writable());
        }
    }

    fn end(&self, name: MigrationId) {
        assert!(self.state.lock().in_flight.end(name, PMD_SIZE));
    }
}

/// Migrates the page while `removal` removes it from the address space. Then the frame that the
/// migration has filled is freed. An engine reads meanwhile.
fn switch_beside(removal: fn(&Mirror)) {
    let mirror = Mirror::new(false);
    mirror.announce(OURS);
    mirror.invalidate(NotifierEvent::Migrate, OURS);
    let theirs = mirror.clone();
    let other = spawn(move || {
        removal(&theirs);
        // Not by an entry that the switch has restored.
        assert_eq!(theirs.read(), None);
    });
    mirror.switch(OURS);
    assert!(matches!(mirror.read(), None | Some(7)));
    other.join();
    mirror.end(OURS);
    mirror.frames[DESTINATION].write(0);
    assert_eq!(mirror.read(), None);
}

fn event_beside_switch() {
    switch_beside(|mirror| mirror.invalidate(NotifierEvent::Clear, EventOwner::NONE));
}

fn removal_beside_switch() {
    switch_beside(|mirror| {
        let mut state = mirror.state.lock();
        mirror.set(DevicePte::NONE);
        state.in_flight.unmark(page());
        mirror.flush();
    });
}

/// A fault has collected the source before it was announced. The engine writes if it may.
fn fault_beside_copy() {
    let mirror = Mirror::new(false);
    let theirs = mirror.clone();
    let fault = spawn(move || {
        let state = theirs.state.lock();
        if state.events == 0 && !state.in_flight.holds(PMD_SIZE) {
            theirs.set(DevicePte::system(SOURCE, true));
        }
        drop(state);
        theirs.write(8)
    });
    mirror.announce(OURS);
    mirror.invalidate(NotifierEvent::Migrate, OURS);
    mirror.switch(OURS);
    let expected = if fault.join() { 8 } else { 7 };
    mirror.end(OURS);
    assert_eq!(mirror.read(), Some(expected));
}

/// Two migrations of a page are announced.
fn two() {
    fn announce(mirror: &Mirror, name: MigrationId, other: MigrationId) -> bool {
        mirror.announce(name);
        let state = mirror.state.lock();
        let owns = state.in_flight.owns(name, PMD_SIZE);
        assert_ne!(owns, state.in_flight.owns(other, PMD_SIZE));
        owns
    }
    let mirror = Mirror::new(true);
    let theirs = mirror.clone();
    let other = spawn(move || announce(&theirs, THEIRS, OURS));
    let owns = announce(&mirror, OURS, THEIRS);
    assert_ne!(other.join(), owns);
    assert_eq!(mirror.read(), Some(7));
}

/// A page becomes writable again after its migration, while it is shared by `fork()`.
fn fork_beside_permission() {
    let mirror = Mirror::new(true);
    mirror.announce(OURS);
    mirror.invalidate(NotifierEvent::Migrate, OURS);
    mirror.switch(OURS);
    let theirs = mirror.clone();
    let fork = spawn(move || {
        theirs.invalidate(NotifierEvent::ProtectionPage, EventOwner::NONE);
        // The child reads it.
        theirs.frames[DESTINATION].read()
    });
    mirror.permit_writes(OURS);
    let written = mirror.write(8);
    mirror.end(OURS);
    assert_eq!(fork.join(), if written { 8 } else { 7 });
    assert_eq!(mirror.get(), DevicePte::system(DESTINATION, false));
}
