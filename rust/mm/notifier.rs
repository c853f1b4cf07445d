// SPDX-License-Identifier: GPL-2.0

//! Interval notifiers: callbacks for changes of the CPU page table.
//!
//! The retry check and the update of the device page table must happen under a lock that the
//! invalidation callback takes, too. The callback counts the event first, and then calls the
//! subscriber, which takes that lock. An update whose check succeeded before is therefore visible
//! to the subscriber; a check after it fails. A [`NotifierTable`] is a device page table with such
//! a lock.
//!
//! The check compares the number of events of this notifier, not the sequence of the core. That
//! sequence is the same for all events of the mm until none is active, so that a section would
//! have to wait for events of other notifiers.
//!
//! `ops` has the traits of a subscriber, `event` the events. `event_count` counts them, and
//! `sections` has the read sections.
//!
//! C header: [`include/linux/mmu_notifier.h`](srctree/include/linux/mmu_notifier.h)

use super::{
    addr::PageRange,
    registration::{
        KnownSequence,
        RegisteredMm, //
    }, //
};
use crate::{
    bindings,
    inject::{
        fails,
        FailPoint, //
    },
    kernel::identity::EventOwner, //
};
use core::{
    marker::PhantomData,
    ptr, //
};
use kernel::{
    error::to_result,
    mm::Mm,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            ordering::{
                Acquire,
                Release, //
            },
            AtomicFlag, //
        },
        lock::mutex::MutexGuard,
        Arc, //
    },
    types::Opaque, //
};

mod event;
mod event_count;
mod ops;
mod sections;

pub use event::{
    NotifierEvent,
    NotifierRange, //
};

pub use ops::{
    NotifierOps,
    NotifierTable, //
};
use sections::ReadSections;

/// A registered `mmu_interval_notifier` for a range of an address space.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::mm::notifier::IntervalNotifier;
/// use rust_hmm::mm::notifier::NotifierOps;
/// use rust_hmm::mm::notifier::NotifierTable;
///
/// /// Makes one attempt to install a page. Returns whether no event has begun since `find`.
/// fn attempt<S: NotifierOps, T: NotifierTable<S>>(
///     notifier: &IntervalNotifier<S>,
///     table: &T,
///     find: impl FnOnce() -> Result<usize>,
///     install: impl FnOnce(&mut T::Protected, usize),
/// ) -> Result<bool>
/// where
///     T::Protected: Unpin,
/// {
///     let seq = notifier.read_begin()?;
///     let pfn = find()?;
///     let Ok(mut guard) = notifier.lock_if_valid(table, seq) else {
///         return Ok(false);
///     };
///     install(&mut guard, pfn);
///     Ok(true)
/// }
/// ```
///
/// # Invariants
///
/// `sub` is inserted for the address space `mm`, and `slot` is only used by the holder of
/// `slot_busy`.
#[pin_data(PinnedDrop)]
pub struct IntervalNotifier<S: NotifierOps> {
    #[pin]
    sub: Opaque<bindings::mmu_interval_notifier>,
    #[pin]
    slot: Opaque<SecondPass<S>>,
    slot_busy: AtomicFlag,
    #[pin]
    sections: ReadSections,
    known: Arc<KnownSequence>,
    subscriber: S,
    range: PageRange,
    _mm: ARef<Mm>,
}

/// Storage for one second pass. While it is in use, a concurrent callback does both passes at once.
#[repr(C)]
struct SecondPass<S: NotifierOps> {
    finish: bindings::mmu_interval_notifier_finish,
    pending: Option<S::Pending>,
}

// SAFETY: The core synchronizes access to `sub`, `slot_busy` that to `slot`, whose content is
// `Send`. The subscriber is `Send + Sync`.
unsafe impl<S: NotifierOps> Send for IntervalNotifier<S> {}
// SAFETY: The core synchronizes access to `sub`, `slot_busy` that to `slot`, whose content is
// `Send`. The subscriber is `Send + Sync`.
unsafe impl<S: NotifierOps> Sync for IntervalNotifier<S> {}

impl<S: NotifierOps> IntervalNotifier<S> {
    const OPS: bindings::mmu_interval_notifier_ops = bindings::mmu_interval_notifier_ops {
        invalidate: None,
        invalidate_start: Some(Self::invalidate_start),
        invalidate_finish: Some(Self::invalidate_finish),
    };

