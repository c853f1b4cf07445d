// SPDX-License-Identifier: GPL-2.0

//! What a driver must not do, and who owns what.

use super::*;

#[kunit_tests(rust_hmm_capi)]
mod tests {
    use super::*;
    use bindings::{
        rust_hmm_counter_RUST_HMM_INVALIDATED_PAGES as INVALIDATED,
        rust_hmm_counter_RUST_HMM_INVALIDATIONS as INVALIDATIONS,
        rust_hmm_counter_RUST_HMM_RETRIES as RETRIES, rust_hmm_counter_RUST_HMM_SKIPPED as SKIPPED,
        rust_hmm_counter_RUST_HMM_TO_DEVICE as TO_DEVICE,
    };

    #[test]
    fn memory_moves_and_callbacks_are_paired() -> Result {
        let (range, driver) = attached(6)?;
        for index in 0..4 {
            store(range.address(index), 50 + index as u64)?;
        }
        let (mirror, start, end) = (driver.mirror(), range.start(), range.end());
        let mut place = place();
        let mut outcomes = [0xffu8; 8];
        let mut how = to(rust_hmm_target_RUST_HMM_TO_THE_DEVICE);
        (how.pages, how.npages) = (outcomes.as_mut_ptr(), outcomes.len());
        let mut outcome = outcome();
        driver.fail_copies.store(1, Relaxed);
        // SAFETY: All are alive.
        unsafe {
            assert_eq!(rust_hmm_fault(mirror, start, range.address(4), 0), 0);
            assert_eq!(rust_hmm_table_lock(mirror), 0);
            assert_eq!(rust_hmm_table_lookup(mirror, start, 0, &mut place), 0);
            assert_eq!(rust_hmm_table_unlock(mirror), 0);
            assert_eq!((place.kind, place.pages), (rust_hmm_where_RUST_HMM_CPU, 1));
            assert_eq!(rust_hmm_migrate(mirror, start, end, &how, &mut outcome), 0);
        }
        // The first copy failed, four had an entry, two were holes.
        assert_eq!((outcome.moved, outcome.copy_failed), (5, 1));
        assert_eq!(outcomes, [3, 5, 5, 5, 4, 4, 0, 0]);
        assert_eq!(driver.copies.load(Relaxed), 6);
        assert_ne!(driver.kicks.load(Relaxed), 0);
        let mut states = [residency(), residency(), residency(), residency()];
        let mut usage = rust_hmm_usage {
            used: 0,
            total: 0,
            limit: 0,
        };
        // SAFETY: All are alive.
        unsafe {
            assert_eq!(rust_hmm_table_lock(mirror), 0);
            let second = range.address(1);
            assert_eq!(rust_hmm_table_lookup(mirror, second, 1, &mut place), 0);
            let beyond = rust_hmm_table_lookup(mirror, end, 0, &mut place);
            assert_eq!(rust_hmm_table_unlock(mirror), 0);
            assert_eq!(beyond, ENOENT.to_errno());
            let fourth = range.address(4);
            assert_eq!(
                rust_hmm_snapshot(mirror, start, fourth, states.as_mut_ptr()),
                0
            );
            rust_hmm_memory_usage(driver.memory(), &mut usage);
        }
        assert_eq!(place.kind, rust_hmm_where_RUST_HMM_DEVICE);
        assert!(place.first < PAGES);
        assert_eq!(states.map(|state| state.location), [1, 3, 3, 3]);
        assert_eq!((usage.used, usage.limit), (5, PAGES));
        // A CPU touch brings them back.
        assert_eq!(load(range.address(1))?, 51);
        assert_eq!(load(range.address(4))?, 0);
        // SAFETY: All are alive; the mirror still uses the memory.
        unsafe {
            let faults = rust_hmm_counter_RUST_HMM_CPU_FAULTS;
            assert_ne!(rust_hmm_memory_counter(driver.memory(), faults), 0);
            let moved = rust_hmm_counter_RUST_HMM_TO_DEVICE;
            assert_eq!(rust_hmm_mirror_counter(mirror, moved), 5);
            assert_eq!(rust_hmm_mirror_counter(mirror, 99), 0);
            rust_hmm_migrate(mirror, start, end, &how, null_mut());
            assert_eq!(rust_hmm_memory_destroy(driver.memory()), EBUSY.to_errno());
            assert!(rust_hmm_mirror_alive(mirror));
        }
        detach(&driver);
        let flushes = driver.flushes.load(Relaxed);
        assert_ne!(flushes, 0);
        assert_eq!(driver.waits.load(Relaxed), flushes);
        assert_ne!(driver.freed.load(Relaxed), 0);
        // All have come back.
        for index in 0..4 {
            assert_eq!(load(range.address(index))?, 50 + index as u64);
        }
        Ok(())
    }

