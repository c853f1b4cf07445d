// SPDX-License-Identifier: GPL-2.0

//! A device whose callbacks call the API, and drop objects that a test passes to them.

use super::{
    dropped::{
        Counted,
        Ends, //
    },
    file::Gate,
    *, //
};
use crate::{
    attributes::AttributeUpdate,
    connection::Connection,
    debug::events::Event,
    host_lock::{
        Coherence,
        LockError, //
    },
    kernel::{
        cancel::CancelToken,
        fence::{
            DriverFence,
            Fence, //
        },
        reentry, //
    },
    mm::{
        device_pages::DeviceRange,
        table_memory::{
            TableMemory,
            TableWrites, //
        }, //
    },
    policy::NoMigration, //
};
use kernel::sync::{
    atomic::AtomicFlag,
    Mutex,
    SpinLock, //
};

/// Callback from which the API is called.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    FlushStart,
    FlushWait,
    Copy,
    RingDoorbell,
    Choose,
    Connection,
    CopyTo,
    Cancelled,
    MemoryEvent,
    CopyAtOnce,
    Freed,
    FlushSleeps,
    FlushWalker,
    Event,
    Written,
    Publish,
}

pub(super) const CALLBACK_COUNT: usize = From::Publish as usize + 1;

/// Mirror and range for the calls, or `None` while callbacks make no calls.
pub(super) type Target = Option<(Arc<Mirror<Nosy>>, PageRange)>;

/// State of the callbacks, and the results of their calls.
#[pin_data]
pub(super) struct Probe {
    // A spinlock, because pages may be freed in atomic context.
    #[pin]
    target: SpinLock<Target>,
    /// Objects that the next callback of the given kind drops.
    #[pin]
    cargo: SpinLock<Option<(From, Cargo)>>,
    /// Number of calls of the API, by callback.
    pub(super) called: [Atomic<u32>; CALLBACK_COUNT],
    /// Number of refused calls, by callback.
    pub(super) refused: [Atomic<u32>; CALLBACK_COUNT],
    /// Number of times that walkers were entered, by callback.
    pub(super) entered: [Atomic<u32>; CALLBACK_COUNT],
    pub(super) walkers: Arc<Walkers<u32>>,
    fence: Fence,
    /// Behaviour of the device node that calls try to create.
    gate: Arc<Gate>,
    /// Set during [`Probe::ask`], whose calls may cause events. Their callbacks must make no calls.
    asking: AtomicFlag,
    /// Number of callbacks that were called by a call of the API within a callback.
    nested: Atomic<u32>,
    /// If present, the next copy sets it, and does not complete until it is cancelled.
    #[pin]
    pub(super) stop: Mutex<Option<CancelToken>>,
    #[pin]
    kept: Mutex<Option<CopyJob>>,
}

/// Number of calls of [`call_all`].
pub(super) const CALL_COUNT: u32 = 23;

/// Calls all functions that may sleep. Returns the number of calls, and the number of calls that
/// returned `EDEADLK`.
pub(super) fn call_all(mirror: &Mirror<Nosy>, range: PageRange) -> (u32, u32) {
    let refused = Err(reentry::deadlock());
    let current = current!();
    let again = current.mm().map(|mm| {
        let device = Nosy(mirror.device().0.clone());
        crate::new_mirror!(mm, device).map(|_| ())
    });
    let memory = &mirror.device().0.memory;
    let none = DeviceRange { first: 0, count: 0 };
    let locked = mirror.lock(range, &[], Coherence::Coarse);
    let calls = [
        mirror.fault(range, Access::Read),
        mirror.fault(range, Access::Snapshot),
        mirror.snapshot(range, |_| ()),
        mirror.make_exclusive(range),
        mirror.discard(range),
        mirror.lock_table().map(|_| ()),
        mirror.migrate(range).to_device().map(|_| ()),
        mirror.migrate(range).to_system().map(|_| ()),
        mirror.drain().map(|_| ()),
        memory.evict_all().map(|_| ()),
        memory.evict_all_killable().map(|_| ()),
        again.unwrap_or(refused),
        mirror
            .fault_with_policy(range, Access::Read, &NoMigration)
            .map(|_| ()),
        mirror.pull(range, mirror).map(|_| ()),
        mirror.set_attributes(range, &AttributeUpdate::default()),
        mirror.attributes(range).map(|_| ()),
        locked.map(|_| ()).map_err(|refused| match refused {
            LockError::Error(error) => error,
            _ => EINVAL,
        }),
        mirror.unlock(0),
        mirror.device().0.probe.fence.synchronize(None),
        memory.offline_pages(none).map(|_| ()),
        memory.online_pages(none),
        mirror.device().0.probe.gate.try_node(),
        // The last call, because it unplugs the memory if it is not refused.
        memory.unplug().map(|_| ()),
    ];
    // Functions that never sleep may be called in any callback.
    let _alive = mirror.is_alive();
    let count = calls.iter().filter(|call| **call == refused).count();
    (calls.len() as u32, count as u32)
}