    /// Registers a notifier for `range` of the address space `of`.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available.
    ///
    /// # Context
    ///
    /// May sleep. The mmap lock must not be held.
    pub(crate) fn new<'a>(
        of: RegisteredMm<'a>,
        range: PageRange,
        subscriber: S,
    ) -> impl PinInit<Self, Error> + use<'a, S> {
        let mm = of.mm();
        let mm_ref: ARef<Mm> = ARef::from(&**mm);
        let known: Arc<KnownSequence> = of.known().clone();
        // Before the insertion.
        let before = known.get();
        try_pin_init!(Self {
            slot <- Opaque::ffi_init(|slot: *mut SecondPass<S>| {
                // SAFETY: `slot` may be written.
                unsafe {
                    slot.write(SecondPass {
                        finish: bindings::mmu_interval_notifier_finish::default(),
                        pending: None,
                    })
                }
            }),
            slot_busy: AtomicFlag::new(false),
            sections <- ReadSections::new(),
            known,
            subscriber,
            range,
            _mm: mm_ref,
            // Last, because callbacks may run before the insertion returns.
            // INVARIANT: `sub` is inserted when this succeeds.
            sub <- Opaque::try_ffi_init(|sub: *mut bindings::mmu_interval_notifier| {
                // SAFETY: `sub` is pinned and lives until `drop` removes it; `mm` is in use.
                // By the invariant of `RegisteredMm` the mmap lock is not taken.
                to_result(unsafe {
                    bindings::mmu_interval_notifier_insert(
                        sub,
                        mm.as_raw(),
                        range.start(),
                        range.end() - range.start(),
                        &Self::OPS,
                    )
                })
            }),
        }? Error)
        .pin_chain(move |this| {
            this.inserted(before);
            Ok(())
        })
    }

    /// Called after the insertion. `before` is a sequence that was known before it.
    ///
    /// An event that is active at the insertion may change the range without a callback, so that a
    /// read section must wait for its end. There was none, or all have ended, if the core has put
    /// the notifier into its tree, and the notifier's sequence was known before. If events are
    /// active, the core either puts the notifier into the tree after their end, or begins a
    /// sequence with the insertion.
    fn inserted(&self, before: usize) {
        let sub = self.sub.get();
        // SAFETY: Inserted by the type invariant.
        let in_tree = unsafe { bindings::rust_hmm_interval_is_in_tree(sub) };
        let seq = self.core_seq();
        // `seq <= before`, for numbers that wrap.
        let is_known = before.wrapping_sub(seq) <= usize::MAX / 2;
        if in_tree && is_known {
            self.sections.inserted_without_events();
        }
        self.known.set(seq);
    }

    /// Returns the subscriber.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn subscriber(&self) -> &S {
        &self.subscriber
    }

    /// Returns the range of addresses whose events are delivered.
    ///
    /// # Context
    ///
    /// Any.
    pub fn range(&self) -> PageRange {
        self.range
    }

    /// Starts a read section and returns its sequence number.
    ///
    /// # Errors
    ///
    /// - `EINTR`: a fatal signal is pending while an invalidation of another task may not have
    ///   ended.
    /// - `ENOMEM`: no memory is available to wait for such an invalidation.
    ///
    /// # Context
    ///
    /// May sleep: waits killably for concurrent invalidations. Must not be called in a callback.
    /// The caller must not hold a lock that an invalidation may need: the lock of a
    /// [`NotifierTable`], the mmap lock, or a folio lock.
    #[inline]
    pub fn read_begin(&self) -> Result<Seq> {
        // SAFETY: Inserted by the type invariant, and the owner of `sections`.
        Ok(Seq(unsafe { self.sections.begin(self.sub.get())? }))
    }

    /// Returns the sequence of the core that a callback has set last.
    ///
    /// # Context
    ///
    /// Any.
    pub(super) fn core_seq(&self) -> usize {
        // SAFETY: Inserted by the type invariant.
        unsafe { bindings::rust_hmm_interval_seq(self.sub.get()) }
    }

    /// Takes the lock of `member`, unless an invalidation has begun since `seq`. A later
    /// invalidation waits for the lock before it changes the device page table.
    ///
    /// # Errors
    ///
    /// - [`Retry`]: an invalidation has begun, or the subscriber does not take the lock of
    ///   `member`.
    ///
    /// # Context
    ///
    /// May sleep. The lock nests inside the mmap lock and folio locks.
    pub fn lock_if_valid<'m, M: NotifierTable<S>>(
        &self,
        member: &'m M,
        seq: Seq,
    ) -> Result<MutexGuard<'m, M::Protected>, Retry> {
        if !member.is_notified_by(&self.subscriber) || fails(FailPoint::Retry) {
            return Err(Retry);
        }
        let guard = member.mutex().lock();
        if self.sections.number() != seq.0 {
            Err(Retry)
        } else {
            Ok(guard)
        }
    }

    pub(super) fn as_raw(&self) -> *mut bindings::mmu_interval_notifier {
        self.sub.get()
    }

    /// # Safety
    ///
    /// Called by the core for an inserted `sub` of this type, with valid arguments.
    unsafe extern "C" fn invalidate_start(
        sub: *mut bindings::mmu_interval_notifier,
        range: *const bindings::mmu_notifier_range,
        seq: usize,
        finish: *mut *mut bindings::mmu_interval_notifier_finish,
    ) -> bool {
        // SAFETY: `sub` is the field of a live `Self`: `drop` removes it before the memory is
        // freed.
        let this = unsafe { &*kernel::container_of!(Opaque::cast_from(sub), Self, sub) };
        // SAFETY: Valid by the function's requirements.
        let raw = unsafe { &*range };
        let blockable = raw.flags & bindings::MMU_NOTIFIER_RANGE_BLOCKABLE != 0;

        // Also for own events: otherwise a fault that collected pages before a migration could
        // install a stale page after it. The event is counted before the lock of a member is taken:
        // taking that lock waits for a task that passed the retry check and still holds it. It is
        // counted after the sequence was set, for which a worker waits.
        //
        // SAFETY: Called from the invalidation callback of `sub`, with the sequence passed to it.
        unsafe { bindings::rust_hmm_interval_set_seq(sub, seq) };
        this.sections.event_begins();
        this.known.set(seq);

        let Some(range) = PageRange::covering(raw.start, raw.end) else {
            return true;
        };
        let event = NotifierRange {
            reason: NotifierEvent::from_raw(raw.event),
            range,
            blockable,
            owner: EventOwner::from_raw(raw.owner),
            call: (ptr::from_ref(raw).addr(), seq),
            _borrow: PhantomData,
        };
        let mut pending = None;
        if this.subscriber.invalidate(&event, &mut pending).is_break() {
            return blockable;
        }
        let Some(pending) = pending else {
            return true;
        };
        // Acquire: pairs with the release in `invalidate_finish`. The previous callback that used
        // the slot has taken its value before this one stores another.
        if !blockable || this.slot_busy.xchg(true, Acquire) {
            this.subscriber.finish(pending);
            return true;
        }
        let slot = this.slot.get();
        // SAFETY: This callback has set `slot_busy`, so it has exclusive access to the slot until
        // `invalidate_finish`. The core calls that because true is returned with `finish` set.
        unsafe {
            (*slot).pending = Some(pending);
            *finish = &raw mut (*slot).finish;
        }
        true
    }

    /// # Safety
    ///
    /// Called by the core with the `finish` that [`Self::invalidate_start`] stored.
    unsafe extern "C" fn invalidate_finish(finish: *mut bindings::mmu_interval_notifier_finish) {
        let slot = finish.cast::<SecondPass<S>>();
        // SAFETY: `finish` is the first field of the slot of a live notifier. `slot_busy` is still
        // set, which gives exclusive access.
        let (sub, pending) = unsafe { ((*finish).notifier, (*slot).pending.take()) };
        // SAFETY: `sub` is the field of a live `Self`: `drop` removes it, which waits for
        // callbacks, before the memory is freed.
        let this = unsafe { &*kernel::container_of!(Opaque::cast_from(sub), Self, sub) };
        // Release: the slot was emptied above, and this callback does not access it again.
        this.slot_busy.store(false, Release);
        if let Some(pending) = pending {
            this.subscriber.finish(pending);
        }
    }
}

#[pinned_drop]
impl<S: NotifierOps> PinnedDrop for IntervalNotifier<S> {
    fn drop(self: Pin<&mut Self>) {
        self.sections.wait_for_end();
        // SAFETY: Inserted by the type invariant. This waits for running callbacks.
        unsafe { bindings::mmu_interval_notifier_remove(self.sub.get()) };
        // SAFETY: The notifier was removed, so no callback can access the slot. `new` initialized
        // it.
        unsafe { ptr::drop_in_place(self.slot.get()) };
    }
}

/// Sequence number of a read section: the number of events before it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seq(u64);

/// Error: the read section was invalidated. The caller must start a new one.
#[derive(Debug)]
pub struct Retry;
