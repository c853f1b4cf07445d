// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of the C interface: queues and fences.

use super::*;

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_capi_queue)]
mod tests {
    use super::*;
    use crate::kernel::{
        dma_fence::{
            DmaFenceAlloc,
            FenceContext, //
        },
        fence::DriverFence,
        identity::FenceType, //
    };
    use bindings::{
        rust_hmm_counter_RUST_HMM_INVALIDATED_PAGES as INVALIDATED,
        rust_hmm_counter_RUST_HMM_INVALIDATIONS as INVALIDATIONS,
        rust_hmm_counter_RUST_HMM_RETRIES as RETRIES,
        rust_hmm_counter_RUST_HMM_SKIPPED as SKIPPED,
        rust_hmm_counter_RUST_HMM_TO_DEVICE as TO_DEVICE, //
    };

    #[test]
    fn queue_destruction_ends_its_migration() -> Result {
        let (range, driver) = attached(4)?;
        for index in 0..4 {
            store(range.address(index), 70 + index as u64)?;
        }
        let queue = driver.queue();
        let data = driver.data();
        let submit = || {
            // SAFETY: The objects are not destroyed before `detach`.
            unsafe { rust_hmm_queue_submit(queue, null(), 0, Some(migrates), Some(release), data) }
        };
        let value_of = |counter| {
            // SAFETY: The mirror is not destroyed before `detach`.
            unsafe { rust_hmm_mirror_counter(driver.mirror(), counter) }
        };
        driver.start.store(range.start(), Relaxed);
        let first = submit();
        // SAFETY: The test has the reference to the fence.
        unsafe {
            assert_eq!(rust_hmm_fence_wait_for(first, -1), 0);
            rust_hmm_fence_put(first);
        }
        assert_eq!(driver.moved.load(Relaxed), 2);
        // The copy does not complete until the queue is destroyed.
        driver.keep.store(1, Relaxed);
        driver.start.store(range.address(2), Relaxed);
        let second = submit();
        while driver.kept.load(Acquire) == 0 {
            fsleep(Delta::from_millis(1));
        }
        assert_eq!(driver.cancels.load(Relaxed), 0);
        // SAFETY: The queue is destroyed only here, and the test has the reference to the fence.
        unsafe {
            assert_eq!(rust_hmm_queue_destroy(queue), 0);
            driver.queue.store(0, Relaxed);
            assert_eq!(rust_hmm_fence_wait_for(second, 10_000), 0);
            rust_hmm_fence_put(second);
        }
        assert_ne!(driver.cancels.load(Relaxed), 0);
        assert_eq!((driver.moved.load(Relaxed), value_of(TO_DEVICE)), (1, 3));
        assert_eq!((value_of(SKIPPED), value_of(RETRIES)), (0, 0));
        assert_eq!(
            (value_of(INVALIDATIONS) != 0, value_of(INVALIDATED)),
            (true, 0)
        );
        detach(&driver);
        for index in 0..4 {
            assert_eq!(load(range.address(index))?, 70 + index as u64);
        }
        Ok(())
    }

    #[test]
    fn queue_releases_its_work_once() -> Result {
        let (_range, driver) = attached(1)?;
        let queue = driver.queue();
        let data = driver.data();
        let count = |what: &Atomic<usize>| what.load(Relaxed);
        // SAFETY: The objects are valid until they are destroyed here or in `detach`. The test has
        // the references to the fences, and drops each once.
        unsafe {
            let gate = rust_hmm_fence_create(null());
            let none = [null_mut()];
            let done =
                rust_hmm_queue_submit(queue, none.as_ptr(), 1, Some(run), Some(release), data);
            assert_eq!(rust_hmm_fence_wait_for(done, -1), 0);
            rust_hmm_fence_put(done);
            assert_eq!((count(&driver.runs), count(&driver.releases)), (1, 1));
            // A queue cannot be destroyed within its own operation.
            assert_eq!((count(&driver.refused), count(&driver.granted)), (1, 0));
            assert_eq!(rust_hmm_queue_wait(queue, null_mut()), EINVAL.to_errno());
            let mumbled =
                rust_hmm_queue_submit(queue, null(), 0, Some(mumbles), Some(release), data);
            let invalid = EINVAL.to_errno();
            assert_eq!(rust_hmm_fence_wait_for(mumbled, -1), invalid);
            rust_hmm_fence_put(mumbled);
            // A record reports the error, and clears it.
            let record = rust_hmm_queue_record(queue);
            assert_eq!(rust_hmm_fence_wait_for(record, -1), invalid);
            rust_hmm_fence_put(record);
            // An operation without a function is released, too.
            let bad = rust_hmm_queue_submit(queue, null(), 0, None, Some(release), data);
            assert_eq!(bad as isize, EINVAL.to_errno() as isize);
            assert_eq!(count(&driver.releases), 3);
            // One operation waits, two are queued behind it, and the next one finds the queue full.
            let after = [gate];
            let submit =
                || rust_hmm_queue_submit(queue, after.as_ptr(), 1, Some(run), Some(release), data);
            let held = submit();
            let mut others = [submit(), submit(), submit()];
            let full = EBUSY.to_errno() as isize;
            // The thread may have removed the first one from the queue already.
            while others[2] as isize != full {
                rust_hmm_fence_put(others[2]);
                others[2] = submit();
            }
            let before = count(&driver.releases);
            assert!(before >= 4);
            // The fence on which the operations depend fails.
            assert_eq!(rust_hmm_fence_signal_once(gate, EIO.to_errno()), 0);
            assert_eq!(rust_hmm_fence_wait_for(held, 10_000), EIO.to_errno());
            for fence in others {
                if fence as isize != full {
                    assert_eq!(rust_hmm_fence_wait_for(fence, 10_000), EIO.to_errno());
                    rust_hmm_fence_put(fence);
                }
            }
            assert_eq!(count(&driver.runs), 1);
            assert!(count(&driver.releases) > before);
            let record = rust_hmm_queue_record(queue);
            assert_eq!(rust_hmm_fence_wait_for(record, 10_000), EIO.to_errno());
            // The operations are cancelled when the queue is destroyed.
            let gate_again = rust_hmm_fence_create(data);
            assert_eq!(rust_hmm_queue_wait(queue, gate_again), 0);
            let never = submit();
            let before = count(&driver.releases);
            assert_eq!(rust_hmm_queue_destroy(queue), 0);
            driver.queue.store(0, Relaxed);
            assert_eq!(rust_hmm_fence_wait_for(never, 10_000), ECANCELED_);
            assert_eq!(count(&driver.releases), before + 1);
            assert_eq!(count(&driver.runs), 1);
            for fence in [gate, gate_again, held, record, never] {
                rust_hmm_fence_signal_once(fence, 0);
                rust_hmm_fence_put(fence);
            }
        }
        detach(&driver);
        Ok(())
    }

