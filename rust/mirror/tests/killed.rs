// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: removal of device memory by a task that was killed, while the mmap lock of a
//! process that maps its pages is contended.

use super::*;

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_killed)]
mod suite {
    use super::*;
    use crate::{
        kernel::{
            completion::TimedCompletion,
            kthread::Thread, //
        },
        mirror::in_flight::InFlightNode,
        space::{
            Destination,
            EventMatch,
            MigrationDesc, //
        }, //
    };
    use kernel::{
        mm::Mm,
        sync::aref::ARef,
        time::{
            delay::fsleep,
            Delta, //
        }, //
    };

    /// The current task has a fatal signal pending, until this is dropped.
    struct Killed;

    impl Killed {
        fn new() -> Self {
            // SAFETY: The helper has no preconditions.
            unsafe { bindings::rust_hmm_kunit_kill_current() };
            Self
        }
    }

    impl Drop for Killed {
        fn drop(&mut self) {
            // SAFETY: The helper has no preconditions.
            unsafe { bindings::rust_hmm_kunit_revive_current() };
        }
    }

    /// Another thread that holds the mmap lock of the test for writing.
    struct Writer {
        end: Arc<TimedCompletion>,
        _thread: Thread,
    }

    impl Writer {
        /// Returns when the thread has the lock. It keeps it until the drop, but at most for `hold`
        /// if that is given.
        fn new(hold: Option<Delta>) -> Result<Self> {
            let current = kernel::current!();
            let mm: ARef<Mm> = ARef::from(&**current.mm().ok_or(EINVAL)?);
            let begun = Arc::pin_init(TimedCompletion::new(), GFP_KERNEL)?;
            let end = Arc::pin_init(TimedCompletion::new(), GFP_KERNEL)?;
            let locked = begun.clone();
            let wait = end.clone();
            let thread = Thread::spawn(c"hmm-test", move || {
                // SAFETY: `mm` is valid, and this thread unlocks it below.
                unsafe { bindings::rust_hmm_kunit_mmap_write_lock(mm.as_raw()) };
                locked.complete();
                match hold {
                    Some(hold) => fsleep(hold),
                    None => wait.wait_uninterruptible(),
                }
                // SAFETY: This thread has locked it above.
                unsafe { bindings::rust_hmm_kunit_mmap_write_unlock(mm.as_raw()) };
            })?;
            begun.wait_uninterruptible();
            Ok(Self {
                end,
                _thread: thread,
            })
        }
    }

    impl Drop for Writer {
        fn drop(&mut self) {
            self.end.complete();
        }
    }

    /// Returns `pages` pages in device memory, their device and mirror.
    fn on_device(pages: usize) -> Result<(PageRange, Arc<Shared>, Mirror<TestDevice>)> {
        let (range, shared, mirror) = attached(pages)?;
        for page in 0..pages {
            store(range.address(page), 10 + page as u64)?;
        }
        assert_eq!(mirror.migrate(range).to_device()?.moved, pages);
        Ok((range, shared, mirror))
    }

    #[test]
    fn unplug_by_a_killed_task_loses_no_page() -> Result {
        let (range, shared, mirror) = on_device(4)?;
        let writer = Writer::new(None)?;
        let killed = Killed::new();
        for _ in 0..2 {
            assert_eq!(shared.memory.unplug(), Err(EINTR));
            assert!(shared.memory.is_gone());
            assert_eq!(shared.memory.usage().0, 4);
        }
        drop(writer);
        // The rest is saved although the signal is still pending, because no lock is contended.
        assert_eq!(shared.memory.unplug(), Ok((4, 0)));
        drop(killed);
        assert_eq!(shared.memory.unplug(), Err(ENODEV));
        assert_eq!(mirror.fault(range, Access::Read), Err(ENODEV));
        for page in 0..4 {
            assert_eq!(load(range.address(page))?, 10 + page as u64);
        }
        Ok(())
    }