    #[test]
    fn calls_within_callbacks_are_refused() -> Result {
        let (range, driver) = attached(2)?;
        store(range.start(), 1)?;
        let (mirror, start, end) = (driver.mirror(), range.start(), range.end());
        let how = to(rust_hmm_target_RUST_HMM_TO_THE_DEVICE);
        driver.reenter.store(1, Relaxed);
        // SAFETY: All are alive.
        unsafe {
            assert_eq!(rust_hmm_fault(mirror, start, end, RUST_HMM_WRITE), 0);
            assert_eq!(rust_hmm_migrate(mirror, start, end, &how, null_mut()), 0);
            assert_eq!(rust_hmm_discard(mirror, start, end), 0);
        }
        driver.reenter.store(0, Relaxed);
        assert_eq!(driver.granted.load(Relaxed), 0);
        // A flush, its end, a copy and a kick at least.
        assert!(driver.refused.load(Relaxed) >= 4 * CALLS);
        assert_ne!(driver.copies.load(Relaxed), 0);
        detach(&driver);
        assert_eq!(load(range.start())?, 1);
        Ok(())
    }

    #[test]
    fn the_table_lock_belongs_to_its_task() -> Result {
        let (range, driver) = attached(1)?;
        let (mirror, start, end) = (driver.mirror(), range.start(), range.end());
        let (busy, not_ours) = (within::deadlock().to_errno(), EPERM.to_errno());
        let mut place = place();
        // It is made before, since memory is not allocated with the lock held.
        let (seen, theirs) = (driver.clone(), mirror as usize);
        let thread = Thread::spawn(c"hmm-test", move || {
            while seen.kicks.load(Relaxed) == 0 {
                fsleep(Delta::from_millis(1));
            }
            // SAFETY: It is alive until this thread has ended.
            let errno = unsafe { rust_hmm_table_unlock(theirs as *mut _) };
            seen.runs.store(1 + errno.unsigned_abs() as usize, Relaxed);
        })?;
        // SAFETY: All are alive; what is refused does nothing.
        unsafe {
            assert_eq!(
                rust_hmm_table_lookup(mirror, start, 0, &mut place),
                not_ours
            );
            assert_eq!(rust_hmm_table_unlock(mirror), not_ours);
            assert_eq!(rust_hmm_table_lock(mirror), 0);
            assert_eq!(rust_hmm_table_lock(mirror), busy);
            assert_eq!(rust_hmm_fault(mirror, start, end, 0), busy);
            assert_eq!(rust_hmm_mirror_destroy(mirror), busy);
            let flags = rust_hmm_table_lookup(mirror, start, 2, &mut place);
            assert_eq!(flags, EINVAL.to_errno());
        }
        driver.kicks.store(1, Relaxed);
        while driver.runs.load(Relaxed) == 0 {
            fsleep(Delta::from_millis(1));
        }
        let theirs = driver.runs.load(Relaxed) - 1;
        assert_eq!(theirs, not_ours.unsigned_abs() as usize);
        // SAFETY: We hold it.
        unsafe {
            assert_eq!(rust_hmm_table_unlock(mirror), 0);
            assert_eq!(rust_hmm_table_unlock(mirror), not_ours);
        }
        drop(thread);
        detach(&driver);
        Ok(())
    }

