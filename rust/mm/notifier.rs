// SPDX-License-Identifier: GPL-2.0

//! Interval notifiers: what tells a device that the CPU's page table changes.
//!
//! The kernel's protocol is safe only when the retry check and the update of the device's page
//! table happen under the very lock that the invalidation callback takes. So the notifier owns that
//! lock and what it protects; the sequence is set in here, before the subscriber is asked.
//!
//! C header: [`include/linux/mmu_notifier.h`](srctree/include/linux/mmu_notifier.h)

use super::addr::PageRange;
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
        lock::mutex::{MutexBackend, MutexGuard},
        LockClassKey, Mutex,
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
    _borrow: PhantomData<&'a ()>,
}

impl Event<'_> {
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
            _borrow: PhantomData,
        }
    }
}

/// What is told of changes. It borrows nothing: the kernel calls it until the notifier is dropped,
/// which `mem::forget` can prevent.
pub trait Subscriber: Send + Sync + Sized + 'static {
    /// What the notifier's lock protects: the device's page table.
    type Protected: Send + Unpin;

    /// What is left to wait for after the lock was released, such as a TLB flush.
    type Pending: Send;

    /// Makes the device forget translations. The lock is held and the sequence is set.
    ///
    /// It must not allocate with reclaim or wait for memory; it may sleep if
    /// [`Event::blockable`]. It must have had all of its effect, but for what it returns.
    ///
    /// `Break` refuses the event, which is only heeded if waiting is not allowed.
    fn invalidate(
        &self,
        protected: &mut Self::Protected,
        event: &Event<'_>,
    ) -> ControlFlow<(), Option<Self::Pending>>;

    /// Waits for what [`Self::invalidate`] returned. Other notifiers' work overlaps with it.
    ///
    /// Context: the lock is not held; may sleep if the event was blockable.
    fn finish(&self, pending: Self::Pending);
}

/// A subscription to all changes of one address space.
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
    protected: Mutex<S::Protected>,
    #[pin]
    slot: Opaque<Slot<S>>,
    slot_busy: AtomicFlag,
    subscriber: S,
    mm: ARef<Mm>,
}

/// Place for one second pass; when it is taken, the callback does both passes at once.
#[repr(C)]
struct Slot<S: Subscriber> {
    finish: bindings::mmu_interval_notifier_finish,
    pending: Option<S::Pending>,
}

// SAFETY: The C side synchronizes its own fields; `protected` is a mutex over `Send` data, and the
// subscriber is `Send + Sync`.
unsafe impl<S: Subscriber> Send for IntervalNotifier<S> {}
// SAFETY: As above.
unsafe impl<S: Subscriber> Sync for IntervalNotifier<S> {}

impl<S: Subscriber> IntervalNotifier<S> {
    const OPS: bindings::mmu_interval_notifier_ops = bindings::mmu_interval_notifier_ops {
        invalidate: None,
        invalidate_start: Some(Self::invalidate_start),
        invalidate_finish: Some(Self::invalidate_finish),
    };

    /// Subscribes to all changes of `mm`.
    ///
    /// `name` and `key` make the lock's class, of which each driver should have its own.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINTR` if the task was killed. Context: may sleep.
    pub fn new<'a>(
        mm: &'a MmWithUser,
        subscriber: S,
        protected: S::Protected,
        name: &'static CStr,
        key: Pin<&'static LockClassKey>,
    ) -> impl PinInit<Self, Error> + use<'a, S> {
        let mm_ref: ARef<Mm> = ARef::from(&**mm);
        try_pin_init!(Self {
            protected <- Mutex::new(protected, name, key),
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
            mm: mm_ref,
            // Last, because callbacks may come before the insertion returns.
            // INVARIANT: `sub` is inserted when this succeeds.
            sub <- Opaque::try_ffi_init(|sub: *mut bindings::mmu_interval_notifier| {
                // SAFETY: `sub` is pinned and lives until `drop` removes it; `mm` is in use.
                to_result(unsafe {
                    bindings::mmu_interval_notifier_insert(
                        sub,
                        mm.as_raw(),
                        0,
                        usize::MAX & kernel::page::PAGE_MASK,
                        &Self::OPS,
                    )
                })
            }),
        }? Error)
    }

    /// The subscriber.
    pub fn subscriber(&self) -> &S {
        &self.subscriber
    }

    /// The address space, unless nobody uses it any more.
    pub fn mm(&self) -> Option<ARef<MmWithUser>> {
        self.mm.mmget_not_zero()
    }

    /// Whether the address space is still in use. It may end right after. Context: any.
    pub fn is_alive(&self) -> bool {
        // SAFETY: We hold a reference to the `mm_struct`.
        unsafe { bindings::rust_hmm_mm_in_use(self.mm.as_raw()) }
    }

    /// Names the address space.
    pub(crate) fn space(&self) -> Cookie {
        Cookie::of_mm(self.mm.as_raw())
    }

    /// Takes the lock. Context: may sleep; below the mmap lock and folio locks.
    pub fn lock(&self) -> MutexGuard<'_, S::Protected> {
        self.protected.lock()
    }

    /// Starts a read section and returns its sequence number.
    ///
    /// Context: waits for invalidations under way, so neither the lock nor any lock that one of
    /// them may hold can be held: not the mmap lock, no folio lock.
    pub fn read_begin(&self) -> Seq {
        // SAFETY: Inserted by the type invariant.
        Seq(unsafe { bindings::mmu_interval_read_begin(self.sub.get()) })
    }

    /// Whether an invalidation came since `seq`. The guard proves that none can come now.
    pub fn read_retry(&self, guard: &MutexGuard<'_, S::Protected>, seq: Seq) -> bool {
        if !ptr::eq(guard.lock_ref(), self.protected_ref()) || fails(Point::Retry) {
            return true;
        }
        // SAFETY: Inserted by the type invariant.
        unsafe { bindings::rust_hmm_interval_read_retry(self.sub.get(), seq.0) }
    }

    fn protected_ref(&self) -> &kernel::sync::lock::Lock<S::Protected, MutexBackend> {
        &self.protected
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

        let mut protected = if blockable {
            this.protected.lock()
        } else {
            match this.protected.try_lock() {
                Some(guard) => guard,
                None => return false,
            }
        };

        // Always, also for our own events: else a fault that collected before a migration would
        // install its page after it.
        //
        // SAFETY: Called from the callback, under the lock that `read_retry` is called under.
        unsafe { bindings::rust_hmm_interval_set_seq(sub, seq) };

        let Some(range) = PageRange::covering(raw.start, raw.end) else {
            return true;
        };
        let event = Event {
            reason: Reason::from_raw(raw.event),
            range,
            blockable,
            owner: Cookie(raw.owner as usize),
            _borrow: PhantomData,
        };
        let pending = match this.subscriber.invalidate(&mut protected, &event) {
            ControlFlow::Continue(pending) => pending,
            ControlFlow::Break(()) => return blockable,
        };
        drop(protected);

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
