// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: objects of the library that are dropped within callbacks, under locks and by their
//! own threads. The drop returns, and the object has been freed when the callback has ended.

use super::{
    file::{
        Gate,
        OpenNode, //
    },
    interrupt::in_interrupt,
    nosy::{
        nosy,
        Cargo,
        From,
        Nosy, //
    },
    *, //
};
use crate::{
    host_lock::Coherence,
    kernel::{
        cancel::CancelToken,
        deferred,
        fence_watch::FenceWatch,
        kthread::Thread,
        shrinker::{
            Shrink,
            Shrinker, //
        }, //
    },
    mm::{
        dma::{
            DmaBuffer,
            DmaDevice, //
        },
        vma::MmapGuard, //
    },
    queue::{
        Queue,
        WorkerPool, //
    }, //
};
use kernel::{
    sync::atomic::{
        ordering::Acquire,
        AtomicFlag, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

/// Counts drops, and controls when threads may end.
pub(super) struct Ends {
    dropped: Atomic<u32>,
    may_end: AtomicFlag,
    /// Number of threads whose wait timed out, because their object was dropped in place.
    late: Atomic<u32>,
}

impl Ends {
    pub(super) fn new() -> Result<Arc<Self>> {
        let ends = Self {
            dropped: Atomic::new(0),
            may_end: AtomicFlag::new(false),
            late: Atomic::new(0),
        };
        Ok(Arc::new(ends, GFP_KERNEL)?)
    }

    /// Sleeps until `done` returns `true`, for some seconds at most.
    fn wait_for(&self, done: impl Fn() -> bool) {
        for _ in 0..5000 {
            if done() {
                return;
            }
            fsleep(Delta::from_millis(1));
        }
        self.late.add(1, Relaxed);
    }

    /// Waits until threads may end, after the callback has ended. A drop in place would deadlock
    /// with this.
    fn wait(&self) {
        self.wait_for(|| self.may_end.load(Acquire));
    }

    /// Lets threads end, and waits for workers. Returns the number of dropped objects, or `None` if
    /// a wait timed out.
    fn finish(&self) -> Option<u32> {
        self.may_end.store(true, Release);
        deferred::flush();
        (self.late.load(Relaxed) == 0).then(|| self.dropped.load(Relaxed))
    }
}

/// An object that counts its drop.
pub(super) struct Counted(Arc<Ends>);

impl Counted {
    pub(super) fn new(ends: &Arc<Ends>) -> Self {
        Self(ends.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dropped.add(1, Relaxed);
    }
}

/// A minimal device, and its memory.
struct Plain(#[expect(dead_code)] Counted);

impl MemoryOps for Plain {
    fn copy(&self, job: CopyJob) {
        job.complete(Err(EINVAL));
    }
}

impl Device for Plain {
    type Memory = Self;
    type Format = Radix4;
    type Walker = ();
    type Flush = ();

    fn memory(&self) -> Option<&Memory<Self>> {
        None
    }

    fn flush_start(&self, _range: PageRange) {}

    fn flush_wait(&self, (): ()) {}
}

/// An empty shrinker.
struct Nothing(#[expect(dead_code)] Counted);

impl Shrink for Nothing {
    fn count(&self) -> usize {
        0
    }

    fn scan(&self, _objects: usize) -> usize {
        0
    }
}

/// Number of objects of [`cargo`] that count their drop.
const COUNTED_OBJECTS: u32 = 6;

/// Creates one object of each kind.
fn cargo(ends: &Arc<Ends>) -> Result<Cargo> {
    let mut all = Cargo::new();
    let counted = || Counted::new(ends);
    let mut add = |object: KBox<dyn Send>| all.push(object, GFP_KERNEL);

    let ours = counted();
    let thread = Thread::spawn(c"hmm-test", move || ours.0.wait())?;
    add(KBox::new(thread, GFP_KERNEL)?)?;

    let queue = Queue::new(FenceType::NONE, 2)?;
    let ours = counted();
    queue.submit(KVec::new(), move |_| {
        ours.0.wait();
        Ok(())
    })?;
    add(KBox::new(queue, GFP_KERNEL)?)?;
    add(KBox::new(WorkerPool::new(1)?, GFP_KERNEL)?)?;

    let memory = Memory::new(Plain(counted()), MemoryKind::Private, PMD_PAGES);
    add(KBox::new(KBox::pin_init(memory, GFP_KERNEL)?, GFP_KERNEL)?)?;

    let current = current!();
    let mm = current.mm().ok_or(EINVAL)?;
    let mirror = crate::new_mirror!(mm, Plain(counted()))?;
    // The last reference to a pinned range is dropped, too. That takes the mmap lock.
    let range = map(1)?;
    let agent = DmaDevice::software(c"hmm-dropped")?;
    let locked = mirror.lock(range, &[agent.clone()], Coherence::Coarse);
    let address = locked.map_err(|_| EBUSY)?.device_address;
    let region = mirror.locked(address).ok_or(ENOENT)?;
    mirror.unlock(address)?;
    add(KBox::new(region, GFP_KERNEL)?)?;
    add(KBox::new(DmaBuffer::new(&agent, 1)?, GFP_KERNEL)?)?;
    add(KBox::new(agent, GFP_KERNEL)?)?;
    add(KBox::new(mirror, GFP_KERNEL)?)?;

    let shrinker = Shrinker::new(c"hmm-dropped", Arc::new(Nothing(counted()), GFP_KERNEL)?)?;
    add(KBox::new(shrinker, GFP_KERNEL)?)?;
    add(KBox::new(FenceWatch::new()?, GFP_KERNEL)?)?;
    add(KBox::new(Gate::new(counted())?.node()?, GFP_KERNEL)?)?;
    Ok(all)
}

/// Makes a callback of the kind `from` drop objects of all kinds while `act` runs. Returns the
/// number of dropped objects.
fn dropped_in(
    from: From,
    act: impl FnOnce(&Arc<Mirror<Nosy>>, PageRange) -> Result,
) -> Result<u32> {
    let (mirror, range) = nosy(2)?;
    store(range.start(), 1)?;
    mirror.fault(range, Access::Write)?;
    let ends = Ends::new()?;
    let probe = &mirror.device().0.probe;
    probe.load(from, cargo(&ends)?);
    act(&mirror, range)?;
    if probe.is_loaded() {
        return Err(ENOENT);
    }
    ends.finish().ok_or(ETIMEDOUT)
}

fn to_device(mirror: &Arc<Mirror<Nosy>>, range: PageRange) -> Result {
    mirror.migrate(range).to_device().map(|_| ())
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_dropped)]
mod suite {
    use super::*;

    #[test]
    fn objects_dropped_in_flushes_are_freed() -> Result {
        for from in [From::FlushStart, From::FlushWait] {
            assert_eq!(
                dropped_in(from, |_, range| unmap(range)),
                Ok(COUNTED_OBJECTS)
            );
            let discard = |mirror: &Arc<Mirror<Nosy>>, range| mirror.discard(range);
            assert_eq!(dropped_in(from, discard), Ok(COUNTED_OBJECTS));
        }
        Ok(())
    }

    #[test]
    fn objects_dropped_in_migrations_are_freed() -> Result {
        for from in [From::Choose, From::Copy, From::RingDoorbell] {
            assert_eq!(dropped_in(from, to_device), Ok(COUNTED_OBJECTS));
        }
        for from in [From::CopyAtOnce, From::Event] {
            assert_eq!(dropped_in(from, to_device), Ok(COUNTED_OBJECTS));
        }
        Ok(())
    }

    #[test]
    fn objects_dropped_in_cpu_faults_are_freed() -> Result {
        for from in [From::MemoryEvent, From::Freed] {
            let there_and_back = |mirror: &Arc<Mirror<Nosy>>, range: PageRange| {
                to_device(mirror, range)?;
                load(range.start()).map(|_| ())
            };
            assert_eq!(dropped_in(from, there_and_back), Ok(COUNTED_OBJECTS));
        }
        let there_and_unmapped = |mirror: &Arc<Mirror<Nosy>>, range: PageRange| {
            to_device(mirror, range)?;
            unmap(range)
        };
        assert_eq!(
            dropped_in(From::Freed, there_and_unmapped),
            Ok(COUNTED_OBJECTS)
        );
        Ok(())
    }

    #[test]
    fn objects_dropped_in_table_writes_are_freed() -> Result {
        for from in [From::Written, From::Publish] {
            let discard = |mirror: &Arc<Mirror<Nosy>>, range| mirror.discard(range);
            assert_eq!(dropped_in(from, discard), Ok(COUNTED_OBJECTS));
        }
        Ok(())
    }

    #[test]
    fn objects_dropped_in_interrupts_are_freed() -> Result {
        // There, handlers of drivers run in threads, and the boxes of the objects must not be freed
        // in a hard interrupt.
        if cfg!(CONFIG_PREEMPT_RT) {
            return Ok(());
        }
        map(1)?;
        let ends = Ends::new()?;
        let mut all = Some(cargo(&ends)?);
        in_interrupt(move || drop(all.take()))?;
        assert_eq!(ends.finish(), Some(COUNTED_OBJECTS));
        Ok(())
    }

    #[test]
    fn objects_dropped_in_pulls_are_freed() -> Result {
        for from in [From::Connection, From::CopyTo] {
            let pull = |source: &Arc<Mirror<Nosy>>, range| {
                to_device(source, range)?;
                let (mirror, _) = nosy(2)?;
                mirror.pull(range, source).map(|_| ())
            };
            assert_eq!(dropped_in(from, pull), Ok(COUNTED_OBJECTS));
        }
        Ok(())
    }

    #[test]
    fn objects_dropped_in_cancelled_copies_are_freed() -> Result {
        let cancel = |mirror: &Arc<Mirror<Nosy>>, range| {
            let stop = CancelToken::new()?;
            *mirror.device().0.probe.stop.lock() = Some(stop.clone());
            mirror
                .migrate(range)
                .cancel_token(stop)
                .to_device()
                .map(|_| ())
        };
        assert_eq!(dropped_in(From::Cancelled, cancel), Ok(COUNTED_OBJECTS));
        Ok(())
    }

    #[test]
    fn mirror_dropped_in_its_callbacks_is_freed() -> Result {
        for from in [From::FlushStart, From::FlushWait] {
            let (mirror, range) = nosy(2)?;
            mirror.fault(range, Access::Write)?;
            let card = mirror.device().0.clone();
            let mut own = Cargo::new();
            own.push(KBox::new(mirror, GFP_KERNEL)?, GFP_KERNEL)?;
            card.probe.load(from, own);
            unmap(range)?;
            assert!(!card.probe.is_loaded());
            deferred::flush();
            // The mirror has dropped its device.
            assert!(Arc::into_unique_or_drop(card).is_some());
        }
        Ok(())
    }

    #[test]
    fn objects_dropped_under_guards_are_freed() -> Result {
        let (mirror, range) = nosy(1)?;
        mirror.fault(range, Access::Read)?;
        let ends = Ends::new()?;
        let all = cargo(&ends)?;
        let table = mirror.lock_table()?;
        drop(all);
        drop(table);
        assert_eq!(ends.finish(), Some(COUNTED_OBJECTS));

        let ends = Ends::new()?;
        let walkers = &mirror.device().0.probe.walkers;
        let all = cargo(&ends)?;
        let section = mirror.enter(0)?;
        drop(all);
        drop(section);
        assert_eq!(ends.finish(), Some(COUNTED_OBJECTS));

        let ends = Ends::new()?;
        let all = cargo(&ends)?;
        assert!(walkers.with(0, |_| drop(all)).is_some());
        assert_eq!(ends.finish(), Some(COUNTED_OBJECTS));

        let ends = Ends::new()?;
        let all = cargo(&ends)?;
        let current = current!();
        let mmap = MmapGuard::lock(current.mm().ok_or(EINVAL)?)?;
        drop(all);
        drop(mmap);
        assert_eq!(ends.finish(), Some(COUNTED_OBJECTS));

        let ends = Ends::new()?;
        let mut all = Some(cargo(&ends)?);
        mirror.snapshot(range, |_| drop(all.take()))?;
        assert_eq!(ends.finish(), Some(COUNTED_OBJECTS));
        Ok(())
    }

    #[test]
    fn thread_dropped_by_its_closure_is_freed() -> Result {
        let ends = Ends::new()?;
        let own = Arc::pin_init(kernel::new_mutex!(None), GFP_KERNEL)?;
        let ours = Counted::new(&ends);
        let inner = own.clone();
        let thread = Thread::spawn(c"hmm-test", move || {
            let taken: Option<Thread> = {
                ours.0.wait_for(|| inner.lock().is_some());
                inner.lock().take()
            };
            drop(taken);
        })?;
        *own.lock() = Some(thread);
        ends.wait_for(|| ends.dropped.load(Relaxed) == 1);
        assert_eq!(ends.finish(), Some(1));
        Ok(())
    }

    #[test]
    fn queue_dropped_by_its_operation_is_freed() -> Result {
        let ends = Ends::new()?;
        let own = Arc::pin_init(kernel::new_mutex!(None), GFP_KERNEL)?;
        let queue = Queue::new(FenceType::NONE, 4)?;
        let ours = Counted::new(&ends);
        let inner = own.clone();
        queue.submit(KVec::new(), move |_| {
            ours.0.wait_for(|| inner.lock().is_some());
            let taken: Option<Queue> = inner.lock().take();
            drop(taken);
            Ok(())
        })?;
        // The operation is cancelled. Otherwise its own drop would wait for it.
        let ours = Counted::new(&ends);
        let rest = queue.submit(KVec::new(), move |_| {
            drop(ours);
            Ok(())
        })?;
        *own.lock() = Some(queue);
        ends.wait_for(|| ends.dropped.load(Relaxed) == 2);
        assert_eq!(
            rest.synchronize(None),
            Err(crate::kernel::cancel::cancelled())
        );
        assert_eq!(ends.finish(), Some(2));
        Ok(())
    }

    #[test]
    fn objects_dropped_during_open_are_freed() -> Result {
        let ends = Ends::new()?;
        let gate = Gate::new(Counted::new(&ends))?;
        let mut own = Cargo::new();
        let node = gate.node()?;
        let minor = node.minor();
        own.push(KBox::new(node, GFP_KERNEL)?, GFP_KERNEL)?;
        gate.load(own);
        let file = OpenNode::new(minor)?;
        deferred::flush();
        // The name can be reused, and the open file stays usable.
        drop(gate.node()?);
        drop((file, gate));
        assert_eq!(ends.finish(), Some(1));
        Ok(())
    }
}
