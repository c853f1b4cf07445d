// SPDX-License-Identifier: GPL-2.0

//! Exclusive access of the device, in KUnit.

use super::{
    transaction::{Identity, Request},
    *,
};
use kernel::time::{Delta, Instant, Monotonic};

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

    #[test]
    fn too_many_migrations_are_waited_for_once() -> Result {
        let (range, _shared, mirror) = attached(2)?;
        store(range.start(), 21)?;
        // Migrations that never end take all places.
        let names = [0u8; 64];
        let mut taken = 0;
        for name in &names {
            let request = Request {
                name: Cookie::of(name),
                identity: Identity::Name,
                range: PageRange::from_pages(range.address(1), 1)?,
                faultless: false,
            };
            if mirror
                .notifier()
                .lock()
                .transactions
                .begin(request)
                .is_err()
            {
                break;
            }
            taken += 1;
        }
        assert!(taken > 0 && taken < names.len());
        let first = PageRange::from_pages(range.start(), 1)?;
        let begin = Instant::<Monotonic>::now();
        assert_eq!(mirror.make_exclusive(first), Err(EBUSY));
        // A wait takes one to two seconds.
        assert!(begin.elapsed() < Delta::from_secs(20));
        // With a place it works.
        assert!(mirror
            .notifier()
            .lock()
            .transactions
            .end(Cookie::of(&names[0])));
        mirror.make_exclusive(first)?;
        assert!(mirror.lock_table()?.any_exclusive(first));
        for name in names.iter().take(taken).skip(1) {
            assert!(mirror.notifier().lock().transactions.end(Cookie::of(name)));
        }
        assert_eq!(load(range.start())?, 21);
        Ok(())
    }
}