    #[test]
    fn other_headers_and_numbers_are_refused() -> Result {
        let (range, driver) = attached(1)?;
        let invalid = EINVAL.to_errno();
        let is = |pointer: *mut ffi::c_void, errno: ffi::c_int| {
            assert_eq!(pointer as isize, errno as isize);
        };
        let (data, end) = (driver.data(), range.end());
        let (mirror, start) = (driver.mirror(), range.start());
        // SAFETY: What is refused does nothing.
        unsafe {
            let memory = |ops: rust_hmm_memory_ops, pages| {
                is(rust_hmm_memory_create(&ops, data, pages).cast(), invalid);
            };
            let bad = |change: fn(&mut rust_hmm_mirror_ops)| {
                let mut ops = MIRROR_OPS;
                change(&mut ops);
                is(
                    rust_hmm_mirror_create(mm(), &ops, data, null_mut()).cast(),
                    invalid,
                );
            };
            memory(MEMORY_OPS, 0);
            memory(MEMORY_OPS, 511);
            memory(MEMORY_OPS, 1 << 40);
            let mut ops = MEMORY_OPS;
            ops.size = 32;
            memory(ops, PAGES);
            let mut ops = MEMORY_OPS;
            ops.copy = None;
            memory(ops, PAGES);
            bad(|ops| ops.size = 24);
            bad(|ops| ops.flags = 2);
            bad(|ops| ops.reserved = 1);
            is(
                rust_hmm_mirror_create(null_mut(), &MIRROR_OPS, data, null_mut()).cast(),
                invalid,
            );
            is(rust_hmm_queue_create(data, 0).cast(), invalid);
            is(rust_hmm_queue_create(data, (1 << 16) + 1).cast(), invalid);
            assert_eq!(rust_hmm_fault(mirror, end, start, 0), invalid);
            assert_eq!(rust_hmm_fault(mirror, start + 1, end, 0), invalid);
            assert_eq!(
                rust_hmm_serve(mirror, start, end, 0, 3, null_mut()),
                invalid
            );
            assert_eq!(
                rust_hmm_migrate(mirror, start, end, &to(2), null_mut()),
                invalid
            );
            let mut set = said();
            set.valid = RUST_HMM_HAS_ACCESSED_BY;
            set.accessed_by = 2;
            assert_eq!(rust_hmm_attributes_set(mirror, start, end, &set), invalid);
            // What was never made can be destroyed.
            assert_eq!(rust_hmm_mirror_destroy(null_mut()), 0);
            assert_eq!(rust_hmm_memory_destroy(ENOMEM.to_ptr()), 0);
            assert_eq!(rust_hmm_queue_destroy(EINTR.to_ptr()), 0);
        }
        detach(&driver);
        Ok(())
    }

    #[test]
    fn attributes_are_told_as_they_were_set() -> Result {
        let (range, driver) = attached(2)?;
        let (mirror, start, end) = (driver.mirror(), range.start(), range.end());
        let mut got = said();
        for (preferred, flag, granularity) in [
            (RUST_HMM_PREFER_DEVICE, 1, 3),
            (RUST_HMM_PREFER_SYSTEM, 0, -1),
            (RUST_HMM_PREFER_ANY, 1, 9),
        ] {
            let set = rust_hmm_attributes {
                valid: RUST_HMM_HAS_PREFERRED
                    | RUST_HMM_HAS_ACCESSED_BY
                    | RUST_HMM_HAS_NEVER_MIGRATE
                    | RUST_HMM_HAS_GRANULARITY,
                preferred: preferred as u8,
                accessed_by: flag,
                never_migrate: 1 - flag,
                granularity,
                ..said()
            };
            // SAFETY: All are alive.
            unsafe {
                assert_eq!(rust_hmm_attributes_set(mirror, start, end, &set), 0);
                assert_eq!(rust_hmm_attributes_get(mirror, start, end, &mut got), 0);
            }
            assert_eq!(got.valid & set.valid, set.valid);
            let what = (got.preferred, got.accessed_by, got.never_migrate);
            assert_eq!(what, (preferred as u8, flag, 1 - flag));
            assert_eq!((got.granularity, got.read_mostly), (granularity, 0));
        }
        // Of pages that differ nothing is said.
        let mut set = said();
        (set.valid, set.preferred) = (RUST_HMM_HAS_PREFERRED, 3);
        let second = range.address(1);
        // SAFETY: All are alive.
        unsafe {
            let refused = rust_hmm_attributes_set(mirror, second, end, &set);
            assert_eq!(refused, EINVAL.to_errno());
            set.preferred = RUST_HMM_PREFER_SYSTEM as u8;
            assert_eq!(rust_hmm_attributes_set(mirror, second, end, &set), 0);
            assert_eq!(rust_hmm_attributes_get(mirror, start, end, &mut got), 0);
            assert_eq!(got.valid & RUST_HMM_HAS_PREFERRED, 0);
            assert_ne!(got.valid & RUST_HMM_HAS_GRANULARITY, 0);
        }
        detach(&driver);
        Ok(())
    }

