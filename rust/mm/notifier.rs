// SPDX-License-Identifier: GPL-2.0

//! Interval notifiers: what tells a device that the CPU's page table changes.
//!
//! The kernel's protocol is safe only when the retry check and the update of the device's page table happen under a lock
//! that the invalidation callback takes, too. The sequence is set before the subscriber is asked, who takes that lock: an
//! update that was checked before has happened when the subscriber looks, and one that is checked later is refused.
//! [`Member`] is what has such a lock.
//!
//! C header: [`include/linux/mmu_notifier.h`](srctree/include/linux/mmu_notifier.h)

use super::{addr::PageRange, registration::Registered};
use crate::{
    bindings,
    inject::{fails, Point},
};
use core::{marker::PhantomData, ops::ControlFlow, ptr};
use kernel::{
    error::to_result,
    ffi,
    mm::{Mm, MmWithUser},
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            ordering::{Acquire, Release},
            AtomicFlag, //
        },
        lock::mutex::MutexGuard,
        Mutex, //
    },
    types::Opaque, //
};

/// Why the CPU's page table changes. See `enum mmu_notifier_event`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The range is unmapped or moved.
    Unmap,
    /// Entries are replaced or removed.
    Clear,
    /// The access rights of the mapping change; read access may go.
    ProtectionVma,
    /// Single pages lose write access; they stay mapped.
    ProtectionPage,
    /// Pages lose write access so that the next write is noticed; they stay mapped.
    SoftDirty,
    /// The address space ends.
    Release,
    /// Pages are collected for migration.
    Migrate,
    /// A page becomes exclusive to a device.
    Exclusive,
}

impl Reason {
    fn from_raw(event: bindings::mmu_notifier_event) -> Self {
        match event {
            bindings::mmu_notifier_event_MMU_NOTIFY_UNMAP => Self::Unmap,
            bindings::mmu_notifier_event_MMU_NOTIFY_PROTECTION_VMA => Self::ProtectionVma,
            bindings::mmu_notifier_event_MMU_NOTIFY_PROTECTION_PAGE => Self::ProtectionPage,
            bindings::mmu_notifier_event_MMU_NOTIFY_SOFT_DIRTY => Self::SoftDirty,
            bindings::mmu_notifier_event_MMU_NOTIFY_RELEASE => Self::Release,
            bindings::mmu_notifier_event_MMU_NOTIFY_MIGRATE => Self::Migrate,
            bindings::mmu_notifier_event_MMU_NOTIFY_EXCLUSIVE => Self::Exclusive,
            // An event that we do not know may do anything.
            _ => Self::Clear,
        }
    }

    /// Whether the event takes away write access only: reading stays right.
    pub fn keeps_reads(self) -> bool {
        matches!(self, Self::ProtectionPage | Self::SoftDirty)
    }
}

/// Names who causes a migration: an address that nothing else has meanwhile. It is never followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie(usize);

impl Cookie {
    /// The address of `place`, which must stay in place as long as the name is used. Something without a
    /// size has no address of its own, and does not compile.
    pub fn of<T>(place: &T) -> Self {
        const { assert!(size_of::<T>() != 0) };
        Self(ptr::from_ref(place) as usize)
    }

    /// Nobody.
    pub const NONE: Self = Self(0);

    /// The name that a driver in C gives, the address of something of its own.
    pub(crate) fn of_driver(place: *const ffi::c_void) -> Self {
        Self(place as usize)
    }

    /// The address one byte into `place`: what begins there, or encloses it, has another name.
    pub(super) fn inside<T>(place: &T) -> Self {
        const { assert!(size_of::<T>() > 1 && align_of::<T>() > 1) };
        Self(ptr::from_ref(place) as usize + 1)
    }

    /// Names an address space.
    pub(super) fn of_mm(mm: *const bindings::mm_struct) -> Self {
        Self(mm as usize)
    }

    /// Names the address space of which `mm` is a reference.
    pub(crate) fn of_mm_ref(mm: &Mm) -> Self {
        Self::of_mm(mm.as_raw())
    }

    /// Names the address space of `mm`.
    pub(crate) fn of_space(mm: &MmWithUser) -> Self {
        Self::of_mm(mm.as_raw())
    }

    /// A number that differs between two that are in use.
    pub(crate) fn number(self) -> usize {
        self.0
    }

    pub(super) fn as_ptr(self) -> *mut ffi::c_void {
        self.0 as *mut ffi::c_void
    }
}

/// One change of the CPU's page table, as the subscriber sees it.
pub struct Event<'a> {
    /// What happens.
    pub reason: Reason,
    /// Where.
    pub range: PageRange,
    /// Whether waiting is allowed. The OOM reaper does not allow it.
    pub blockable: bool,
    owner: Cookie,
    /// Where the core describes it, and its sequence: the same for all notifiers that are told of it.
    call: (usize, usize),
    _borrow: PhantomData<&'a ()>,
}

