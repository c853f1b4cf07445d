// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: write access of mirrors that join the migration of another mirror or of a CPU
//! fault.

use super::*;
use crate::policy::{
    Decision,
    FaultInfo,
    NoMigration,
    Policy, //
};

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_joined)]
mod suite {
    use super::*;

    const PAGES: usize = 4;
    /// Bytes that the first CPU fault migrates back.
    const WINDOW_BYTES: usize = 64 << 10;

    /// How pages migrate.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Way {
        ToDevice,
        ToSystem,
        /// To system memory, by a CPU access.
        CpuFault,
    }

    /// Migrations after which the second mirror has write access.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Written {
        Never,
        /// Those by request.
        IfRequested,
        Always,
    }

    fn no_event(_mirror: &Mirror<TestDevice>, _range: PageRange) {}

    /// Takes write access, as `fork()` does.
    fn write_protect(mirror: &Mirror<TestDevice>, range: PageRange) {
        pretend(mirror, NotifierEvent::ProtectionPage, range);
    }

    fn entry(mirror: &Mirror<TestDevice>, addr: usize) -> DevicePte {
        let leaf = mirror.inner().reader.walk(addr);
        leaf.map_or(DevicePte::NONE, |leaf| leaf.entry)
    }

    /// Migrates pages that two mirrors of a device may write: to the device by the first mirror,
    /// back by `back`, and to the device again. Calls `before` for the second mirror before each
    /// migration, and `during` when its entries were replaced. Checks that no entry of either
    /// mirror is writable until both were flushed, and that the second mirror then has write access
    /// as `expected`.
    fn joined(
        back: Way,
        before: fn(&Mirror<TestDevice>, PageRange),
        during: fn(&Mirror<TestDevice>, PageRange),
        expected: Written,
    ) -> Result {
        // One CPU fault brings back a window of this size.
        let (all, shared, first) = attached(2 * WINDOW_BYTES / PAGE_SIZE)?;
        let start = all.start().next_multiple_of(WINDOW_BYTES);
        let range = PageRange::from_pages(start, PAGES)?;
        let first = Arc::new(first, GFP_KERNEL)?;
        let second = Arc::new(mirror(&shared)?, GFP_KERNEL)?;
        for index in 0..PAGES {
            store(range.address(index), 100 + index as u64)?;
        }
        for way in [Way::ToDevice, back, Way::ToDevice] {
            first.fault(range, Access::Write)?;
            second.fault(range, Access::Write)?;
            before(&second, range);
            let replaced = Arc::new(Atomic::new(0usize), GFP_KERNEL)?;
            let beside = first.clone();
            let inside = second.clone();
            let counted = replaced.clone();
            let hook = move || {
                let mut entries = (0..PAGES).map(|index| entry(&inside, range.address(index)));
                if entries.all(|entry| entry.is_device() == (way == Way::ToDevice)) {
                    for index in 0..PAGES {
                        let addr = range.address(index);
                        assert!(!entry(&inside, addr).is_writable());
                        assert!(!entry(&beside, addr).is_writable());
                    }
                    if counted.fetch_add(1, Relaxed) == 0 {
                        during(&inside, range);
                    }
                }
            };
            *shared.at_wait.lock() = Some(Arc::new(hook, GFP_KERNEL)?);
            let moved = match way {
                Way::ToDevice => first
                    .migrate(range)
                    .to_device()
                    .map(|outcome| outcome.moved),
                Way::ToSystem => first
                    .migrate(range)
                    .to_system()
                    .map(|outcome| outcome.moved),
                Way::CpuFault => (0..PAGES).try_fold(PAGES, |pages, index| {
                    load(range.address(index)).map(|_| pages)
                }),
            };
            *shared.at_wait.lock() = None;
            assert_eq!(moved?, PAGES);
            assert_ne!(replaced.load(Relaxed), 0);
            for index in 0..PAGES {
                let addr = range.address(index);
                assert_eq!(entry(&second, addr).is_device(), way == Way::ToDevice);
                let writable = match expected {
                    Written::Never => false,
                    Written::IfRequested => way != Way::CpuFault,
                    Written::Always => true,
                };
                assert_eq!(entry(&second, addr).is_writable(), writable);
                assert_eq!(device_load(&second, addr)?, Some(100 + index as u64));
            }
            // A new page of system memory is dirty, although no access has faulted.
            if way != Way::ToDevice {
                assert!(is_dirty(entry(&second, range.start()).number()));
            }
        }
        Ok(())
    }

    #[test]
    fn joined_mirrors_keep_write_access() -> Result {
        joined(Way::ToSystem, no_event, no_event, Written::Always)?;
        joined(Way::CpuFault, no_event, no_event, Written::Always)
    }

    /// A policy that could migrate memory, and has decided not to.
    struct Reluctant;

    impl Policy for Reluctant {
        fn place(&self, fault: &FaultInfo<'_>) -> Decision {
            Decision::InPlace(fault.range)
        }
    }

    fn serve(mirror: &Mirror<TestDevice>, range: PageRange, policy: &dyn Policy) {
        let served = mirror.fault_with_policy(range, Access::Write, policy);
        assert!(served.is_ok_and(|served| served.moved == 0));
    }

    fn policy(mirror: &Mirror<TestDevice>, range: PageRange) {
        serve(mirror, range, &Reluctant);
    }

    fn no_policy(mirror: &Mirror<TestDevice>, range: PageRange) {
        serve(mirror, range, &Reluctant);
        serve(mirror, range, &NoMigration);
    }

    #[test]
    fn writes_after_a_cpu_fault_reach_policies() -> Result {
        joined(Way::ToSystem, policy, no_event, Written::Always)?;
        joined(Way::CpuFault, policy, no_event, Written::IfRequested)?;
        joined(Way::CpuFault, no_policy, no_event, Written::Always)
    }

    #[test]
    fn joined_mirrors_gain_no_write_access() -> Result {
        joined(Way::ToSystem, write_protect, no_event, Written::Never)?;
        joined(Way::CpuFault, write_protect, no_event, Written::Never)
    }

    #[test]
    fn joined_mirrors_lose_write_access_to_events() -> Result {
        joined(Way::ToSystem, no_event, write_protect, Written::Never)?;
        joined(Way::CpuFault, no_event, write_protect, Written::Never)
    }

    #[test]
    fn pages_that_stay_get_no_write_access() -> Result {
        let (range, shared, first) = attached(PAGES)?;
        let second = mirror(&shared)?;
        for mirror in [&first, &second] {
            mirror.fault(range, Access::Write)?;
        }
        shared
            .memory
            .driver()
            .fail_copies
            .store(usize::MAX, Relaxed);
        let moved = first
            .migrate(range)
            .to_device()
            .map(|outcome| outcome.moved);
        shared.memory.driver().fail_copies.store(0, Relaxed);
        assert_eq!(moved?, 0);
        for index in 0..PAGES {
            let entry = entry(&second, range.address(index));
            assert!(entry.is_valid() && !entry.is_writable());
        }
        Ok(())
    }
}
