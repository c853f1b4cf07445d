// SPDX-License-Identifier: GPL-2.0

//! The mirrors of a space, in numbered places.
//!
//! Who uses a mirror that is not its own *enters* its place: a spinlock is held for a moment, and the place is counted as
//! used until it is left. A mirror that closes takes its place away, so that nobody enters any more, and waits until
//! nobody uses it.

use super::Request;
use crate::{
    events::Need,
    locks,
    mm::{
        addr::PageRange,
        mask::Mask,
        migrate::Moved,
        notifier::{Cookie, Event},
        word::peek_usize,
    },
    pgtable::Flushed,
    policy::Bounces,
};
use core::ops::ControlFlow;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Full, Relaxed, Release},
            Atomic, //
        },
        Arc,
        Completion,
        SpinLock, //
    },
};

/// What a mirror has done when it was told of an event.
pub(crate) struct Invalidated {
    /// Whether it had entries that changed.
    pub(crate) changed: bool,
    /// The place of a flush that it has begun, to be [waited for](MirrorOps::finish).
    pub(crate) flush: Option<usize>,
}

/// A mirror, as its space sees it, and migrations that others have begun.
pub(crate) trait MirrorOps: Send + Sync {
    /// Takes away what `event` is about. Takes the table lock. `Break` refuses an event that must not wait.
    ///
    /// If it is `alone`, no other flush of the event can overlap with this mirror's: then the
    /// flush is waited for at once.
    ///
    /// Context: as [`Subscriber::invalidate`](crate::mm::notifier::Subscriber::invalidate).
    fn invalidate(&self, event: &Event<'_>, alone: bool) -> ControlFlow<(), Invalidated>;

    /// Waits for the flush in place `flush`.
    fn finish(&self, flush: usize);

    /// Drops what else is known of a window in which nobody faults or migrates. `false` if there are entries in it, so
    /// that it has to stay. Context: may sleep; takes the table lock.
    fn leave_window(&self, range: PageRange) -> bool;

    /// An eviction for `need` is over. Context: may sleep.
    fn evicted(&self, need: Need);

    /// Names the mirror's device, for attributes: the same for all mirrors of the device that are
    /// open.
    fn device_name(&self) -> Cookie;

    /// Names where the device has its own pages: one of its memories, else the device.
    fn home_name(&self) -> Cookie;

    /// Adds to `mask` the pages of `range`, of at most 2 MiB, that are in the memory that `home`
    /// names, as far as the device has entries for them, and if that is its own. Context: any but
    /// NMI.
    fn add_at_home(&self, home: Cookie, range: PageRange, mask: &mut Mask);

    /// Maps again what the device is to have mapped always, of what it has lost and of `range`.
    /// Context: may sleep; no lock may be held.
    fn restore(&self, range: Option<PageRange>);

    /// Joins the migration that `request` names: the device keeps its entries of the pages. Only of pages for which it has
    /// one, so that an invalidation that began before has none of them (H4): nothing is waited for (H14). `false` if there
    /// are none, or there is no memory.
    fn join(&self, request: Request) -> bool;

    /// Lets the device use what has moved. Entries become read-only: an event may be under way that takes write access.
    fn switch(&self, name: Cookie, moved: &Moved<'_>) -> Flushed;

    /// Removes the entries of pages that have moved.
    fn forget_moved(&self, moved: &Moved<'_>) -> Flushed;

    /// Leaves the migration.
    fn leave(&self, name: Cookie, range: PageRange);
}

/// How many use a place: twice their number, and one if the place is closed.
#[pin_data]
struct Users {
    word: Atomic<usize>,
    /// The place is closed, and nobody uses it.
    #[pin]
    gone: Completion,
}

const CLOSED: usize = 1;
const ONE: usize = 2;

/// Somebody uses a place.
struct User(Arc<Users>);

impl Drop for User {
    fn drop(&mut self) {
        // What was done with the mirror comes before its end.
        if self.0.word.fetch_sub(ONE, Release) == ONE + CLOSED {
            self.0.gone.complete_all();
        }
    }
}

struct Place {
    mirror: Arc<dyn MirrorOps>,
    users: Arc<Users>,
    /// See [`MirrorOps::device_name`].
    device: Cookie,
    /// See [`MirrorOps::home_name`].
    home: Cookie,
    /// Shared by all with that home.
    bounces: Arc<Bounces>,
}

/// A mirror that stays as long as this is there.
pub(crate) struct Entered {
    // Given back before the place is left: the last reference is not one of these.
    mirror: Arc<dyn MirrorOps>,
    _user: User,
}

impl core::ops::Deref for Entered {
    type Target = dyn MirrorOps;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &*self.mirror
    }
}

/// The mirrors of a space.
#[pin_data]
pub(crate) struct Mirrors {
    /// Processes have few: a list is faster than a tree at each event. The last place is in use.
    #[pin]
    places: SpinLock<KVec<Option<Place>>>,
    /// The length of that list. Changed under its lock.
    end: Atomic<usize>,
}

impl Mirrors {
    pub(super) fn new() -> impl PinInit<Self> {
        let (name, key) = locks::mirrors();
        pin_init!(Self {
            places <- SpinLock::new(KVec::new(), name, key),
            end: Atomic::new(0),
        })
    }

    /// Ensures that a place is free or can be added. Context: may sleep; one task at a time. `ENOMEM`.
    fn reserve(&self) -> Result {
        let count = {
            let places = self.places.lock();
            if places.len() < places.capacity() || places.iter().any(Option::is_none) {
                return Ok(());
            }
            places.len()
        };
        // Not under the lock. Meanwhile places may become free.
        let mut larger = KVec::with_capacity(count.max(1) * 2, GFP_KERNEL_ACCOUNT)?;
        let mut places = self.places.lock();
        for place in places.drain_all() {
            // There is room.
            let _ = larger.push_within_capacity(place);
        }
        core::mem::swap(&mut *places, &mut larger);
        drop(places);
        Ok(())
    }

    /// What bounces between the memory that `home` names and others. Context: may sleep; one task
    /// at a time. `ENOMEM`.
    fn bounces(&self, home: Cookie) -> Result<Arc<Bounces>> {
        let known = {
            let places = self.places.lock();
            let mut places = places.iter().flatten();
            let other = places.find(|place| place.home == home);
            other.map(|place| place.bounces.clone())
        };
        match known {
            Some(known) => Ok(known),
            None => Arc::pin_init(Bounces::new(), GFP_KERNEL_ACCOUNT),
        }
    }

    /// Gives `mirror` a place. Context: may sleep; one task at a time. `ENOMEM`.
    fn add(&self, mirror: Arc<dyn MirrorOps>) -> Result<(usize, Arc<Users>, Arc<Bounces>)> {
        let users = Arc::pin_init(
            pin_init!(Users {
                word: Atomic::new(0),
                gone <- Completion::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        self.reserve()?;
        let device = mirror.device_name();
        let home = mirror.home_name();
        let bounces = self.bounces(home)?;
        let place = Some(Place {
            device,
            home,
            mirror,
            users: users.clone(),
            bounces: bounces.clone(),
        });
        let mut places = self.places.lock();
        let number = match places.iter().position(Option::is_none) {
            Some(number) => number,
            None => {
                // There is room.
                places.push_within_capacity(None).map_err(|_| ENOMEM)?;
                places.len() - 1
            }
        };
        if let Some(free) = places.get_mut(number) {
            *free = place;
        }
        self.end.store(places.len(), Relaxed);
        Ok((number, users, bounces))
    }

    /// Whether there is at most one mirror. Context: any.
    #[inline]
    pub(super) fn are_few(&self) -> bool {
        peek_usize(&self.end) <= 1
    }

    /// Takes the place `number` away. What is returned is dropped without a lock.
    fn remove(&self, number: usize) -> Option<Place> {
        let mut places = self.places.lock();
        let place = places.get_mut(number)?.take();
        while places.last().is_some_and(Option::is_none) {
            places.pop();
        }
        self.end.store(places.len(), Relaxed);
        place
    }

    /// Whether there is a mirror of `device`. Context: any but interrupts.
    fn has_device(&self, device: Cookie) -> bool {
        let places = self.places.lock();
        places.iter().flatten().any(|place| place.device == device)
    }

    /// Enters place `number`, if a mirror is there, of `device` if one is given. Context: any but
    /// interrupts.
    #[inline]
    fn enter(&self, number: usize, device: Option<Cookie>) -> Option<Entered> {
        let places = self.places.lock();
        let place = places.get(number)?.as_ref()?;
        if device.is_some_and(|device| device != place.device) {
            return None;
        }
        // Before the lock is released: who takes the place away afterwards waits for this.
        place.users.word.fetch_add(ONE, Relaxed);
        let _user = User(place.users.clone());
        Some(Entered {
            mirror: place.mirror.clone(),
            _user,
        })
    }

    /// Enters one place after the other, but for `except`. A mirror that is opened meanwhile may be left out.
    pub(crate) fn entered(&self, except: Option<usize>) -> impl Iterator<Item = Entered> + '_ {
        self.entered_of(None, except)
    }

    /// As [`Self::entered`], of mirrors of `device` if one is given.
    pub(crate) fn entered_of(
        &self,
        device: Option<Cookie>,
        except: Option<usize>,
    ) -> impl Iterator<Item = Entered> + '_ {
        let mut next = 0;
        core::iter::from_fn(move || {
            while next < peek_usize(&self.end) {
                let number = next;
                next += 1;
                if except == Some(number) {
                    continue;
                }
                if let Some(entered) = self.enter(number, device) {
                    return Some(entered);
                }
            }
            None
        })
    }
}

/// A mirror's place in its space. Dropping it waits until nobody uses the mirror.
pub(crate) struct Membership {
    space: super::Handle,
    number: usize,
    users: Arc<Users>,
    bounces: Arc<Bounces>,
}

impl Membership {
    /// Gives `mirror` a place in `space`. Context: may sleep. `ENOMEM`.
    #[inline(never)]
    pub(crate) fn new(space: super::Handle, mirror: Arc<dyn MirrorOps>) -> Result<Self> {
        let opening = super::OPENING.lock();
        let (number, users, bounces) = space.mirrors.add(mirror)?;
        drop(opening);
        Ok(Self {
            space,
            number,
            users,
            bounces,
        })
    }

    /// What bounces between the mirror's memory at home and others, in this process.
    pub(crate) fn bounces(&self) -> &Bounces {
        &self.bounces
    }

    /// The number of the place, which does not change.
    pub(crate) fn number(&self) -> usize {
        self.number
    }
}

impl Drop for Membership {
    // Not inlined: there is one lock in all modules.
    #[inline(never)]
    fn drop(&mut self) {
        let opening = super::OPENING.lock();
        let place = self.space.mirrors.remove(self.number);
        // No mirror of the device is opened meanwhile, and those that were have its name: another
        // device gets the name only later. So what was said of this one is never taken for
        // something else.
        if let Some(place) = place.as_ref() {
            if !self.space.mirrors.has_device(place.device) {
                self.space.attributes.forget(place.device);
            }
        }
        drop(opening);
        // Not under a lock: the reference of the mirror may be the last one.
        drop(place);
        if self.users.word.fetch_add(CLOSED, Full) != 0 {
            self.users.gone.wait_for_completion();
        }
        // What others did with the mirror comes before what follows.
        self.users.word.load(Acquire);
    }
}