impl Event<'_> {
    /// A number that is, as good as always, the same for all notifiers that are told of the event, and another one for
    /// the next event.
    pub fn number(&self) -> usize {
        let (call, seq) = self.call;
        call.wrapping_add(seq.rotate_left(48))
    }

    /// The same event, as far as it is about `range`.
    pub(crate) fn within(&self, range: PageRange) -> Self {
        Self { range, ..*self }
    }

    /// Whether the event was caused by the migration or exclusive access that carries `cookie`.
    pub fn is_from(&self, cookie: Cookie) -> bool {
        matches!(self.reason, Reason::Migrate | Reason::Exclusive) && self.owner == cookie
    }

    /// An event that did not happen.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(crate) fn for_test(reason: Reason, range: PageRange, owner: Cookie) -> Self {
        Self {
            reason,
            range,
            blockable: true,
            owner,
            call: (0, 0),
            _borrow: PhantomData,
        }
    }
}

/// What is told of changes. It borrows nothing: the kernel calls it until the notifier is dropped,
/// which `mem::forget` can prevent.
pub trait Subscriber: Send + Sync + Sized + 'static {
    /// What is left to wait for, such as TLB flushes.
    type Pending: Send;

    /// Makes devices forget translations: takes the lock of each [`Member`], and changes its page table. The sequence is
    /// set.
    ///
    /// It must not allocate with reclaim or wait for memory; it may sleep if
    /// [`Event::blockable`]. It must have had all of its effect, but for what is left.
    ///
    /// What is left to wait for is put into `pending`, which is `None`. It is large, and most
    /// events leave nothing, so that it is not returned.
    ///
    /// `Break` refuses the event, which is only heeded if waiting is not allowed. Then nothing is
    /// left.
    fn invalidate(&self, event: &Event<'_>, pending: &mut Option<Self::Pending>)
        -> ControlFlow<()>;

    /// Waits for what [`Self::invalidate`] has left. Other notifiers' work overlaps with it.
    ///
    /// Context: no lock is held; may sleep if the event was blockable.
    fn finish(&self, pending: Self::Pending);
}

/// A device page table with its lock, which a subscriber takes at each event.
pub trait Member<S: Subscriber> {
    /// What the lock protects: the device's page table.
    type Protected;

    /// The lock.
    fn mutex(&self) -> &Mutex<Self::Protected>;

    /// Whether `subscriber` takes that lock at each event, from now on at the latest.
    fn is_told_by(&self, subscriber: &S) -> bool;
}

/// A subscription to the changes of a part of an address space.
///
/// # Invariants
///
/// `sub` is inserted for the address space `mm`, and `slot` is only used by the holder of
/// `slot_busy`.
#[pin_data(PinnedDrop)]
pub struct IntervalNotifier<S: Subscriber> {
    #[pin]
    sub: Opaque<bindings::mmu_interval_notifier>,
    #[pin]
    slot: Opaque<Slot<S>>,
    slot_busy: AtomicFlag,
    subscriber: S,
    range: PageRange,
    _mm: ARef<Mm>,
}

/// Place for one second pass; when it is taken, the callback does both passes at once.
#[repr(C)]
struct Slot<S: Subscriber> {
    finish: bindings::mmu_interval_notifier_finish,
    pending: Option<S::Pending>,
}

// SAFETY: The C side synchronizes its own fields, and the subscriber is `Send + Sync`.
unsafe impl<S: Subscriber> Send for IntervalNotifier<S> {}
// SAFETY: As above.
unsafe impl<S: Subscriber> Sync for IntervalNotifier<S> {}

impl<S: Subscriber> IntervalNotifier<S> {
    const OPS: bindings::mmu_interval_notifier_ops = bindings::mmu_interval_notifier_ops {
        invalidate: None,
        invalidate_start: Some(Self::invalidate_start),
        invalidate_finish: Some(Self::invalidate_finish),
    };

