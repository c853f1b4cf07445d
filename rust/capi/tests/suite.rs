// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of the C interface: misuse, and the ownership of objects.

use super::*;

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_capi)]
mod tests {
    use super::*;

    #[test]
    fn migration_pairs_callbacks() -> Result {
        let (range, driver) = attached(6)?;
        for index in 0..4 {
            store(range.address(index), 50 + index as u64)?;
        }
        let mirror = driver.mirror();
        let start = range.start();
        let end = range.end();
        let mut place = place();
        let mut outcomes = [0xffu8; 8];
        let mut how = to(rust_hmm_target_RUST_HMM_TO_THE_DEVICE);
        (how.pages, how.npages) = (outcomes.as_mut_ptr(), outcomes.len());
        let mut outcome = outcome();
        driver.fail_copies.store(1, Relaxed);
        // SAFETY: The objects are not destroyed before `detach`.
        unsafe {
            assert_eq!(rust_hmm_fault(mirror, start, range.address(4), 0), 0);
            assert_eq!(rust_hmm_table_lock(mirror), 0);
            assert_eq!(rust_hmm_table_lookup(mirror, start, 0, &mut place), 0);
            assert_eq!(rust_hmm_table_unlock(mirror), 0);
            assert_eq!((place.kind, place.pages), (rust_hmm_where_RUST_HMM_CPU, 1));
            assert_eq!(rust_hmm_migrate(mirror, start, end, &how, &mut outcome), 0);
        }
        // The first copy failed, four pages had an entry, and two were holes.
        assert_eq!((outcome.moved, outcome.copy_failed), (5, 1));
        assert_eq!(outcomes, [3, 5, 5, 5, 4, 4, 0, 0]);
        assert_eq!(driver.copies.load(Relaxed), 6);
        assert_ne!(driver.doorbells.load(Relaxed), 0);
        let mut states = [residency(), residency(), residency(), residency()];
        let mut usage = rust_hmm_usage {
            used: 0,
            total: 0,
            limit: 0,
        };
        // SAFETY: The objects are not destroyed before `detach`.
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
        // A CPU fault migrates them back.
        assert_eq!(load(range.address(1))?, 51);
        assert_eq!(load(range.address(4))?, 0);
        // SAFETY: The objects are not destroyed before `detach`.
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
        // All pages are in system memory.
        for index in 0..4 {
            assert_eq!(load(range.address(index))?, 50 + index as u64);
        }
        Ok(())
    }

    /// Between the drop of a mirror's reference to the memory and the decrement of the memory's
    /// user count, a delay is injected.
    #[test]
    fn memory_is_busy_while_a_mirror_holds_it() -> Result {
        let (_, driver) = attached(1)?;
        let armed = ArmedPoint::new(FailPoint::Window, 1, false)?;
        let destroyer = driver.clone();
        let thread = Thread::spawn(c"hmm-test", move || {
            // SAFETY: No other code uses the mirror.
            unsafe { rust_hmm_mirror_destroy(destroyer.mirror()) };
        })?;
        for _ in 0..10_000 {
            if !armed.is_left() {
                break;
            }
            fsleep(Delta::from_millis(1));
        }
        assert!(!armed.is_left());
        // SAFETY: The memory was not destroyed yet.
        let first = unsafe { rust_hmm_memory_destroy(driver.memory()) };
        drop(thread);
        assert_eq!(first, EBUSY.to_errno());
        // SAFETY: The memory was not destroyed, because the first call failed. The queue has no
        // operations.
        unsafe {
            assert_eq!(rust_hmm_memory_destroy(driver.memory()), 0);
            assert_eq!(rust_hmm_queue_destroy(driver.queue()), 0);
        }
        Ok(())
    }

    #[test]
    fn migration_without_eviction_evicts_nothing() -> Result {
        let (range, driver) = attached(PAGES + 4)?;
        for index in 0..range.pages() {
            store(range.address(index), index as u64)?;
        }
        let mirror = driver.mirror();
        let border = range.address(PAGES);
        let mut how = to(rust_hmm_target_RUST_HMM_TO_THE_DEVICE);
        let migrate = |start, end, how: &rust_hmm_migration| {
            let mut outcome = outcome();
            // SAFETY: The objects are not destroyed before `detach`.
            let errno = unsafe { rust_hmm_migrate(mirror, start, end, how, &mut outcome) };
            (errno, outcome.moved, outcome.no_memory)
        };
        let used = || {
            let mut usage = rust_hmm_usage {
                used: 0,
                total: 0,
                limit: 0,
            };
            // SAFETY: The memory is not destroyed before `detach`.
            unsafe { rust_hmm_memory_usage(driver.memory(), &mut usage) };
            usage.used
        };
        assert_eq!(migrate(range.start(), border, &how), (0, PAGES, 0));
        how.flags = bindings::RUST_HMM_NO_EVICTION;
        assert_eq!(migrate(border, range.end(), &how), (0, 0, 4));
        assert_eq!(used(), PAGES);
        how.flags = 0;
        assert_eq!(migrate(border, range.end(), &how), (0, 4, 0));
        assert!(used() < PAGES);
        detach(&driver);
        for index in 0..range.pages() {
            assert_eq!(load(range.address(index))?, index as u64);
        }
        Ok(())
    }