    #[test]
    fn what_a_fault_did_is_told() -> Result {
        let (range, driver) = attached(3)?;
        store(range.start(), 8)?;
        let (mirror, start, end) = (driver.mirror(), range.start(), range.end());
        let mut served = rust_hmm_served {
            moved: 9,
            replicated: 9,
            in_place: 9,
        };
        let mut states = [residency(), residency(), residency()];
        let second = range.address(1);
        // SAFETY: All are alive.
        unsafe {
            assert_eq!(
                rust_hmm_snapshot(mirror, start, end, states.as_mut_ptr()),
                0
            );
            let nowhere = RUST_HMM_IS_NONE as u8;
            assert_eq!(states[1].location, nowhere);
            assert_eq!(states[2].location, nowhere);
            // Where it is, unless attributes say otherwise.
            let asked = rust_hmm_serve(mirror, start, second, 0, 0, &mut served);
            assert_eq!(asked, 0);
            assert_eq!((served.moved, served.in_place), (0, 1));
            // The page, and no other; one of which nothing was known, with its neighbours or not.
            for policy in [1, 2] {
                let write = RUST_HMM_WRITE;
                let asked = rust_hmm_serve(mirror, start, second, write, policy, &mut served);
                assert_eq!(asked, 0);
                assert_eq!(served.replicated, 0);
            }
            assert_eq!(
                rust_hmm_snapshot(mirror, start, second, states.as_mut_ptr()),
                0
            );
            assert_eq!(states[0].location, RUST_HMM_IS_DEVICE as u8);
            // What cannot be served tells of nothing.
            let refused = rust_hmm_serve(mirror, end, start, 0, 0, &mut served);
            assert_eq!(refused, EINVAL.to_errno());
            assert_eq!((served.moved, served.in_place), (0, 0));
        }
        assert_eq!(load(start)?, 8);
        detach(&driver);
        Ok(())
    }

    #[test]
    fn what_is_unplugged_is_gone() -> Result {
        let (range, driver) = attached(2)?;
        store(range.start(), 9)?;
        let (mirror, start, end) = (driver.mirror(), range.start(), range.end());
        let how = to(rust_hmm_target_RUST_HMM_TO_THE_DEVICE);
        let gone = ENODEV.to_errno();
        // SAFETY: All are alive.
        unsafe {
            assert_eq!(rust_hmm_migrate(mirror, start, end, &how, null_mut()), 0);
            assert_eq!(rust_hmm_memory_unplug(driver.memory()), 0);
            assert_eq!(rust_hmm_memory_unplug(driver.memory()), gone as ffi::c_long);
            assert_eq!(rust_hmm_fault(mirror, start, end, 0), gone);
            assert_eq!(rust_hmm_migrate(mirror, start, end, &how, null_mut()), gone);
        }
        assert_eq!(load(start)?, 9);
        detach(&driver);
        Ok(())
    }

    #[test]
    fn a_migration_ends_with_the_queue_that_it_is_a_part_of() -> Result {
        let (range, driver) = attached(4)?;
        for index in 0..4 {
            store(range.address(index), 70 + index as u64)?;
        }
        let (queue, data) = (driver.queue(), driver.data());
        let submit = || {
            // SAFETY: All are alive.
            unsafe { rust_hmm_queue_submit(queue, null(), 0, Some(migrates), Some(release), data) }
        };
        let known = |counter| {
            // SAFETY: Alive.
            unsafe { rust_hmm_mirror_counter(driver.mirror(), counter) }
        };
        driver.start.store(range.start(), Relaxed);
        let first = submit();
        // SAFETY: The reference is ours.
        unsafe {
            assert_eq!(rust_hmm_fence_wait_for(first, -1), 0);
            bindings::rust_hmm_fence_put(first);
        }
        assert_eq!(driver.moved.load(Relaxed), 2);
        // The copy does not end, until the queue goes away.
        driver.keep.store(1, Relaxed);
        driver.start.store(range.address(2), Relaxed);
        let second = submit();
        while driver.kept.load(Acquire) == 0 {
            fsleep(Delta::from_millis(1));
        }
        assert_eq!(driver.cancels.load(Relaxed), 0);
        // SAFETY: All are alive; the reference is ours.
        unsafe {
            assert_eq!(rust_hmm_queue_destroy(queue), 0);
            driver.queue.store(0, Relaxed);
            assert_eq!(rust_hmm_fence_wait_for(second, 10_000), 0);
            bindings::rust_hmm_fence_put(second);
        }
        assert_ne!(driver.cancels.load(Relaxed), 0);
        assert_eq!((driver.moved.load(Relaxed), known(TO_DEVICE)), (1, 3));
        assert_eq!((known(SKIPPED), known(RETRIES)), (0, 0));
        assert_eq!((known(INVALIDATIONS) != 0, known(INVALIDATED)), (true, 0));
        detach(&driver);
        for index in 0..4 {
            assert_eq!(load(range.address(index))?, 70 + index as u64);
        }
        Ok(())
    }