    /// Subscribes to the changes of `range` in the address space `of`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`. Context: may sleep.
    pub(crate) fn new<'a>(
        of: Registered<'a>,
        range: PageRange,
        subscriber: S,
    ) -> impl PinInit<Self, Error> + use<'a, S> {
        let mm = of.mm();
        let mm_ref: ARef<Mm> = ARef::from(&**mm);
        try_pin_init!(Self {
            slot <- Opaque::ffi_init(|slot: *mut Slot<S>| {
                // SAFETY: `slot` may be written.
                unsafe {
                    slot.write(Slot {
                        finish: bindings::mmu_interval_notifier_finish::default(),
                        pending: None,
                    })
                }
            }),
            slot_busy: AtomicFlag::new(false),
            subscriber,
            range,
            _mm: mm_ref,
            // Last, because callbacks may come before the insertion returns.
            // INVARIANT: `sub` is inserted when this succeeds.
            sub <- Opaque::try_ffi_init(|sub: *mut bindings::mmu_interval_notifier| {
                // SAFETY: `sub` is pinned and lives until `drop` removes it; `mm` is in use.
                // By the invariant of `Registered` the mmap lock is not taken.
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
    }

    /// The subscriber.
    #[inline]
    pub fn subscriber(&self) -> &S {
        &self.subscriber
    }

    /// What it is told of.
    pub fn range(&self) -> PageRange {
        self.range
    }

    /// Starts a read section and returns its sequence number.
    ///
    /// Context: waits for invalidations under way, so that no lock can be held which one of them may need: not that of a
    /// [`Member`], not the mmap lock, no folio lock.
    pub fn read_begin(&self) -> Seq {
        // SAFETY: Inserted by the type invariant.
        Seq(unsafe { bindings::mmu_interval_read_begin(self.sub.get()) })
    }

    /// Takes the lock of `member`, unless an invalidation came since `seq`. With the lock held none can come.
    ///
    /// # Errors
    ///
    /// [`Retry`]. Context: may sleep; below the mmap lock and folio locks.
    pub fn lock_if_valid<'m, M: Member<S>>(
        &self,
        member: &'m M,
        seq: Seq,
    ) -> Result<MutexGuard<'m, M::Protected>, Retry> {
        if !member.is_told_by(&self.subscriber) || fails(Point::Retry) {
            return Err(Retry);
        }
        let guard = member.mutex().lock();
        // SAFETY: Inserted by the type invariant.
        match unsafe { bindings::rust_hmm_interval_read_retry(self.sub.get(), seq.0) } {
            true => Err(Retry),
            false => Ok(guard),
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
        // SAFETY: `sub` is the field of a live `Self`: it is removed before that goes away.
        let this = unsafe { &*kernel::container_of!(Opaque::cast_from(sub), Self, sub) };
        // SAFETY: Valid by the function's requirements.
        let raw = unsafe { &*range };
        let blockable = raw.flags & bindings::MMU_NOTIFIER_RANGE_BLOCKABLE != 0;

        // Always, also for our own events: else a fault that collected before a migration would install its page after
        // it. Before the lock of a member is taken, so that who holds it and has compared the sequence is waited for.
        //
        // SAFETY: Called from the callback.
        unsafe { bindings::rust_hmm_interval_set_seq(sub, seq) };

        let Some(range) = PageRange::covering(raw.start, raw.end) else {
            return true;
        };
        let event = Event {
            reason: Reason::from_raw(raw.event),
            range,
            blockable,
            owner: Cookie(raw.owner as usize),
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
        if !blockable || this.slot_busy.xchg(true, Acquire) {
            this.subscriber.finish(pending);
            return true;
        }
        let slot = this.slot.get();
        // SAFETY: We hold `slot_busy`, so nobody else touches the slot until `invalidate_finish`,
        // which follows because we return true with `finish` set.
        unsafe {
            (*slot).pending = Some(pending);
            *finish = &raw mut (*slot).finish;
        }
        true
    }

    /// # Safety
    ///
    /// Called by the core with what [`Self::invalidate_start`] returned.
    unsafe extern "C" fn invalidate_finish(finish: *mut bindings::mmu_interval_notifier_finish) {
        let slot = finish.cast::<Slot<S>>();
        // SAFETY: `finish` is the first field of the slot of a live notifier, which we still hold.
        let (sub, pending) = unsafe { ((*finish).notifier, (*slot).pending.take()) };
        // SAFETY: As in `invalidate_start`.
        let this = unsafe { &*kernel::container_of!(Opaque::cast_from(sub), Self, sub) };
        this.slot_busy.store(false, Release);
        if let Some(pending) = pending {
            this.subscriber.finish(pending);
        }
    }
}

#[pinned_drop]
impl<S: Subscriber> PinnedDrop for IntervalNotifier<S> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Inserted by the type invariant. This waits for running callbacks.
        unsafe { bindings::mmu_interval_notifier_remove(self.sub.get()) };
        // SAFETY: No callback runs any more, and the slot was initialized.
        unsafe { ptr::drop_in_place(self.slot.get()) };
    }
}

/// Sequence number of a read section.
#[derive(Clone, Copy)]
pub struct Seq(pub(super) usize);

/// Something changed since the section began: begin anew.
#[derive(Debug)]
pub struct Retry;