    #[test]
    fn unplug_by_a_killed_task_reports_lost_pages() -> Result {
        let (range, shared, mirror) = on_device(4)?;
        let copies = &shared.memory.driver().fail_copies;
        copies.store(usize::MAX, Relaxed);
        let killed = Killed::new();
        assert_eq!(shared.memory.unplug(), Ok((0, 4)));
        drop(killed);
        copies.store(0, Relaxed);
        drop(mirror);
        unmap(range)
    }

    #[test]
    fn calls_by_a_killed_task_do_not_wait_for_the_mmap_lock() -> Result {
        let (range, _shared, mirror) = attached(2)?;
        let other = super::mirror(&shared()?)?;
        store(range.start(), 1)?;
        mirror.fault(range, Access::Read)?;
        let writer = Writer::new(None)?;
        let killed = Killed::new();
        let calls = [
            mirror.fault(range, Access::Write),
            mirror.snapshot(range, |_| ()),
            mirror.migrate(range).to_device().map(|_| ()),
            mirror.pull(range, &other).map(|_| ()),
        ];
        assert_eq!(calls, [Err(EINTR); 4]);
        drop(killed);
        drop(writer);
        mirror.fault(range, Access::Write)?;
        assert_eq!(mirror.migrate(range).to_device()?.moved, 2);
        assert_eq!(load(range.start())?, 1);
        Ok(())
    }

    /// Marks the pages of `range` as in migration until this is dropped.
    struct Marked<'m> {
        mirror: &'m Mirror<TestDevice>,
        range: PageRange,
    }

    impl<'m> Marked<'m> {
        fn new(mirror: &'m Mirror<TestDevice>, range: PageRange) -> Result<Self> {
            let request = MigrationDesc {
                name: MigrationId::of(mirror),
                identity: EventMatch::Name,
                range,
                faultless: true,
                destination: Destination::Any,
            };
            let node = InFlightNode::new()?;
            mirror.inner().lock().in_flight.begin(request, node)?;
            Ok(Self { mirror, range })
        }
    }

    impl Drop for Marked<'_> {
        fn drop(&mut self) {
            let name = MigrationId::of(self.mirror);
            let inner = self.mirror.inner();
            inner.lock().in_flight.end(name, self.range.start());
        }
    }

    #[test]
    fn fault_by_a_killed_task_does_not_wait_for_a_migration() -> Result {
        let (range, _shared, mirror) = attached(2)?;
        store(range.start(), 1)?;
        mirror.fault(range, Access::Read)?;
        let marked = Marked::new(&mirror, range)?;
        let killed = Killed::new();
        assert_eq!(mirror.fault(range, Access::Write), Err(EINTR));
        drop(killed);
        drop(marked);
        mirror.fault(range, Access::Write)
    }

    #[test]
    fn fault_ends_although_migrations_do_not() -> Result {
        let (range, shared, mirror) = attached(2)?;
        store(range.start(), 1)?;
        mirror.fault(range, Access::Read)?;
        let mirror = Arc::new(mirror, GFP_KERNEL)?;
        let marked = Marked::new(&mirror, range)?;
        // Each wait ends early, as if one migration followed the other.
        let ended = Arc::new(Atomic::new(false), GFP_KERNEL)?;
        let stop = ended.clone();
        let theirs = mirror.clone();
        let thread = Thread::spawn(c"hmm-test", move || {
            while !stop.load(Relaxed) {
                theirs.inner().ended.notify_all();
                fsleep(Delta::from_micros(20));
            }
        })?;
        let result = mirror.fault(range, Access::Write);
        ended.store(true, Relaxed);
        drop(thread);
        assert_eq!(result, Err(EBUSY));
        drop(marked);
        mirror.fault(range, Access::Write)?;
        drop(shared);
        Ok(())
    }

    #[test]
    fn drop_by_a_killed_task_keeps_contents() -> Result {
        let (range, shared, mirror) = on_device(4)?;
        drop(mirror);
        assert_eq!(shared.memory.usage().0, 4);
        let writer = Writer::new(Some(Delta::from_millis(300)))?;
        let killed = Killed::new();
        // Returns when all pages are in system memory.
        drop(shared);
        drop(killed);
        drop(writer);
        for page in 0..4 {
            assert_eq!(load(range.address(page))?, 10 + page as u64);
        }
        unmap(range)
    }
}
