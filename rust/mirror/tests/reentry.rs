// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of calls of the API from its own callbacks. Calls that could deadlock are refused.

use super::{
    dropped::{
        Counted,
        Ends, //
    },
    file::{
        Gate,
        OpenNode, //
    },
    interrupt::in_interrupt,
    nosy::*,
    *, //
};
use crate::{
    kernel::{
        cancel::CancelToken,
        reentry,
        shrinker::{
            Shrink,
            Shrinker, //
        }, //
    },
    mm::vma::MmapGuard, //
};

/// A shrinker whose callbacks call the API.
struct Caller {
    mirror: Arc<Mirror<Nosy>>,
    range: PageRange,
}

impl Shrink for Caller {
    /// Returns the number of refused calls.
    fn count(&self) -> usize {
        call_all(&self.mirror, self.range).1 as usize
    }

    fn scan(&self, _objects: usize) -> usize {
        self.count()
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_reentry)]
mod suite {
    use super::*;

    #[test]
    fn calls_from_an_invalidation_are_refused() -> Result {
        let (mirror, range) = nosy(4)?;
        mirror.fault(range, Access::Write)?;
        let armed = ArmedProbe::new(&mirror, range);
        unmap(range)?;
        assert!(armed.0.was_refused(From::FlushStart) && armed.0.was_refused(From::FlushWait));
        drop(armed);
        // The mirror still works after the refused calls.
        let range = map(1)?;
        mirror.fault(range, Access::Write)?;
        assert_eq!(mirror.lock_table()?.present(range), 1);
        Ok(())
    }

    #[test]
    fn calls_from_a_discard_are_refused() -> Result {
        let (mirror, range) = nosy(4)?;
        mirror.fault(range, Access::Write)?;
        let armed = ArmedProbe::new(&mirror, range);
        mirror.discard(range)?;
        assert!(armed.0.was_refused(From::FlushStart) && armed.0.was_refused(From::FlushWait));
        Ok(())
    }

    #[test]
    fn calls_from_the_flush_of_each_walker_are_refused() -> Result {
        let (mirror, range) = nosy(4)?;
        mirror.fault(range, Access::Write)?;
        let armed = ArmedProbe::new(&mirror, range);
        mirror.discard(range)?;
        // Walker 0 cannot be entered during its own flush, but during that of walker 1.
        assert_eq!(
            armed.0.counts(From::FlushWalker),
            [2 * CALL_COUNT, 2 * CALL_COUNT, 1]
        );
        Ok(())
    }

