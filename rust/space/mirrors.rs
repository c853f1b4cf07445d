// SPDX-License-Identifier: GPL-2.0

//! The mirrors of a space, in numbered places.
//!
//! A task that uses a mirror which it does not own *enters* the mirror's place: it takes a counted
//! reference under a spinlock, and drops it when it leaves. A mirror that is closed removes its
//! place, so that no other task can enter, and waits until these references were dropped.

use super::MigrationDesc;
use crate::{
    debug::events::EvictReason,
    kernel::{
        counted::{
            CountedRef,
            DrainedBox, //
        },
        identity::{
            DeviceId,
            MemoryId,
            MigrationId, //
        },
        lock_classes,
        word::peek_usize, //
    },
    mm::{
        addr::PageRange,
        migrate::Moved,
        notifier::NotifierRange,
        page_set::PageSet, //
    },
    pgtable::Flushed,
    policy::Bounces, //
};
use core::ops::ControlFlow;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        Arc,
        SpinLock, //
    }, //
};

/// Result of the invalidation of a mirror.
pub(crate) struct Invalidated {
    /// Whether the event changed device PTEs.
    pub(crate) changed: bool,
    /// The place of a started flush, which must be [waited for](MirrorOps::finish).
    pub(crate) flush: Option<usize>,
}

/// Operations of a mirror for its space, and for migrations that other tasks have begun.
pub(crate) trait MirrorOps: Send + Sync {
    /// Removes or write-protects the device PTEs that `event` invalidates. Returns `Break` to
    /// refuse an event that must not block, if the table lock is contended or a flush may sleep.
    ///
    /// If the mirror is `alone`, no other flush of the event can overlap with this mirror's. Then
    /// the mirror waits for the flush at once.
    ///
    /// # Context
    ///
    /// As [`NotifierOps::invalidate`](crate::mm::notifier::NotifierOps::invalidate). Takes the
    /// table lock.
    fn invalidate(&self, event: &NotifierRange<'_>, alone: bool) -> ControlFlow<(), Invalidated>;

    /// Links the flush in place `flush` to `next`, a flush of another mirror for the same event.
    fn link(&self, flush: usize, next: StartedFlush);

    /// Waits for the flush in place `flush`. Returns the flush that it is linked to.
    fn finish(&self, flush: usize) -> Option<StartedFlush>;

    /// Drops the mirror's other state of the window `range`, which has no users. Returns `false` if
    /// the window has device PTEs and therefore must stay. Context: may sleep; takes the table
    /// lock.
    fn leave_window(&self, range: PageRange) -> bool;

    /// Reports the end of an eviction for `need`. Context: may sleep.
    fn evicted(&self, need: EvictReason);

    /// Identifies the mirror's device, for attributes. The same for all open mirrors of the device.
    fn device_name(&self) -> DeviceId;

    /// Identifies the memory that is local to the device: one of its memories, or system memory.
    fn own_memory(&self) -> OwnMemory;

    /// Adds to `mask` the pages of `range` that are in the memory `own`, as far as the device has
    /// PTEs for them. Adds none if `own` is not the device's own. `range` has at most a block.
    /// Context: any but NMI.
    fn add_resident(&self, own: OwnMemory, range: PageRange, mask: &mut PageSet);

    /// Maps memory with the attribute `accessed_by` for the device again: ranges whose device PTEs
    /// were lost, and `range`. Context: may sleep; no lock may be held.
    fn restore(&self, range: Option<PageRange>);

    /// Joins the migration that `request` names, so that the device keeps its PTEs of the pages.
    /// Only pages with a device PTE join, because an invalidation that began before has already
    /// removed its PTEs (H4). Therefore the call waits for no invalidation (H14). Returns `false`
    /// if there are no such pages, or if memory cannot be allocated.
    fn join(&self, request: MigrationDesc) -> bool;

    /// Replaces the device PTEs of the pages that have moved. The new PTEs are read-only until
    /// [`Self::permit_writes`], because other mirrors may still read the sources. Returns the
    /// mirror's proof for the range of `moved`.
    fn switch(&self, name: MigrationId, moved: &Moved<'_>) -> Flushed<'_>;

    /// Removes the device PTEs of pages that have moved. Returns the mirror's proof for the range
    /// of `moved`.
    fn forget_moved(&self, moved: &Moved<'_>) -> Flushed<'_>;

    /// Gives write access back to the device PTEs that [`Self::switch`] has replaced, if they were
    /// writable at [`Self::join`] and no event has affected their pages since. Called once after
    /// the migration was finalized: no device uses a source, and the CPU page table maps the
    /// destinations.
    fn permit_writes(&self, name: MigrationId, range: PageRange);

    /// Leaves the migration.
    fn leave(&self, name: MigrationId, range: PageRange);
}

/// Memory that is local to a device, between which and other memory pages can thrash.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnMemory {
    /// One of the device's memories.
    Memory(MemoryId),
    /// System memory, used by this device.
    Device(DeviceId),
}

struct MirrorEntry {
    mirror: DrainedBox<Arc<dyn MirrorOps>>,
    /// See [`MirrorOps::device_name`].
    device: DeviceId,
    /// See [`MirrorOps::own_memory`].
    own_memory: OwnMemory,
    /// Shared by all mirrors with the same `own_memory`.
    bounces: Arc<Bounces>,
}

/// A mirror of another task. It is not closed as long as this exists.
pub(crate) struct EnteredMirror(CountedRef<Arc<dyn MirrorOps>>);

impl core::ops::Deref for EnteredMirror {
    type Target = dyn MirrorOps;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &**self.0
    }
}

/// A flush that a mirror has started for an event. The flushes of an event form a list, because
/// their number is not limited, and nothing can be allocated during an event: each mirror stores
/// its flush and the link to the previous one.
pub(crate) struct StartedFlush {
    mirror: EnteredMirror,
    /// Place of the flush in the mirror.
    place: usize,
}

impl StartedFlush {
    /// Adds the flush of `mirror` in place `place` to the list that begins with `list`.
    pub(super) fn add(list: &mut Option<Self>, mirror: EnteredMirror, place: usize) {
        if let Some(next) = list.take() {
            mirror.link(place, next);
        }
        *list = Some(Self { mirror, place });
    }