    #[test]
    fn calls_within_callbacks_are_refused() -> Result {
        let (range, driver) = attached(2)?;
        store(range.start(), 1)?;
        let mirror = driver.mirror();
        let start = range.start();
        let end = range.end();
        let how = to(rust_hmm_target_RUST_HMM_TO_THE_DEVICE);
        driver.reenter.store(1, Relaxed);
        // SAFETY: The objects are not destroyed before `detach`.
        unsafe {
            assert_eq!(rust_hmm_fault(mirror, start, end, RUST_HMM_WRITE), 0);
            assert_eq!(rust_hmm_migrate(mirror, start, end, &how, null_mut()), 0);
            assert_eq!(rust_hmm_discard(mirror, start, end), 0);
        }
        driver.reenter.store(0, Relaxed);
        assert_eq!(driver.granted.load(Relaxed), 0);
        // At least a flush, a wait for it, a copy and a doorbell have called all of them.
        assert!(driver.refused.load(Relaxed) >= 4 * CALLS);
        assert_ne!(driver.copies.load(Relaxed), 0);
        detach(&driver);
        assert_eq!(load(range.start())?, 1);
        Ok(())
    }

    #[test]
    fn table_lock_is_released_by_its_task_only() -> Result {
        let (range, driver) = attached(1)?;
        let mirror = driver.mirror();
        let start = range.start();
        let end = range.end();
        let busy = reentry::deadlock().to_errno();
        let not_ours = EPERM.to_errno();
        let mut place = place();
        // The thread is created first, because memory cannot be allocated with the table lock held.
        let seen = driver.clone();
        let theirs = mirror as usize;
        let thread = Thread::spawn(c"hmm-test", move || {
            while seen.doorbells.load(Relaxed) == 0 {
                fsleep(Delta::from_millis(1));
            }
            // SAFETY: The mirror is not destroyed before this thread has ended.
            let errno = unsafe { rust_hmm_table_unlock(theirs as *mut _) };
            seen.runs.store(1 + errno.unsigned_abs() as usize, Relaxed);
        })?;
        // SAFETY: The objects are not destroyed before `detach`. A refused call has no effect.
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
        driver.doorbells.store(1, Relaxed);
        while driver.runs.load(Relaxed) == 0 {
            fsleep(Delta::from_millis(1));
        }
        let theirs = driver.runs.load(Relaxed) - 1;
        assert_eq!(theirs, not_ours.unsigned_abs() as usize);
        // SAFETY: This task holds the table lock. The second call is refused.
        unsafe {
            assert_eq!(rust_hmm_table_unlock(mirror), 0);
            assert_eq!(rust_hmm_table_unlock(mirror), not_ours);
        }
        drop(thread);
        detach(&driver);
        Ok(())
    }