    #[test]
    fn calls_from_migrations_are_refused() -> Result {
        let (mirror, range) = nosy(4)?;
        store(range.start(), 1)?;
        mirror.fault(range, Access::Write)?;
        let armed = ArmedProbe::new(&mirror, range);
        assert_eq!(mirror.migrate(range).to_device()?.switched, 4);
        for from in [
            From::FlushStart,
            From::FlushWait,
            From::Copy,
            From::RingDoorbell,
        ] {
            assert!(armed.0.was_refused(from));
        }
        for from in [From::Choose, From::Event, From::CopyAtOnce] {
            assert!(armed.0.was_refused(from));
        }
        // A CPU fault must refuse the calls, too.
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
    fn calls_from_a_pull_are_refused() -> Result {
        let (source, range) = nosy(2)?;
        let (mirror, _) = nosy(2)?;
        store(range.start(), 1)?;
        assert_eq!(source.migrate(range).to_device()?.moved, 2);
        let here = ArmedProbe::new(&mirror, range);
        let there = ArmedProbe::new(&source, range);
        assert_eq!(mirror.pull(range, &source)?.moved, 2);
        assert!(here.0.was_refused(From::Connection) && there.0.was_refused(From::Connection));
        assert!(there.0.was_refused(From::CopyTo) && here.0.was_refused(From::Choose));
        Ok(())
    }

    #[test]
    fn calls_from_a_cancelled_copy_are_refused() -> Result {
        let (mirror, range) = nosy(1)?;
        store(range.start(), 3)?;
        let stop = CancelToken::new()?;
        let armed = ArmedProbe::new(&mirror, range);
        *armed.0.stop.lock() = Some(stop.clone());
        let outcome = mirror.migrate(range).cancel_token(stop).to_device()?;
        assert_eq!((outcome.moved, outcome.copy_failed), (0, 1));
        assert!(armed.0.was_refused(From::Cancelled));
        drop(armed);
        assert_eq!(load(range.start())?, 3);
        Ok(())
    }

    #[test]
    fn calls_under_the_table_lock_are_refused() -> Result {
        let (mirror, range) = nosy(2)?;
        mirror.fault(range, Access::Read)?;
        let table = mirror.lock_table()?;
        assert_eq!(call_all(&mirror, range), (CALL_COUNT, CALL_COUNT));
        assert_eq!(table.present(range), 2);
        assert!(mirror.enter(0)?.walk(range.start()).is_some());
        drop(table);
        let mut pages = 0;
        mirror.snapshot(range, |_| {
            assert_eq!(call_all(&mirror, range), (CALL_COUNT, CALL_COUNT));
            pages += 1;
        })?;
        assert_eq!(pages, 2);
        // Calls are permitted again afterwards.
        mirror.fault(range, Access::Read)?;
        mirror.discard(range)
    }

    #[test]
    fn calls_in_an_access_section_are_refused() -> Result {
        let (mirror, range) = nosy(1)?;
        let walkers = &mirror.device().0.probe.walkers;
        mirror.fault(range, Access::Read)?;
        let section = mirror.enter(0)?;
        let refused = call_all(&mirror, range);
        let again = mirror.enter(0).err();
        let with = walkers.with(0, |_| ());
        drop(section);
        assert_eq!(refused, (CALL_COUNT, CALL_COUNT));
        assert_eq!((again, with), (Some(reentry::deadlock()), None));
        // A walker cannot be entered from within itself.
        let inner = walkers.with(1, |_| (walkers.with(1, |_| ()), mirror.enter(1).err()));
        assert_eq!(inner, Some((None, Some(reentry::deadlock()))));
        assert_eq!(walkers.with(1, |count| *count), Some(0));
        assert_eq!(call_all(&mirror, range).1, 0);
        Ok(())
    }

    #[test]
    fn calls_under_the_mmap_lock_are_refused() -> Result {
        let (mirror, range) = nosy(1)?;
        let current = current!();
        let guard = MmapGuard::lock(current.mm().ok_or(EINVAL)?)?;
        assert_eq!(call_all(&mirror, range), (CALL_COUNT, CALL_COUNT));
        drop(guard);
        mirror.fault(range, Access::Read)
    }

    #[test]
    fn calls_from_the_free_of_a_page_are_refused() -> Result {
        let (mirror, range) = nosy(1)?;
        assert_eq!(mirror.migrate(range).to_device()?.moved, 1);
        let armed = ArmedProbe::new(&mirror, range);
        unmap(range)?;
        assert!(armed.0.was_refused(From::Freed));
        Ok(())
    }

    #[test]
    fn calls_from_a_shrinker_are_refused() -> Result {
        let (mirror, range) = nosy(1)?;
        let caller = Caller {
            mirror: mirror.clone(),
            range,
        };
        let shrinker = Shrinker::new(c"hmm-reentry", Arc::new(caller, GFP_KERNEL)?)?;
        let all = CALL_COUNT as usize;
        assert_eq!(shrinker.reclaim(1), (all, all));
        drop(shrinker);
        mirror.fault(range, Access::Read)
    }

    #[test]
    fn calls_from_table_writes_are_refused() -> Result {
        let (mirror, range) = nosy(2)?;
        let armed = ArmedProbe::new(&mirror, range);
        mirror.fault(range, Access::Write)?;
        assert!(armed.0.was_refused(From::Written));
        mirror.discard(range)?;
        assert!(armed.0.was_refused(From::Publish));
        Ok(())
    }

    // The context of `IrqHandler::handle_irq`.
    #[test]
    fn calls_from_an_interrupt_are_refused() -> Result {
        let (mirror, range) = nosy(1)?;
        mirror.fault(range, Access::Read)?;
        let caller = mirror.clone();
        let refused = in_interrupt(move || call_all(&caller, range))?;
        assert_eq!(refused, (CALL_COUNT, CALL_COUNT));
        mirror.fault(range, Access::Read)
    }

    #[test]
    fn calls_from_a_nonblocking_invalidation_are_refused() -> Result {
        let (mirror, range) = nosy(1)?;
        let armed = ArmedProbe::new(&mirror, range);
        let inner = mirror.inner();
        let mut event = NotifierRange::for_test(NotifierEvent::Unmap, range, EventOwner::NONE);
        event.blockable = false;
        assert!(inner.invalidate(&event, false).is_break());
        assert!(armed.0.was_refused(From::FlushSleeps));
        Ok(())
    }

    #[test]
    fn calls_from_mmap_are_refused() -> Result {
        let (mirror, range) = nosy(1)?;
        let gate = Gate::new(Counted::new(&Ends::new()?))?;
        let node = gate.node()?;
        let file = OpenNode::new(node.minor())?;
        gate.arm(&mirror, range);
        assert_eq!(file.map(), Err(ENODEV));
        assert_eq!(gate.refused(), (CALL_COUNT, CALL_COUNT));
        Ok(())
    }

    #[test]
    fn node_creation_in_open_is_refused() -> Result {
        let gate = Gate::new(Counted::new(&Ends::new()?))?;
        let node = gate.node()?;
        let _file = OpenNode::new(node.minor())?;
        // The kernel calls open() with the mutex held under which a node is registered. Therefore
        // only the creation of a node is refused.
        assert_eq!(gate.made(), Some(reentry::deadlock()));
        Ok(())
    }
}
