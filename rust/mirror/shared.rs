// SPDX-License-Identifier: GPL-2.0

//! State of a mirror, and the lock that protects its table.

use super::{
    flushes::{
        Flush,
        PendingFlushes, //
    },
    in_flight::InFlightMigrations,
    lost::LostRanges,
    Device,
    Walkers, //
};
use crate::{
    debug::{
        events::{
            Event,
            EvictReason, //
        },
        stats::Stats,
        trace::TraceContext, //
    },
    kernel::{
        identity::DeviceId,
        lock_classes,
        rcu_map::RcuArc,
        reentry::ReentryGuard, //
    },
    memory::Memory,
    mm::{
        addr::PageRange,
        dma::DmaWindows,
        notifier::NotifierTable, //
    },
    pgtable::{
        Format,
        Table,
        TableReader, //
    },
    policy::Immovable,
    space::{
        NotifierWindow,
        Space, //
    }, //
};
use kernel::{
    mm::MmWithUser,
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic,
            AtomicFlag, //
        },
        lock::mutex::MutexGuard,
        Arc,
        CondVar,
        LockClassKey,
        Mutex, //
    }, //
};

/// State of a mirror that the table lock protects.
pub(crate) struct MirrorState<F: Format> {
    pub(crate) table: Table<F>,
    pub(crate) in_flight: InFlightMigrations,
    /// Ranges in which entries were invalidated since the last restore, which maps memory again
    /// that the device must always have mapped, see
    /// [`Attributes::accessed_by`](crate::attributes::Attributes::accessed_by). Not in the state
    /// itself, which is moved on the stack when it is made.
    pub(crate) lost: KBox<LostRanges>,
    /// Parts of the address space in which faults need not look for pages that can migrate.
    pub(crate) immovable: Immovable,
}

/// Part of a mirror that is shared with its space, with migrations of other mirrors, and with
/// evictions.
#[pin_data]
pub(crate) struct MirrorShared<D: Device> {
    pub(super) device: D,
    /// The table lock and the state that it protects.
    #[pin]
    state: Mutex<MirrorState<D::Format>>,
    #[pin]
    pub(super) flushes: PendingFlushes<Flush<D>>,
    /// Identity of the mirror in tracepoints.
    pub(crate) trace: TraceContext,
    pub(super) stats: Stats,
    pub(super) reader: TableReader<D::Format>,
    /// Pages that are mapped for DMA.
    pub(crate) dma: Option<Arc<DmaWindows>>,
    pub(super) walkers: Option<Arc<Walkers<D::Walker>>>,
    /// Number of table updates whose flush has not completed. An update is counted before its first
    /// entry changes. While the number is not zero, an invalidation must flush even if it finds no
    /// entries: a concurrent update may have removed them, and the device may still use their
    /// translations.
    pub(super) changing: Atomic<usize>,
    /// State of the library for the address space.
    pub(crate) space: RcuArc<Space>,
    /// Identity that all mirrors of the device share: that of the owner of its memory, otherwise
    /// that of its DMA device. The device holds a reference, so that the identity is unique as long
    /// as a mirror exists.
    pub(super) shared_name: Option<DeviceId>,
    /// Number of pages that an eviction has invalidated and not reported yet.
    pub(super) taken: Atomic<usize>,
    /// Whether the last fault of the device had a policy that migrates memory. A hint, as
    /// `prefers`, so that no order is needed.
    places: AtomicFlag,
    /// Whether a fault of the device has met memory that prefers it.
    prefers: AtomicFlag,
    /// Signalled when a migration ends. Faults that found entries with marks wait for it.
    pub(super) ended: Pin<KBox<CondVar>>,
}