/// Objects that a callback drops.
pub(super) type Cargo = KVec<KBox<dyn Send>>;

impl Probe {
    /// Makes the next callback of the kind `from` drop `cargo`.
    pub(super) fn load(&self, from: From, cargo: Cargo) {
        *self.cargo.lock() = Some((from, cargo));
    }

    /// Returns whether no callback has dropped the cargo yet.
    pub(super) fn is_loaded(&self) -> bool {
        self.cargo.lock().is_some()
    }

    fn unload(&self, from: From) {
        let mut cargo = self.cargo.lock();
        let taken = match &*cargo {
            Some((at, _)) if *at == from => cargo.take(),
            _ => None,
        };
        drop(cargo);
        drop(taken);
    }

    fn ask(&self, from: From) {
        self.unload(from);
        let Some((mirror, range)) = self.target.lock().clone() else {
            return;
        };
        if self.asking.xchg(true, Relaxed) {
            self.nested.add(1, Relaxed);
            return;
        }
        let (called, refused) = call_all(&mirror, range);
        let at = from as usize;
        for (counters, by) in [(&self.called, called), (&self.refused, refused)] {
            if let Some(counter) = counters.get(at) {
                counter.add(by, Relaxed);
            }
        }
        let entered = mirror.enter(0).is_ok() && self.walkers.with(0, |_| ()).is_some();
        if let Some(counter) = self.entered.get(at) {
            counter.add(u32::from(entered), Relaxed);
        }
        self.asking.store(false, Relaxed);
    }

    /// Returns the numbers of calls from `from`, of refused calls, and of walkers that were
    /// entered.
    pub(super) fn counts(&self, from: From) -> [u32; 3] {
        [&self.called, &self.refused, &self.entered].map(|counters| {
            let counter = counters.get(from as usize);
            counter.map_or(0, |counter| counter.load(Relaxed))
        })
    }

    /// Returns whether the API was called from `from`, all calls were refused and have called no
    /// callback, and walkers could be entered.
    pub(super) fn was_refused(&self, from: From) -> bool {
        let [called, refused, entered] = self.counts(from);
        let is_nested = self.nested.load(Relaxed) > 0;
        called > 0 && called == refused && entered * CALL_COUNT == called && !is_nested
    }
}

pub(super) struct NosyMemory(Arc<Probe>);

impl MemoryOps for NosyMemory {
    fn copy(&self, job: CopyJob) {
        self.0.ask(From::Copy);
        if let Some(stop) = self.0.stop.lock().take() {
            *self.0.kept.lock() = Some(job);
            stop.set();
            return;
        }
        // Complete without a copy, because no test checks the contents.
        job.complete(Ok(()));
    }

    fn copy_sync(&self, _copy: &CopyDesc<'_>) -> Option<Result> {
        self.0.ask(From::CopyAtOnce);
        None
    }

    fn freed(&self, _range: DeviceRange) {
        self.0.ask(From::Freed);
    }

    fn cancelled(&self) {
        self.0.ask(From::Cancelled);
        drop(self.0.kept.lock().take());
    }

    fn suggest_page(&self, _order: u32) -> Option<usize> {
        self.0.ask(From::Choose);
        None
    }

    fn connection(&self, _other: &Self, _kind: MemoryKind) -> Connection {
        self.0.ask(From::Connection);
        Connection::Migratable
    }

    fn copy_to(&self, _other: &Self, job: CopyJob) {
        self.0.ask(From::CopyTo);
        job.complete(Ok(()));
    }

    fn wants_events(&self) -> bool {
        true
    }

