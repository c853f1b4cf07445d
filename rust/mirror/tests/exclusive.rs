// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: exclusive access of the device.

use super::*;
use crate::kernel::kthread::Thread;
use kernel::{
    sync::{
        Completion,
        SetOnce, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_exclusive)]
mod suite {
    use super::*;

    #[test]
    fn exclusive_access_ends_on_a_cpu_access() -> Result {
        let (range, _shared, mirror) = attached(2)?;
        store(range.start(), 21)?;
        mirror.make_exclusive(range)?;
        assert!(mirror.lock_table()?.any_exclusive(range));
        assert_eq!(device_load(&mirror, range.start())?, Some(21));
        assert_eq!(load(range.start())?, 21);
        let first = PageRange::from_pages(range.start(), 1)?;
        assert!(!mirror.lock_table()?.any_exclusive(first));
        assert!(mirror.lock_table()?.any_exclusive(range));
        assert_eq!(load(range.address(1))?, 0);
        assert!(!mirror.lock_table()?.any_exclusive(range));
        Ok(())
    }

    #[test]
    fn exclusive_access_fails_after_unplug() -> Result {
        let (range, shared, mirror) = attached(2)?;
        store(range.start(), 21)?;
        let mirror = Arc::new(mirror, GFP_KERNEL)?;
        let first = PageRange::from_pages(range.start(), 1)?;
        let begun = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
        let result = Arc::new(SetOnce::new(), GFP_KERNEL)?;
        let goes = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
        let exclusive = {
            let mirror = mirror.clone();
            let begun = begun.clone();
            let result = result.clone();
            Thread::spawn(c"hmm-test", move || {
                begun.wait_for_completion();
                result.populate(mirror.make_exclusive(first));
            })?
        };
        let unplug = {
            let shared = shared.clone();
            let goes = goes.clone();
            Thread::spawn(c"hmm-test", move || {
                goes.wait_for_completion();
                assert_eq!(shared.memory.unplug(), Ok((0, 0)));
            })?
        };
        let table = mirror.inner().lock();
        begun.complete_all();
        // The other thread has seen that the device is present, and waits for the table lock.
        fsleep(Delta::from_millis(100));
        goes.complete_all();
        while !shared.memory.is_gone() {
            fsleep(Delta::from_millis(1));
        }
        assert!(SetOnce::as_ref(&result).is_none());
        drop(table);
        drop((exclusive, unplug));
        assert_eq!(SetOnce::as_ref(&result), Some(&Err(ENODEV)));
        assert!(!mirror.lock_table()?.any_exclusive(first));
        assert_eq!(load(range.start())?, 21);
        Ok(())
    }
}
