// SPDX-License-Identifier: GPL-2.0

//! The API called from within its own callbacks: what would wait for itself is refused, in KUnit.

use super::*;
use crate::{
    attributes::Change,
    connection::Connection,
    events::Event as Told,
    host_lock::{Grain, Refused},
    mm::{
        device_pages::DeviceRange,
        fence::{Fence, Pending},
    },
    policy::InPlace,
    queue::Stop,
    thread::Thread,
    within, //
};
use kernel::{
    sync::{
        atomic::{ordering::Acquire, AtomicFlag},
        Mutex, //
    },
    time::{
        delay::{fsleep, udelay},
        Delta, //
    },
};

/// Where the API is called from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    FlushStart,
    FlushWait,
    Copy,
    Kick,
    FailAllocation,
    Choose,
    Connection,
    CopyTo,
    Cancelled,
    MemoryEvent,
    Event,
}

const PLACES: usize = From::Event as usize + 1;

/// What the callbacks call, while they do.
type Target = Option<(Arc<Mirror<Nosy>>, PageRange)>;

/// What the callbacks know, and what their calls said.
#[pin_data]
struct Probe {
    #[pin]
    target: Mutex<Target>,
    /// By place: calls of the API, and those of them that were refused.
    called: [Atomic<u32>; PLACES],
    refused: [Atomic<u32>; PLACES],
    /// Walkers entered.
    entered: [Atomic<u32>; PLACES],
    walkers: Arc<Walkers<u32>>,
    fence: Fence,
    /// Within [`Probe::ask`]: what that calls may tell of events.
    asking: AtomicFlag,
    /// Set by the next copy, which then waits until it is cancelled.
    #[pin]
    stop: Mutex<Option<Stop>>,
    #[pin]
    kept: Mutex<Option<CopyJob>>,
}

/// Calls of [`call_all`].
const CALLS: u32 = 22;

/// Calls everything that waits. Returns how many calls there were, and how many were refused.
fn call_all(mirror: &Mirror<Nosy>, range: PageRange) -> (u32, u32) {
    let refused = Err(within::deadlock());
    let current = current!();
    let again = current.mm().map(|mm| {
        let device = Nosy(mirror.device().0.clone());
        crate::new_mirror!(mm, device).map(|_| ())
    });
    let memory = &mirror.device().0.memory;
    let none = DeviceRange { first: 0, count: 0 };
    let locked = mirror.lock(range, &[], Grain::Coarse);
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
        mirror.serve(range, Access::Read, &InPlace).map(|_| ()),
        mirror.pull(range, mirror).map(|_| ()),
        mirror.set_attributes(range, &Change::default()),
        mirror.attributes(range).map(|_| ()),
        locked.map(|_| ()).map_err(|refused| match refused {
            Refused::Error(error) => error,
            _ => EINVAL,
        }),
        mirror.unlock(0),
        mirror.device().0.probe.fence.synchronize(None),
        memory.remove(none).map(|_| ()),
        memory.add(none),
        // Last: afterwards the memory is gone.
        memory.unplug().map(|_| ()),
    ];
    // What never waits is fine anywhere.
    let _alive = mirror.is_alive();
    let count = calls.iter().filter(|call| **call == refused).count();
    (calls.len() as u32, count as u32)
}

