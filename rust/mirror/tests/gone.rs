// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: device memory that is unplugged during an operation, or that does not exist.

use super::*;
use crate::policy::{
    Decision,
    FaultInfo,
    Policy, //
};

/// Unplugs the memory, and then delays the fault.
struct UnplugFirst(Arc<Shared>);

impl Policy for UnplugFirst {
    fn place(&self, _fault: &FaultInfo<'_>) -> Decision {
        let _pages = self.0.memory.unplug();
        Decision::Later(1)
    }
}

/// A device without memory of its own.
struct NoVram;

impl MemoryOps for NoVram {
    fn copy(&self, job: CopyJob) {
        job.complete(Err(EINVAL));
    }
}

impl Device for NoVram {
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

/// Migrates all pages.
struct Always;

impl Policy for Always {
    fn place(&self, fault: &FaultInfo<'_>) -> Decision {
        Decision::Move {
            range: fault.range,
            evict: true,
        }
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_gone)]
mod suite {
    use super::*;

    #[test]
    fn delayed_fault_ends_when_the_memory_is_unplugged() -> Result {
        let (range, shared, mirror) = attached(1)?;
        store(range.start(), 1)?;
        let policy = UnplugFirst(shared.clone());
        let served = mirror.fault_with_policy(range, Access::Read, &policy);
        assert_eq!(served.err(), Some(ENODEV));
        assert!(shared.memory.is_gone());
        assert_eq!(load(range.start())?, 1);
        Ok(())
    }

    #[test]
    fn unplugged_memory_takes_no_pages() -> Result {
        let (range, shared, mirror) = attached(1)?;
        store(range.start(), 1)?;
        assert_eq!(shared.memory.unplug(), Ok((0, 0)));
        assert_eq!(shared.memory.add_chunks(1), Err(ENODEV));
        assert_eq!(shared.memory.arrive().err(), Some(ENODEV));
        assert_eq!(mirror.migrate(range).to_device().err(), Some(ENODEV));
        assert_eq!(shared.memory.usage(), (0, 0));
        assert_eq!(load(range.start())?, 1);
        Ok(())
    }

    #[test]
    fn policy_of_a_device_without_memory_has_no_effect() -> Result {
        let range = map(2)?;
        let current = current!();
        let mirror = crate::new_mirror!(current.mm().ok_or(EINVAL)?, NoVram)?;
        store(range.start(), 1)?;
        let served = mirror.fault_with_policy(range, Access::Read, &Always)?;
        assert_eq!(served.moved, 0);
        assert!(served.in_place);
        assert_eq!(mirror.lock_table()?.present(range), 2);
        Ok(())
    }
}