    #[test]
    fn a_queue_releases_what_it_was_given_once() -> Result {
        let (_range, driver) = attached(1)?;
        let (queue, data) = (driver.queue(), driver.data());
        let count = |what: &Atomic<usize>| what.load(Relaxed);
        // SAFETY: All are alive; references are given back.
        unsafe {
            let gate = rust_hmm_fence_create(null());
            let none = [null_mut()];
            let done =
                rust_hmm_queue_submit(queue, none.as_ptr(), 1, Some(run), Some(release), data);
            assert_eq!(rust_hmm_fence_wait_for(done, -1), 0);
            bindings::rust_hmm_fence_put(done);
            assert_eq!((count(&driver.runs), count(&driver.releases)), (1, 1));
            // Within an operation of its own a queue is not destroyed.
            assert_eq!((count(&driver.refused), count(&driver.granted)), (1, 0));
            // Nothing to run: released all the same.
            let bad = rust_hmm_queue_submit(queue, null(), 0, None, Some(release), data);
            assert_eq!(bad as isize, EINVAL.to_errno() as isize);
            assert_eq!(count(&driver.releases), 2);
            // One waits, two stand behind it, and the next finds no room.
            let after = [gate];
            let submit =
                || rust_hmm_queue_submit(queue, after.as_ptr(), 1, Some(run), Some(release), data);
            let held = submit();
            let mut others = [submit(), submit(), submit()];
            let full = EBUSY.to_errno() as isize;
            // The thread may have taken the first one out by now, or not.
            while others[2] as isize != full {
                bindings::rust_hmm_fence_put(others[2]);
                others[2] = submit();
            }
            let before = count(&driver.releases);
            assert!(before >= 3);
            // What it depends on fails.
            assert_eq!(rust_hmm_fence_signal_once(gate, EIO.to_errno()), 0);
            assert_eq!(rust_hmm_fence_wait_for(held, 10_000), EIO.to_errno());
            for fence in others {
                if fence as isize != full {
                    assert_eq!(rust_hmm_fence_wait_for(fence, 10_000), EIO.to_errno());
                    bindings::rust_hmm_fence_put(fence);
                }
            }
            assert_eq!(count(&driver.runs), 1);
            assert!(count(&driver.releases) > before);
            let record = rust_hmm_queue_record(queue);
            assert_eq!(rust_hmm_fence_wait_for(record, 10_000), EIO.to_errno());
            // Cancelled with the queue.
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
                bindings::rust_hmm_fence_put(fence);
            }
        }
        detach(&driver);
        Ok(())
    }

    #[test]
    fn a_fence_is_signalled_once() -> Result {
        let invalid = EINVAL.to_errno();
        // SAFETY: The references are ours.
        unsafe {
            let fence = rust_hmm_fence_create(null());
            assert_eq!(rust_hmm_fence_wait_for(fence, 10), ETIMEDOUT.to_errno());
            assert_eq!(rust_hmm_fence_signal_once(fence, 1), invalid);
            assert_eq!(rust_hmm_fence_signal_once(fence, -5000), invalid);
            assert_eq!(rust_hmm_fence_signal_once(fence, ENOMEM.to_errno()), 0);
            assert_eq!(rust_hmm_fence_signal_once(fence, 0), invalid);
            assert_eq!(rust_hmm_fence_wait_for(fence, -1), ENOMEM.to_errno());
            bindings::rust_hmm_fence_put(fence);
            assert_eq!(rust_hmm_fence_wait_for(null_mut(), -1), 0);
            let mut file: *mut bindings::file = null_mut();
            let fence = rust_hmm_fence_create(null());
            assert_eq!(rust_hmm_fence_to_file(fence, 0, &mut file), invalid);
            assert_eq!(rust_hmm_fence_to_file(fence, 100_001, &mut file), invalid);
            assert!(file.is_null());
            assert_eq!(rust_hmm_fence_signal_once(fence, 0), 0);
            bindings::rust_hmm_fence_put(fence);
        }
        Ok(())
    }
}