impl Probe {
    fn ask(&self, from: From) {
        let Some((mirror, range)) = self.target.lock().clone() else {
            return;
        };
        if self.asking.xchg(true, Relaxed) {
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

    /// Whether it was called from there, and all was refused but the walkers.
    fn was_refused(&self, from: From) -> bool {
        let get = |counters: &[Atomic<u32>; PLACES]| {
            let counter = counters.get(from as usize);
            counter.map_or(0, |counter| counter.load(Relaxed))
        };
        get(&self.called) > 0
            && get(&self.called) == get(&self.refused)
            && get(&self.entered) * CALLS == get(&self.called)
    }
}

struct NosyMemory(Arc<Probe>);

impl MemoryOps for NosyMemory {
    fn copy(&self, job: CopyJob) {
        self.0.ask(From::Copy);
        if let Some(stop) = self.0.stop.lock().take() {
            *self.0.kept.lock() = Some(job);
            stop.set();
            return;
        }
        // The contents do not matter here.
        job.complete(Ok(()));
    }

    fn cancelled(&self) {
        self.0.ask(From::Cancelled);
        drop(self.0.kept.lock().take());
    }

    fn choose(&self, _order: u32) -> Option<usize> {
        self.0.ask(From::Choose);
        None
    }

    fn connection(&self, _other: &Self, _kind: Kind) -> Connection {
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

    fn event(&self, _space: Cookie, _event: &Told) {
        self.0.ask(From::MemoryEvent);
    }

    fn kick(&self) {
        self.0.ask(From::Kick);
    }

    fn fail_allocation(&self, _order: u32) -> bool {
        self.0.ask(From::FailAllocation);
        false
    }
}

#[pin_data]
struct Card {
    probe: Arc<Probe>,
    #[pin]
    memory: Memory<NosyMemory>,
}

struct Nosy(Arc<Card>);

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

    fn wants_events(&self) -> bool {
        true
    }

    fn event(&self, _mirror: u32, _event: &Told) {
        self.0.probe.ask(From::Event);
    }

    fn flush_start(&self, _range: PageRange) {
        self.0.probe.ask(From::FlushStart);
    }

    fn flush_wait(&self, (): ()) {
        self.0.probe.ask(From::FlushWait);
    }
}

/// A mirror whose callbacks call it, for the pages of a new mapping.
fn nosy(pages: usize) -> Result<(Arc<Mirror<Nosy>>, PageRange)> {
    let range = map(pages)?;
    let probe = Arc::pin_init(
        try_pin_init!(Probe {
            target <- kernel::new_mutex!(None),
            called: [const { Atomic::new(0) }; PLACES],
            refused: [const { Atomic::new(0) }; PLACES],
            entered: [const { Atomic::new(0) }; PLACES],
            walkers: Walkers::new(2, |_| Ok(0))?,
            // It has ended: to wait for it is no more than to ask.
            fence: Pending::new(Cookie::NONE)?.fence(),
            asking: AtomicFlag::new(false),
            stop <- kernel::new_mutex!(None),
            kept <- kernel::new_mutex!(None),
        }? Error),
        GFP_KERNEL,
    )?;
    let card = Arc::pin_init(
        try_pin_init!(Card {
            memory <- Memory::new(NosyMemory(probe.clone()), Kind::Private, 512),
            probe,
        }? Error),
        GFP_KERNEL,
    )?;
    let current = current!();
    let mm = current.mm().ok_or(EINVAL)?;
    let mirror = Arc::new(crate::new_mirror!(mm, Nosy(card))?, GFP_KERNEL)?;
    Ok((mirror, range))
}

/// Lets the callbacks call the mirror as long as this exists.
struct Armed<'a>(&'a Probe);

impl<'a> Armed<'a> {
    fn new(mirror: &'a Arc<Mirror<Nosy>>, range: PageRange) -> Self {
        let probe = &mirror.device().0.probe;
        *probe.target.lock() = Some((mirror.clone(), range));
        Self(probe)
    }
}

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        *self.0.target.lock() = None;
    }
}

#[kunit_tests(rust_hmm_reentry)]
mod suite {
    use super::*;

    #[test]
    fn from_an_invalidation() -> Result {
        let (mirror, range) = nosy(4)?;
        mirror.fault(range, Access::Write)?;
        let armed = Armed::new(&mirror, range);
        unmap(range)?;
        assert!(armed.0.was_refused(From::FlushStart) && armed.0.was_refused(From::FlushWait));
        drop(armed);
        // It goes on as before.
        let range = map(1)?;
        mirror.fault(range, Access::Write)?;
        assert_eq!(mirror.lock_table()?.present(range), 1);
        Ok(())
    }

    #[test]
    fn from_a_discard() -> Result {
        let (mirror, range) = nosy(4)?;
        mirror.fault(range, Access::Write)?;
        let armed = Armed::new(&mirror, range);
        mirror.discard(range)?;
        assert!(armed.0.was_refused(From::FlushStart) && armed.0.was_refused(From::FlushWait));
        Ok(())
    }

    #[test]
    fn from_a_migration_and_back() -> Result {
        let (mirror, range) = nosy(4)?;
        store(range.start(), 1)?;
        mirror.fault(range, Access::Write)?;
        let armed = Armed::new(&mirror, range);
        assert_eq!(mirror.migrate(range).to_device()?.switched, 4);
        for from in [From::FlushStart, From::FlushWait, From::Copy, From::Kick] {
            assert!(armed.0.was_refused(from));
        }
        for from in [From::FailAllocation, From::Choose, From::Event] {
            assert!(armed.0.was_refused(from));
        }
        // The same in a CPU fault.
        for counters in [&armed.0.called, &armed.0.refused, &armed.0.entered] {
            counters
                .iter()
                .for_each(|counter| counter.store(0, Relaxed));
        }
        load(range.start())?;
        for from in [From::Copy, From::FlushWait, From::MemoryEvent] {
            assert!(armed.0.was_refused(from));
        }
        drop(armed);
        assert_eq!(mirror.device().0.memory.usage().0, 0);
        Ok(())
    }