impl<D: Device> MirrorShared<D> {
    /// Creates the shared part of a mirror of `mm` with `state`, with the given name and class of
    /// the table lock.
    pub(super) fn new(
        mm: &MmWithUser,
        space: RcuArc<Space>,
        device: D,
        state: MirrorState<D::Format>,
        dma: Option<Arc<DmaWindows>>,
        (name, key): (&'static CStr, Pin<&'static LockClassKey>),
    ) -> impl PinInit<Self, Error> {
        let (ended, ended_key) = lock_classes::ended();
        let trace = TraceContext::new(mm);
        try_pin_init!(Self {
            walkers: device.walkers(),
            shared_name: {
                let memory = device.memory().map(Memory::owner);
                memory
                    .map(DeviceId::from)
                    .or_else(|| dma.as_ref().map(|windows| DeviceId::of(windows.device())))
            },
            reader: state.table.reader(),
            dma,
            device,
            state <- Mutex::new(state, name, key),
            flushes <- PendingFlushes::new(),
            trace,
            stats: Stats::new(),
            changing: Atomic::new(0),
            space,
            taken: Atomic::new(0),
            places: AtomicFlag::new(false),
            prefers: AtomicFlag::new(false),
            ended: KBox::pin_init(CondVar::new(ended, ended_key), GFP_KERNEL_ACCOUNT)?,
        }? Error)
    }

    /// Takes the table lock.
    ///
    /// # Context
    ///
    /// May sleep. In the lock order, the table lock is inside the mmap lock and folio locks.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, MirrorState<D::Format>> {
        self.state.lock()
    }

    /// Takes the table lock if it is not held.
    ///
    /// # Context
    ///
    /// Any but interrupts.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, MirrorState<D::Format>>> {
        self.state.try_lock()
    }

    /// Returns the driver's device.
    pub(crate) fn device(&self) -> &D {
        &self.device
    }

    /// Returns the pages that are mapped for DMA, or `None` if the format has no DMA addresses.
    #[inline]
    pub(super) fn dma(&self) -> Option<&Arc<DmaWindows>> {
        if D::Format::DMA {
            self.dma.as_ref()
        } else {
            None
        }
    }

    /// Prepares the DMA windows of `range`, so that its pages can be mapped under the table lock.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    /// - `ENODEV` if the DMA device was closed.
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    #[inline]
    pub(crate) fn prepare(&self, range: PageRange) -> Result {
        self.dma().map_or(Ok(()), |windows| windows.prepare(range))
    }

    /// Emits the tracepoint for `event` and, if the driver asked for events, calls
    /// [`Device::event`].
    ///
    /// # Context
    ///
    /// That of the operation that causes the event.
    // Always inlined, so that the kind of the event is a compile-time constant.
    #[inline(always)]
    pub(crate) fn emit(&self, event: &Event) {
        self.trace.trace(event);
        if self.device.wants_events() {
            let _within = ReentryGuard::enter();
            self.device.event(self.trace.mirror(), event);
        }
    }

    /// Returns whether faults of the device migrate memory to it, as a policy or attributes decide.
    pub(super) fn places(&self) -> bool {
        self.places.load(Relaxed) || self.prefers.load(Relaxed)
    }

    /// Records whether a fault of the device has a policy that migrates memory.
    pub(crate) fn set_places(&self, places: bool) {
        // Faults are frequent, and nearly always the same.
        if self.places.load(Relaxed) != places {
            self.places.store(places, Relaxed);
        }
    }

    /// Records that a fault of the device has met memory that prefers it.
    pub(crate) fn set_prefers(&self) {
        if !self.prefers.load(Relaxed) {
            self.prefers.store(true, Relaxed);
        }
    }

    /// Reports the end of an eviction, if it invalidated pages of this mirror.
    pub(crate) fn evicted(&self, need: EvictReason) {
        let pages = self.taken.xchg(0, Relaxed);
        if pages != 0 {
            self.emit(&Event::Evict { need, pages });
        }
    }
}

impl<D: Device> NotifierTable<NotifierWindow> for MirrorShared<D> {
    type Protected = MirrorState<D::Format>;

    fn mutex(&self) -> &Mutex<Self::Protected> {
        &self.state
    }

    fn is_notified_by(&self, window: &NotifierWindow) -> bool {
        window.is_of(&self.space)
    }
}
