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
    mm::{
        addr::PageRange,
        migrate::{Moved, Reader},
        notifier::Cookie, //
    },
    pgtable::Flushed,
};
use kernel::{
    prelude::*,
    sync::{
        lock::{mutex::MutexBackend, Guard},
        Arc,
        Mutex, //
    },
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
        let is_free = |place: &Arc<Place>| place.peer.try_lock().is_some_and(|peer| peer.is_none());
        // A concurrent walk goes by index: a mirror stays where it is as long as it is there.
        while list.last().is_some_and(is_free) {
            list.pop();
        }
        match list.iter_mut().find(|place| is_free(place)) {
            Some(free) => *free = place.clone(),
            None => list.push(place.clone(), GFP_KERNEL)?,
        }
        Ok(Registration(place))
    }

    /// Calls `each` for all mirrors, one after the other. One that is added meanwhile may be left out. Context: may
    /// sleep; no lock may be held.
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
            // Places of mirrors that are gone stay until they are reused.
            let is_there = |place: &Place| place.peer.try_lock().is_none_or(|peer| peer.is_some());
            let same = list
                .iter()
                .filter(|place| place.mm == mm && is_there(place));
            for (found, place) in found.iter_mut().zip(same) {
                *found = Some(place.clone());
            }
        }
        found
    }

    /// Calls `migrate`, which isolates, copies and moves pages of `range` in `mm`, with the mirrors that keep their
    /// entries meanwhile.
    pub(super) fn keep_reading<T>(
        &self,
        mm: Cookie,
        owner: Cookie,
        range: PageRange,
        migrate: impl FnOnce(Readers<'_>) -> T,
    ) -> T {
        let found = self.of(mm);
        // Any address that nothing else has meanwhile.
        let name = Cookie::of(&found);
        let mut held = [const { None }; AT_ONCE];
        for (held, place) in held.iter_mut().zip(found.iter().flatten()) {
            let peer = place.peer.try_lock().filter(|_| !fails(Point::Peer));
            *held = peer.filter(|peer| {
                peer.as_ref()
                    .is_some_and(|peer| peer.begin(name, owner, range))
            });
        }
        migrate(Readers { name, held: &held })
    }
}

/// Mirrors that were told of a migration, and keep their entries of its pages. Dropping it ends that for all.
#[must_use = "dropping it ends the step"]
pub(crate) struct Readers<'p> {
    name: Cookie,
    // By reference: a migration moves its readers from state to state, each of which has a stack slot.
    held: &'p [Option<Held<'p>>; AT_ONCE],
}

type Held<'p> = Guard<'p, Option<Arc<dyn Peer>>, MutexBackend>;

impl Readers<'_> {
    fn each(&self) -> impl Iterator<Item = &Arc<dyn Peer>> {
        self.held.iter().flatten().filter_map(|peer| peer.as_ref())
    }
}

impl<'p> Readers<'p> {
    /// Lets each device use what has moved, as far as it can.
    pub(crate) fn switch(self, moved: &Moved<'_>) -> Settled<'p> {
        self.settle(|name, peer| peer.switch(name, moved))
    }

    fn settle(self, flush: impl Fn(Cookie, &dyn Peer) -> Flushed) -> Settled<'p> {
        for peer in self.each() {
            let _flushed: Flushed = flush(self.name, &**peer);
        }
        Settled { _readers: self }
    }
}

impl Drop for Readers<'_> {
    fn drop(&mut self) {
        for peer in self.each() {
            peer.end(self.name);
        }
    }
}

/// The mirrors use no source of a page that has moved.
pub(crate) struct Settled<'p> {
    _readers: Readers<'p>,
}

impl<'p> Reader for Readers<'p> {
    type Done = Settled<'p>;

    fn forget(self, moved: &Moved<'_>) -> Settled<'p> {
        self.settle(|_, peer| peer.forget_moved(moved))
    }
}

#[kunit_tests(rust_hmm_peers)]
mod tests {
    use super::*;
    use crate::{events::Need, mm::device_pages::DeviceRange, thread::Thread};
    use kernel::{
        sync::{
            atomic::{ordering::Relaxed, Atomic},
            SetOnce, //
        },
        time::{delay::fsleep, Delta, Instant, Monotonic},
    };

    /// A mirror that counts how often it is told to forget.
    struct Counting(Atomic<u32>);

    impl Peer for Counting {
        fn begin(&self, _name: Cookie, _owner: Cookie, _range: PageRange) -> bool {
            false
        }

        fn switch(&self, _name: Cookie, moved: &Moved<'_>) -> Flushed {
            self.forget_moved(moved)
        }

        fn forget_moved(&self, _moved: &Moved<'_>) -> Flushed {
            Flushed::by(&Nothing, None)
        }

        fn end(&self, _name: Cookie) {}

        fn forget(&self) {
            self.0.add(1, Relaxed);
        }

        fn evicted(&self, _need: Need) {}

        fn collapse(&self, _block: DeviceRange) {}

        fn restore(&self) {}
    }

    struct Nothing;

    impl crate::pgtable::Flusher for Nothing {
        type Pending = ();

        fn start(&self, _range: PageRange) {}

        fn wait(&self, (): ()) {}
    }

    #[test]
    fn a_walk_leaves_nobody_out_when_others_come_and_go() -> Result {
        fn add(peers: &Peers) -> Result<(Registration, Arc<Counting>)> {
            let peer = Arc::new(Counting(Atomic::new(0)), GFP_KERNEL)?;
            Ok((peers.add(Cookie::NONE, peer.clone())?, peer))
        }
        let peers = Arc::pin_init(Peers::new(), GFP_KERNEL)?;
        let mut first = Some(add(&peers)?);
        let others = [add(&peers)?, add(&peers)?, add(&peers)?];
        let new = Arc::new(SetOnce::new(), GFP_KERNEL)?;
        let (mut seen, mut thread) = (0, None);
        peers.for_each(|peer| {
            peer.forget();
            seen += 1;
            if seen == 2 {
                // A peer that the walk has passed is removed, and one is added. By another task,
                // because this one holds the lock of a peer.
                let (first, peers, added) = (first.take(), peers.clone(), new.clone());
                thread = Some(Thread::spawn(c"hmm-test", move || {
                    drop(first);
                    added.populate(add(&peers));
                }));
                let since = Instant::<Monotonic>::now();
                while SetOnce::as_ref(&new).is_none() && since.elapsed() < Delta::from_secs(20) {
                    fsleep(Delta::from_millis(1));
                }
            }
        });
        assert!(thread.is_some_and(|thread| thread.is_ok()));
        assert!(SetOnce::as_ref(&new).is_some_and(|new| new.is_ok()));
        assert!(others.iter().all(|(_, peer)| peer.0.load(Relaxed) == 1));
        assert_eq!(peers.list.lock().len(), 4);
        Ok(())
    }
}