    #[test]
    fn from_a_pull() -> Result {
        let (source, range) = nosy(2)?;
        let (mirror, _) = nosy(2)?;
        store(range.start(), 1)?;
        assert_eq!(source.migrate(range).to_device()?.moved, 2);
        let (here, there) = (Armed::new(&mirror, range), Armed::new(&source, range));
        assert_eq!(mirror.pull(range, &source)?.moved, 2);
        assert!(here.0.was_refused(From::Connection) && there.0.was_refused(From::Connection));
        assert!(there.0.was_refused(From::CopyTo) && here.0.was_refused(From::Choose));
        Ok(())
    }

    #[test]
    fn from_a_copy_that_is_cancelled() -> Result {
        let (mirror, range) = nosy(1)?;
        store(range.start(), 3)?;
        let stop = Stop::new()?;
        let armed = Armed::new(&mirror, range);
        *armed.0.stop.lock() = Some(stop.clone());
        let outcome = mirror.migrate(range).stop(stop).to_device()?;
        assert_eq!((outcome.moved, outcome.copy_failed), (0, 1));
        assert!(armed.0.was_refused(From::Cancelled));
        drop(armed);
        assert_eq!(load(range.start())?, 3);
        Ok(())
    }

    #[test]
    fn with_the_table_lock_and_from_a_snapshot() -> Result {
        let (mirror, range) = nosy(2)?;
        mirror.fault(range, Access::Read)?;
        let table = mirror.lock_table()?;
        assert_eq!(call_all(&mirror, range), (CALLS, CALLS));
        assert_eq!(table.present(range), 2);
        assert!(mirror.enter(0)?.walk(range.start()).is_some());
        drop(table);
        let mut pages = 0;
        mirror.snapshot(range, |_| {
            assert_eq!(call_all(&mirror, range), (CALLS, CALLS));
            pages += 1;
        })?;
        assert_eq!(pages, 2);
        // Nothing of it stays.
        mirror.fault(range, Access::Read)?;
        mirror.discard(range)
    }

    #[test]
    fn within_a_section() -> Result {
        let (mirror, range) = nosy(1)?;
        let walkers = &mirror.device().0.probe.walkers;
        mirror.fault(range, Access::Read)?;
        let section = mirror.enter(0)?;
        let refused = call_all(&mirror, range);
        let again = mirror.enter(0).err();
        let with = walkers.with(0, |_| ());
        drop(section);
        assert_eq!(refused, (CALLS, CALLS));
        assert_eq!((again, with), (Some(within::deadlock()), None));
        // A walker within a walker.
        let inner = walkers.with(1, |_| (walkers.with(1, |_| ()), mirror.enter(1).err()));
        assert_eq!(inner, Some((None, Some(within::deadlock()))));
        assert_eq!(walkers.with(1, |count| *count), Some(0));
        assert_eq!(call_all(&mirror, range).1, 0);
        Ok(())
    }

    /// Told by the threads of the next test.
    #[derive(Default)]
    struct Seen {
        inside: u32,
        refused: u32,
    }

    #[test]
    fn two_walkers_the_wrong_way_round() -> Result {
        let walkers = Walkers::new(2, |_| Ok(Seen::default()))?;
        let ready = Arc::new([const { Atomic::new(0u32) }; 2], GFP_KERNEL)?;
        let mut threads = KVec::new();
        for own in 0..2usize {
            let (walkers, ready) = (walkers.clone(), ready.clone());
            let thread = Thread::spawn(c"hmm-test", move || {
                walkers.with(own, |seen| {
                    seen.inside = 1;
                    if let (Some(mine), Some(theirs)) = (ready.get(own), ready.get(1 - own)) {
                        mine.store(1, Release);
                        // Until both are in theirs; on one processor that will never be.
                        for _ in 0..5000 {
                            if theirs.load(Acquire) != 0 {
                                break;
                            }
                            udelay(Delta::from_micros(100));
                        }
                    }
                    // One of them could get it when the other has left; never do both wait.
                    seen.refused = u32::from(walkers.with(1 - own, |_| ()).is_none());
                });
            })?;
            threads.push(thread, GFP_KERNEL)?;
        }
        // Not by their locks, for which this would spin on the processor that the other one needs.
        let all = || ready.iter().all(|ready| ready.load(Acquire) != 0);
        for _ in 0..5000 {
            if all() {
                break;
            }
            fsleep(Delta::from_millis(1));
        }
        assert!(all());
        drop(threads);
        let refused = |index| walkers.with(index, |seen| seen.refused);
        let both = refused(0).zip(refused(1)).ok_or(EINVAL)?;
        // If they met, one was refused at least.
        assert!(both.0 + both.1 >= 1 || kernel::cpu::nr_cpu_ids() == 1);
        Ok(())
    }
}