    /// Waits for the flushes of the list that begins with this one. Context: may sleep.
    pub(super) fn wait_all(self) {
        let mut next = Some(self);
        while let Some(flush) = next {
            next = flush.mirror.finish(flush.place);
        }
    }
}

/// The mirrors of a space.
#[pin_data]
pub(crate) struct SpaceMirrors {
    /// A list, because a process has few mirrors, and iterating it for each event is faster than
    /// iterating a tree. The last place is always in use.
    #[pin]
    places: SpinLock<KVec<Option<MirrorEntry>>>,
    /// The length of `places`. Changed under the lock of `places`, and read without it.
    end: Atomic<usize>,
}

impl SpaceMirrors {
    pub(super) fn new() -> impl PinInit<Self> {
        let (name, key) = lock_classes::mirrors();
        pin_init!(Self {
            places <- SpinLock::new(KVec::new(), name, key),
            end: Atomic::new(0),
        })
    }

    /// Ensures that a place is free or can be added without an allocation.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep. The caller serializes calls.
    fn reserve(&self) -> Result {
        let count = {
            let places = self.places.lock();
            if places.len() < places.capacity() || places.iter().any(Option::is_none) {
                return Ok(());
            }
            places.len()
        };
        // Allocates without the spinlock. Places may become free concurrently, but none is added.
        let mut larger = KVec::with_capacity(count.max(1) * 2, GFP_KERNEL_ACCOUNT)?;
        let mut places = self.places.lock();
        for place in places.drain_all() {
            // Cannot fail: the capacity exceeds the number of places.
            let _ = larger.push_within_capacity(place);
        }
        core::mem::swap(&mut *places, &mut larger);
        drop(places);
        Ok(())
    }

    /// Returns the record of ranges that thrash between the memory `own` and other memory.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep. The caller serializes calls.
    fn bounces(&self, own: OwnMemory) -> Result<Arc<Bounces>> {
        let existing = {
            let places = self.places.lock();
            let mut places = places.iter().flatten();
            let other = places.find(|place| place.own_memory == own);
            other.map(|place| place.bounces.clone())
        };
        match existing {
            Some(bounces) => Ok(bounces),
            None => Arc::pin_init(Bounces::new(), GFP_KERNEL_ACCOUNT),
        }
    }

