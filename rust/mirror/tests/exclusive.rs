// SPDX-License-Identifier: GPL-2.0

//! Exclusive access of the device, in KUnit.

use super::{
    transaction::{Identity, Request},
    *,
};
use crate::thread::Thread;
use kernel::{
    sync::{Completion, SetOnce},
    time::{delay::fsleep, Delta, Instant, Monotonic},
};

#[kunit_tests(rust_hmm_exclusive)]
mod suite {
    use super::*;

    #[test]
    fn exclusive_access_ends_with_a_cpu_touch() -> Result {
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

    /// Migrations of `page` that never end take all places. Returns how many there are.
    fn take_all_places(mirror: &Mirror<TestDevice>, names: &[u8], page: PageRange) -> usize {
        let begun = names.iter().position(|name| {
            let request = Request {
                name: Cookie::of(name),
                identity: Identity::Name,
                range: page,
                faultless: false,
            };
            mirror
                .notifier()
                .lock()
                .transactions
                .begin(request)
                .is_err()
        });
        begun.unwrap_or(names.len())
    }

    fn end(mirror: &Mirror<TestDevice>, name: &u8) -> bool {
        mirror.notifier().lock().transactions.end(Cookie::of(name))
    }

    #[test]
    fn too_many_migrations_are_waited_for_once() -> Result {
        let (range, _shared, mirror) = attached(2)?;
        store(range.start(), 21)?;
        let names = [0u8; 64];
        let taken = take_all_places(&mirror, &names, PageRange::from_pages(range.address(1), 1)?);
        assert!(taken > 0 && taken < names.len());
        let first = PageRange::from_pages(range.start(), 1)?;
        let begin = Instant::<Monotonic>::now();
        assert_eq!(mirror.make_exclusive(first), Err(EBUSY));
        // A wait takes one to two seconds.
        assert!(begin.elapsed() < Delta::from_secs(20));
        // With a place it works.
        assert!(end(&mirror, &names[0]));
        mirror.make_exclusive(first)?;
        assert!(mirror.lock_table()?.any_exclusive(first));
        for name in names.iter().take(taken).skip(1) {
            assert!(end(&mirror, name));
        }
        assert_eq!(load(range.start())?, 21);
        Ok(())
    }

    #[test]
    fn nothing_becomes_exclusive_after_an_unplug() -> Result {
        let (range, shared, mirror) = attached(2)?;
        store(range.start(), 21)?;
        let mirror = Arc::new(mirror, GFP_KERNEL)?;
        let names = [0u8; 64];
        let taken = take_all_places(&mirror, &names, PageRange::from_pages(range.address(1), 1)?);
        let first = PageRange::from_pages(range.start(), 1)?;
        let begun = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
        let result = Arc::new(SetOnce::new(), GFP_KERNEL)?;
        let thread = {
            let (mirror, begun, result) = (mirror.clone(), begun.clone(), result.clone());
            Thread::spawn(c"hmm-test", move || {
                begun.complete_all();
                result.populate(mirror.make_exclusive(first));
            })?
        };
        begun.wait_for_completion();
        // It has seen a device that is there, and waits for a place, a second at least.
        fsleep(Delta::from_millis(100));
        assert_eq!(shared.memory.unplug()?, (0, 0));
        assert!(SetOnce::as_ref(&result).is_none());
        for name in names.iter().take(taken) {
            assert!(end(&mirror, name));
        }
        drop(thread);
        assert_eq!(SetOnce::as_ref(&result), Some(&Err(ENODEV)));
        assert!(!mirror.lock_table()?.any_exclusive(first));
        assert_eq!(load(range.start())?, 21);
        Ok(())
    }
}
