// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: signals, waits and cancelled fences.

use super::*;
use crate::kernel::{
    cancel::cancelled,
    kthread::Thread, //
};

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_fence)]
mod suite {
    use super::*;

    fn pending() -> Result<DriverFence> {
        DriverFence::new(FenceType::NONE)
    }

    #[test]
    fn fence_is_signalled_once_with_its_result() -> Result {
        let good = pending()?;
        let bad = pending()?;
        let fence = good.fence();
        let failed = bad.fence();
        assert_eq!(fence.check(), FenceStatus::NotDone);
        good.signal(Ok(()));
        bad.signal(Err(EIO));
        assert_eq!(fence.check(), FenceStatus::Done);
        assert_eq!(failed.check(), FenceStatus::Failed(EIO));
        assert_eq!(failed.synchronize(None), Err(EIO));
        assert_eq!(fence.synchronize(Some(Delta::ZERO)), Ok(()));
        Ok(())
    }

    #[test]
    fn unsignalled_drop_cancels_the_fence() -> Result {
        let pending = pending()?;
        let fence = pending.fence();
        drop(pending);
        assert_eq!(fence.check(), FenceStatus::Failed(cancelled()));
        Ok(())
    }

    #[test]
    fn wait_ends_on_timeout_or_signal() -> Result {
        let pending = pending()?;
        let fence = pending.fence();
        let since = Instant::<Monotonic>::now();
        let limit = Delta::from_millis(30);
        assert_eq!(fence.synchronize(Some(limit)), Err(ETIMEDOUT));
        assert!(since.elapsed() >= limit);
        let thread = Thread::spawn(c"hmm-test", move || {
            kernel::time::delay::fsleep(Delta::from_millis(20));
            pending.signal(Err(ENODEV));
        })?;
        // The fence would be cancelled if the thread were stopped before it ran, but nothing stops
        // it.
        assert_eq!(fence.synchronize(None), Err(ENODEV));
        drop(thread);
        Ok(())
    }

    #[test]
    fn fence_has_the_type_of_its_device() -> Result {
        let mine = 1u8;
        let other = 2u8;
        let mine = FenceType::of(&mine);
        let other = FenceType::of(&other);
        let pending = DriverFence::new(mine)?;
        let fence = pending.fence();
        assert!(fence.is_of(mine) && !fence.is_of(other) && !fence.is_of(FenceType::NONE));
        pending.signal(Ok(()));
        assert!(fence.is_of(mine));
        Ok(())
    }

    #[test]
    fn descriptor_without_an_eventfd_is_refused() -> Result {
        let fence = pending()?.fence();
        assert_eq!(fence.eventfd(-1), Err(EBADF));
        Ok(())
    }

    #[test]
    fn wait_within_a_callback_is_refused() -> Result {
        let pending = pending()?;
        let _within = reentry::ReentryGuard::enter();
        assert_eq!(pending.fence().synchronize(None), Err(reentry::deadlock()));
        Ok(())
    }
}