    /// Adds `mirror` to a free place.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep. The caller serializes calls.
    fn add(&self, mirror: Arc<dyn MirrorOps>) -> Result<(usize, Arc<Bounces>)> {
        self.reserve()?;
        let device = mirror.device_name();
        let own_memory = mirror.own_memory();
        let bounces = self.bounces(own_memory)?;
        let place = Some(MirrorEntry {
            device,
            own_memory,
            mirror: DrainedBox::new(mirror, GFP_KERNEL_ACCOUNT)?,
            bounces: bounces.clone(),
        });
        let mut places = self.places.lock();
        let number = match places.iter().position(Option::is_none) {
            Some(number) => number,
            None => {
                // Cannot fail: `reserve` has made room.
                places.push_within_capacity(None).map_err(|_| ENOMEM)?;
                places.len() - 1
            }
        };
        if let Some(free) = places.get_mut(number) {
            *free = place;
        }
        self.end.store(places.len(), Relaxed);
        Ok((number, bounces))
    }

    /// Returns whether there is at most one mirror. Context: any.
    #[inline]
    pub(super) fn are_few(&self) -> bool {
        peek_usize(&self.end) <= 1
    }

    /// Removes place `number`. The drop of the returned place waits for its users, and the caller
    /// must not hold a lock then.
    fn remove(&self, number: usize) -> Option<MirrorEntry> {
        let mut places = self.places.lock();
        let place = places.get_mut(number)?.take();
        while places.last().is_some_and(Option::is_none) {
            places.pop();
        }
        self.end.store(places.len(), Relaxed);
        place
    }

    /// Returns whether there is a mirror of `device`. Context: any but interrupts.
    fn has_device(&self, device: DeviceId) -> bool {
        let places = self.places.lock();
        places.iter().flatten().any(|place| place.device == device)
    }

    /// Enters place `number`. Returns `None` if it has no mirror, or none of `device` if one is
    /// given. Context: any but interrupts.
    #[inline]
    fn enter(&self, number: usize, device: Option<DeviceId>) -> Option<EnteredMirror> {
        let places = self.places.lock();
        let place = places.get(number)?.as_ref()?;
        if device.is_some_and(|device| device != place.device) {
            return None;
        }
        // Under the lock, so that a task that removes the place afterwards waits for this user.
        Some(EnteredMirror(place.mirror.get()))
    }

    /// Returns an iterator that enters all places one after the other, except `except`. It may omit
    /// a mirror that is opened concurrently. Context: any but interrupts.
    pub(crate) fn entered(
        &self,
        except: Option<usize>,
    ) -> impl Iterator<Item = EnteredMirror> + '_ {
        self.entered_of(None, except)
    }

    /// Iterates as [`Self::entered`], over mirrors of `device` only if one is given.
    pub(crate) fn entered_of(
        &self,
        device: Option<DeviceId>,
        except: Option<usize>,
    ) -> impl Iterator<Item = EnteredMirror> + '_ {
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

/// A mirror's place in its space. Dropping it removes the place, and waits until no other task uses
/// the mirror.
///
/// # Context
///
/// The drop may sleep.
pub(crate) struct Membership {
    space: super::SpaceHandle,
    number: usize,
    bounces: Arc<Bounces>,
}

impl Membership {
    /// Adds `mirror` to `space`.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    #[inline(never)]
    pub(crate) fn new(space: super::SpaceHandle, mirror: Arc<dyn MirrorOps>) -> Result<Self> {
        let opening = super::OPENING.lock();
        let (number, bounces) = space.mirrors.add(mirror)?;
        drop(opening);
        Ok(Self {
            space,
            number,
            bounces,
        })
    }

    /// Returns the record of ranges of this process that thrash between the mirror's own memory and
    /// other memory.
    pub(crate) fn bounces(&self) -> &Bounces {
        &self.bounces
    }

    /// Returns the number of the place, which does not change.
    pub(crate) fn number(&self) -> usize {
        self.number
    }
}

impl Drop for Membership {
    // Not inlined: drivers must use the `OPENING` mutex of the library.
    #[inline(never)]
    fn drop(&mut self) {
        let opening = super::OPENING.lock();
        let place = self.space.mirrors.remove(self.number);
        // `opening` excludes new mirrors of the device. As long as one is open, no other device can
        // get the same identity. Therefore attributes of this device never apply to another one.
        if let Some(place) = place.as_ref() {
            if !self.space.mirrors.has_device(place.device) {
                self.space.attributes.remove_device(place.device);
            }
        }
        drop(opening);
        // Not under a lock, because this waits for the users, and may drop the last reference of
        // the mirror.
        drop(place);
    }
}