    #[test]
    fn invalid_structures_and_values_are_refused() -> Result {
        let (range, driver) = attached(1)?;
        let invalid = EINVAL.to_errno();
        let is = |pointer: *mut ffi::c_void, errno: ffi::c_int| {
            assert_eq!(pointer as isize, errno as isize);
        };
        let data = driver.data();
        let end = range.end();
        let mirror = driver.mirror();
        let start = range.start();
        // SAFETY: Refused calls have no effect.
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
            memory(MEMORY_OPS, (1 << 40) + PMD_PAGES);
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
            assert_eq!(
                rust_hmm_serve(mirror, start, end, 1 << 9, 0, null_mut()),
                invalid
            );
            assert_eq!(
                rust_hmm_snapshot(mirror, end, start, &mut residency()),
                invalid
            );
            let mut set = no_attributes();
            set.valid = RUST_HMM_HAS_ACCESSED_BY;
            assert_eq!(rust_hmm_attributes_set(mirror, end, start, &set), invalid);
            set.accessed_by = 2;
            assert_eq!(rust_hmm_attributes_set(mirror, start, end, &set), invalid);
            assert_eq!(rust_hmm_fence_signal_once(null_mut(), 0), invalid);
            // NULL and error pointers can be destroyed.
            assert_eq!(rust_hmm_mirror_destroy(null_mut()), 0);
            assert_eq!(rust_hmm_memory_destroy(ENOMEM.to_ptr()), 0);
            assert_eq!(rust_hmm_queue_destroy(EINTR.to_ptr()), 0);
        }
        detach(&driver);
        Ok(())
    }

    #[test]
    fn fault_reports_its_outcome() -> Result {
        let (range, driver) = attached(3)?;
        store(range.start(), 8)?;
        let mirror = driver.mirror();
        let start = range.start();
        let end = range.end();
        let mut served = rust_hmm_served {
            moved: 9,
            in_place: 9,
        };
        let mut states = [residency(), residency(), residency()];
        let second = range.address(1);
        // SAFETY: The objects are not destroyed before `detach`.
        unsafe {
            assert_eq!(
                rust_hmm_snapshot(mirror, start, end, states.as_mut_ptr()),
                0
            );
            let nowhere = RUST_HMM_IS_NONE as u8;
            assert_eq!(states[1].location, nowhere);
            assert_eq!(states[2].location, nowhere);
            // The page stays in place, because it has no attributes.
            let asked = rust_hmm_serve(mirror, start, second, 0, 0, &mut served);
            assert_eq!(asked, 0);
            assert_eq!((served.moved, served.in_place), (0, 1));
            // Both policies migrate the page. The default policy may migrate neighbours, too.
            for policy in [1, 2] {
                let write = RUST_HMM_WRITE;
                let asked = rust_hmm_serve(mirror, start, second, write, policy, &mut served);
                assert_eq!(asked, 0);
            }
            assert_eq!(
                rust_hmm_snapshot(mirror, start, second, states.as_mut_ptr()),
                0
            );
            assert_eq!(states[0].location, RUST_HMM_IS_DEVICE as u8);
            // A refused call clears the result.
            let refused = rust_hmm_serve(mirror, end, start, 0, 0, &mut served);
            assert_eq!(refused, EINVAL.to_errno());
            assert_eq!((served.moved, served.in_place), (0, 0));
        }
        // A page that is not mapped has no state.
        unmap(PageRange::from_pages(second, 1)?)?;
        // SAFETY: The mirror is not destroyed before `detach`.
        unsafe {
            let third = range.address(2);
            assert_eq!(rust_hmm_snapshot(mirror, second, third, &mut states[1]), 0);
        }
        assert_eq!(
            states[1].location,
            bindings::rust_hmm_location_RUST_HMM_IS_ERROR as u8
        );
        assert_eq!(load(start)?, 8);
        detach(&driver);
        Ok(())
    }

    #[test]
    fn calls_after_unplug_return_enodev() -> Result {
        let (range, driver) = attached(2)?;
        store(range.start(), 9)?;
        let mirror = driver.mirror();
        let start = range.start();
        let end = range.end();
        let how = to(rust_hmm_target_RUST_HMM_TO_THE_DEVICE);
        let gone = ENODEV.to_errno();
        // SAFETY: The objects are not destroyed before `detach`.
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
    fn pages_of_another_device_are_not_own_pages() -> Result {
        let (range, driver) = attached(2)?;
        let other = attach()?;
        store(range.start(), 4)?;
        let mirror = driver.mirror();
        let start = range.start();
        let end = range.end();
        let second = range.address(1);
        let how = to(rust_hmm_target_RUST_HMM_TO_THE_DEVICE);
        let mut states = [residency(), residency()];
        // SAFETY: The objects are not destroyed before `detach`.
        unsafe {
            assert_eq!(
                rust_hmm_migrate(other.mirror(), start, second, &how, null_mut()),
                0
            );
            assert_eq!(rust_hmm_fault(mirror, second, end, 0), 0);
            assert_eq!(
                rust_hmm_snapshot(mirror, start, end, states.as_mut_ptr()),
                0
            );
        }
        let reported = states.map(|state| (u32::from(state.location), state.writable, state.order));
        assert_eq!(
            reported,
            [(RUST_HMM_IS_NONE, 0, 0), (RUST_HMM_IS_ZERO, 0, 0)]
        );
        assert_eq!(load(start)?, 4);
        detach(&other);
        detach(&driver);
        Ok(())
    }
}
