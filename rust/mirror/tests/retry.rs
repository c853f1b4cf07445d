// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: faults and snapshots that always collide with invalidations end after a bounded
//! time.

use super::*;
use crate::inject::{
    ArmedPoint,
    FailPoint, //
};
use kernel::time::{
    Delta,
    Instant,
    Monotonic, //
};

/// The library guarantees one second, and a hundred tries. The upper bound is for a busy machine.
const MIN_DURATION: Delta = Delta::from_millis(1000);
const MAX_DURATION: Delta = Delta::from_millis(30_000);

fn is_in_time(since: Instant<Monotonic>) -> bool {
    let took = since.elapsed();
    took >= MIN_DURATION && took < MAX_DURATION
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_retry)]
mod suite {
    use super::*;

    #[test]
    fn colliding_fault_returns_ebusy() -> Result {
        let (range, _shared, mirror) = attached(2)?;
        store(range.start(), 1)?;
        let armed = ArmedPoint::new(FailPoint::Retry, 1, true)?;
        let since = Instant::now();
        assert_eq!(mirror.fault(range, Access::Read), Err(EBUSY));
        assert!(is_in_time(since));
        drop(armed);
        assert!(mirror.stats().get(Counter::Retries) >= 100);
        assert_eq!(mirror.lock_table()?.present(range), 0);
        // The fault works when there are no collisions.
        mirror.fault(range, Access::Read)?;
        assert_eq!(device_load(&mirror, range.start())?, Some(1));
        Ok(())
    }

    #[test]
    fn colliding_snapshot_returns_ebusy() -> Result {
        let (range, _shared, mirror) = attached(2)?;
        let armed = ArmedPoint::new(FailPoint::Retry, 1, true)?;
        let mut seen = 0;
        let since = Instant::now();
        assert_eq!(mirror.snapshot(range, |_| seen += 1), Err(EBUSY));
        assert!(is_in_time(since) && seen == 0);
        drop(armed);
        mirror.snapshot(range, |_| seen += 1)?;
        assert_eq!(seen, 2);
        Ok(())
    }

    #[test]
    fn colliding_migration_returns_ebusy() -> Result {
        let (range, shared, mirror) = attached(2)?;
        let armed = ArmedPoint::new(FailPoint::Retry, 1, true)?;
        assert_eq!(mirror.migrate(range).to_device().err(), Some(EBUSY));
        drop(armed);
        assert_eq!(shared.memory.usage().0, 0);
        assert_eq!(mirror.migrate(range).to_device()?.moved, 2);
        Ok(())
    }
}