    fn event(&self, _space: MmId, _event: &Event) {
        self.0.ask(From::MemoryEvent);
    }

    fn ring_doorbell(&self) {
        self.0.ask(From::RingDoorbell);
    }
}

/// Callbacks after writes to the table of a hardware walker.
struct NosyWrites(Arc<Probe>);

impl TableWrites for NosyWrites {
    fn written(&self, _address: u64, _bytes: usize) {
        self.0.ask(From::Written);
    }

    fn publish(&self) {
        self.0.ask(From::Publish);
    }
}

#[pin_data]
pub(super) struct Card {
    pub(super) probe: Arc<Probe>,
    writes: Arc<NosyWrites>,
    #[pin]
    pub(super) memory: Memory<NosyMemory>,
}

pub(super) struct Nosy(pub(super) Arc<Card>);

impl Device for Nosy {
    type Memory = NosyMemory;
    type Format = Radix4;
    type Walker = u32;
    type Flush = ();

    fn memory(&self) -> Option<&Memory<NosyMemory>> {
        Some(&self.0.memory)
    }

    fn walkers(&self) -> Option<Arc<Walkers<u32>>> {
        Some(self.0.probe.walkers.clone())
    }

    fn table_memory(&self) -> TableMemory {
        TableMemory::plain().with_writes(self.0.writes.clone())
    }

    fn flush_sleeps(&self) -> bool {
        self.0.probe.ask(From::FlushSleeps);
        true
    }

    fn wants_events(&self) -> bool {
        true
    }

    fn event(&self, _mirror: u32, _event: &Event) {
        self.0.probe.ask(From::Event);
    }

    fn flush_start(&self, _range: PageRange) {
        self.0.probe.ask(From::FlushStart);
    }

    fn flush_walker(&self, _flush: &(), _walker: &mut u32, _range: PageRange) {
        self.0.probe.ask(From::FlushWalker);
    }

    fn flush_wait(&self, (): ()) {
        self.0.probe.ask(From::FlushWait);
    }
}

/// Creates a mirror whose callbacks can call its API, and maps a new range of `pages` pages.
pub(super) fn nosy(pages: usize) -> Result<(Arc<Mirror<Nosy>>, PageRange)> {
    let range = map(pages)?;
    let probe = Arc::pin_init(
        try_pin_init!(Probe {
            target <- kernel::new_spinlock!(None),
            cargo <- kernel::new_spinlock!(None),
            called: [const { Atomic::new(0) }; CALLBACK_COUNT],
            refused: [const { Atomic::new(0) }; CALLBACK_COUNT],
            entered: [const { Atomic::new(0) }; CALLBACK_COUNT],
            walkers: Walkers::new(2, |_| Ok(0))?,
            // The fence has completed, so that a call which is not refused returns immediately.
            fence: DriverFence::new(FenceType::NONE)?.fence(),
            gate: Gate::new(Counted::new(&Ends::new()?))?,
            asking: AtomicFlag::new(false),
            nested: Atomic::new(0),
            stop <- kernel::new_mutex!(None),
            kept <- kernel::new_mutex!(None),
        }? Error),
        GFP_KERNEL,
    )?;
    let card = Arc::pin_init(
        try_pin_init!(Card {
            memory <- Memory::new(NosyMemory(probe.clone()), MemoryKind::Private, PMD_PAGES),
            writes: Arc::new(NosyWrites(probe.clone()), GFP_KERNEL)?,
            probe,
        }? Error),
        GFP_KERNEL,
    )?;
    let current = current!();
    let mm = current.mm().ok_or(EINVAL)?;
    let mirror = Arc::new(crate::new_mirror!(mm, Nosy(card))?, GFP_KERNEL)?;
    Ok((mirror, range))
}

/// Makes the callbacks call the API of the mirror until it is dropped.
pub(super) struct ArmedProbe<'a>(pub(super) &'a Probe);

impl<'a> ArmedProbe<'a> {
    pub(super) fn new(mirror: &'a Arc<Mirror<Nosy>>, range: PageRange) -> Self {
        let probe = &mirror.device().0.probe;
        *probe.target.lock() = Some((mirror.clone(), range));
        Self(probe)
    }
}

impl Drop for ArmedProbe<'_> {
    fn drop(&mut self) {
        *self.0.target.lock() = None;
    }
}