    #[test]
    fn fence_is_signalled_once() -> Result {
        let invalid = EINVAL.to_errno();
        // SAFETY: The test has the references to the fences.
        unsafe {
            let fence = rust_hmm_fence_create(null());
            assert_eq!(rust_hmm_fence_wait_for(fence, 10), ETIMEDOUT.to_errno());
            assert_eq!(rust_hmm_fence_signal_once(fence, 1), invalid);
            assert_eq!(rust_hmm_fence_signal_once(fence, -5000), invalid);
            assert_eq!(rust_hmm_fence_signal_once(fence, ENOMEM.to_errno()), 0);
            assert_eq!(rust_hmm_fence_signal_once(fence, 0), invalid);
            assert_eq!(rust_hmm_fence_wait_for(fence, -1), ENOMEM.to_errno());
            rust_hmm_fence_put(fence);
            assert_eq!(rust_hmm_fence_wait_for(null_mut(), -1), 0);
            assert_eq!(rust_hmm_fence_eventfd(null_mut(), 0), invalid);
            let none = rust_hmm_fence_from_dma(null_mut());
            assert_eq!(none as isize, EINVAL.to_errno() as isize);
            rust_hmm_fence_put(none);
        }
        Ok(())
    }

    #[test]
    fn only_its_creator_signals_a_fence() -> Result {
        let (_range, driver) = attached(1)?;
        let refused = EPERM.to_errno();
        let alloc = DmaFenceAlloc::new()?;
        let dma = alloc.init(&FenceContext::new(), FenceType::NONE);
        // SAFETY: The objects are valid until they are destroyed here or in `detach`. The test has
        // the references to the fences, and drops each once.
        unsafe {
            let gate = rust_hmm_fence_create(null());
            assert_eq!(rust_hmm_queue_wait(driver.queue(), gate), 0);
            let queued = rust_hmm_queue_record(driver.queue());
            assert_eq!(rust_hmm_fence_signal_once(queued, 0), refused);
            assert_eq!(rust_hmm_fence_wait_for(queued, 10), ETIMEDOUT.to_errno());
            assert_eq!(rust_hmm_fence_signal_once(gate, 0), 0);
            // The fence signals without an error, although the driver tried to signal it earlier.
            assert_eq!(rust_hmm_fence_wait_for(queued, 10_000), 0);
            let imported = rust_hmm_fence_from_dma(dma.fence().as_raw());
            assert_eq!(rust_hmm_fence_signal_once(imported, 0), refused);
            assert_eq!(rust_hmm_fence_wait_for(imported, 10), ETIMEDOUT.to_errno());
            dma.signal(Err(EIO));
            assert_eq!(rust_hmm_fence_wait_for(imported, -1), EIO.to_errno());
            let rust = DriverFence::new(FenceType::NONE)?;
            let theirs = rust.fence().into_raw();
            assert_eq!(rust_hmm_fence_signal_once(theirs, 0), refused);
            for fence in [gate, queued, imported, theirs] {
                rust_hmm_fence_put(fence);
            }
        }
        detach(&driver);
        Ok(())
    }
}
