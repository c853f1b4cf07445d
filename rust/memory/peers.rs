// SPDX-License-Identifier: GPL-2.0

//! The mirrors that may have entries for a device's memory: so that a CPU fault can switch them
//! instead of removing them.
//!
//! A CPU fault holds a folio lock, so that it never waits for a peer: it takes what it gets at once,
//! and the rest loses its entries the ordinary way.

use crate::{
    inject::{fails, Point},
    locks,
    mirror::Peer,
    mm::{addr::PageRange, migrate::Migrated, notifier::Cookie},
    phases::{Lap, Phase},
};
use kernel::{
    prelude::*,
    sync::{lock::mutex::MutexBackend, Arc, Mutex},
};

/// Mirrors of one address space that a CPU fault looks at.
const AT_ONCE: usize = 4;

/// One mirror. Whoever uses it holds the lock, so that it cannot go away.
#[pin_data]
pub(crate) struct Place {
    mm: Cookie,
    #[pin]
    peer: Mutex<Option<Arc<dyn Peer>>>,
}

/// A mirror's entry in the list. Dropping it waits for CPU faults that use the mirror.
pub(crate) struct Registration(Arc<Place>);

impl Drop for Registration {
    fn drop(&mut self) {
        *self.0.peer.lock() = None;
    }
}

/// All mirrors of a device's memory.
#[pin_data]
pub(super) struct Peers {
    #[pin]
    list: Mutex<KVec<Arc<Place>>>,
}

impl Peers {
    pub(super) fn new() -> impl PinInit<Self> {
        let (name, key) = locks::peers();
        pin_init!(Self {
            list <- Mutex::new(KVec::new(), name, key),
        })
    }

    /// Adds a mirror of `mm`. Context: may sleep. `ENOMEM`.
    pub(super) fn add(&self, mm: Cookie, peer: Arc<dyn Peer>) -> Result<Registration> {
        let (name, key) = locks::peer();
        let place = Arc::pin_init(
            pin_init!(Place {
                mm,
                peer <- Mutex::new(Some(peer), name, key),
            }),
            GFP_KERNEL,
        )?;
        let mut list = self.list.lock();
        // Those that are gone.
        list.retain(|place| place.peer.try_lock().is_none_or(|peer| peer.is_some()));
        list.push(place.clone(), GFP_KERNEL)?;
        Ok(Registration(place))
    }

    /// Calls `each` for all mirrors, one after the other. Context: may sleep; no lock may be held.
    pub(super) fn for_each(&self, mut each: impl FnMut(&dyn Peer)) {
        let mut next = 0;
        loop {
            // Not under the lock of the list: a CPU fault would not get it.
            let Some(place) = self.list.lock().get(next).cloned() else {
                break;
            };
            next += 1;
            let peer = place.peer.lock();
            if let Some(peer) = peer.as_ref() {
                each(&**peer);
            }
        }
    }

    /// Those of `mm`, as many as can be had at once.
    fn of(&self, mm: Cookie) -> [Option<Arc<Place>>; AT_ONCE] {
        let mut found = [const { None }; AT_ONCE];
        if let Some(list) = self.list.try_lock() {
            let same = list.iter().filter(|place| place.mm == mm);
            for (found, place) in found.iter_mut().zip(same) {
                *found = Some(place.clone());
            }
        }
        found
    }

    /// Calls `migrate`, which isolates, copies and moves pages of `range` in `mm`, while mirrors keep
    /// their entries; then switches these.
    pub(super) fn keep_reading<'a, E>(
        &self,
        mm: Cookie,
        owner: Cookie,
        range: PageRange,
        migrate: impl FnOnce() -> Result<Migrated<'a>, E>,
    ) -> Result<(), E> {
        let found = self.of(mm);
        // Any address that nothing else has meanwhile.
        let name = Cookie::of(&found);
        let mut held: [Option<kernel::sync::lock::Guard<'_, _, MutexBackend>>; AT_ONCE] =
            [const { None }; AT_ONCE];
        for (held, place) in held.iter_mut().zip(found.iter().flatten()) {
            *held = place.peer.try_lock().filter(|_| !fails(Point::Peer));
            *held = held.take().filter(|peer| {
                peer.as_ref()
                    .is_some_and(|peer| peer.begin(name, owner, range))
            });
        }
        let peers = || held.iter().flatten().filter_map(|peer| peer.as_ref());
        let result = migrate().map(|migrated| {
            for peer in peers() {
                let _flushed = peer.switch(name, range, &migrated);
            }
            // Now CPUs may have the pages.
            let mut lap = Lap::start();
            drop(migrated);
            lap.end(Phase::Finalize);
        });
        for peer in peers() {
            peer.end(name);
        }
        result
    }
}
