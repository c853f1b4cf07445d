// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of the C interface: attributes.

use super::*;

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_capi_attributes)]
mod tests {
    use super::*;
    use crate::mm::addr::PMD_ORDER;

    #[test]
    fn attributes_are_read_back() -> Result {
        let (range, driver) = attached(2)?;
        let mirror = driver.mirror();
        let start = range.start();
        let end = range.end();
        let mut got = no_attributes();
        for (preferred, flag, granularity) in [
            (RUST_HMM_PREFER_DEVICE, 1, 3),
            (RUST_HMM_PREFER_SYSTEM, 0, -1),
            (RUST_HMM_PREFER_ANY, 1, PMD_ORDER as i8),
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
                ..no_attributes()
            };
            // SAFETY: The objects are not destroyed before `detach`.
            unsafe {
                assert_eq!(rust_hmm_attributes_set(mirror, start, end, &set), 0);
                assert_eq!(rust_hmm_attributes_get(mirror, start, end, &mut got), 0);
            }
            assert_eq!(got.valid & set.valid, set.valid);
            let what = (got.preferred, got.accessed_by, got.never_migrate);
            assert_eq!(what, (preferred as u8, flag, 1 - flag));
            assert_eq!((got.granularity, got.read_mostly), (granularity, 0));
        }
        // An attribute that differs within the range is not reported.
        let mut set = no_attributes();
        set.valid = RUST_HMM_HAS_PREFERRED | RUST_HMM_HAS_ACCESSED_BY;
        set.preferred = RUST_HMM_PREFER_SYSTEM as u8;
        let second = range.address(1);
        // SAFETY: The objects are not destroyed before `detach`.
        unsafe {
            assert_eq!(rust_hmm_attributes_set(mirror, second, end, &set), 0);
            assert_eq!(rust_hmm_attributes_get(mirror, start, end, &mut got), 0);
            assert_eq!(got.valid & set.valid, 0);
            assert_ne!(got.valid & RUST_HMM_HAS_GRANULARITY, 0);
        }
        detach(&driver);
        Ok(())
    }

    #[test]
    fn preference_of_another_device_is_reported() -> Result {
        let (range, driver) = attached(2)?;
        let (_, other) = attached(1)?;
        let start = range.start();
        let end = range.end();
        let set = rust_hmm_attributes {
            valid: RUST_HMM_HAS_PREFERRED | RUST_HMM_HAS_ACCESSED_BY,
            preferred: RUST_HMM_PREFER_DEVICE as u8,
            accessed_by: 1,
            ..no_attributes()
        };
        let mut got = [no_attributes(), no_attributes()];
        let [own, others] = &mut got;
        // SAFETY: The objects are not destroyed before `detach`.
        unsafe {
            assert_eq!(
                rust_hmm_attributes_set(driver.mirror(), start, end, &set),
                0
            );
            assert_eq!(rust_hmm_attributes_get(driver.mirror(), start, end, own), 0);
            assert_eq!(
                rust_hmm_attributes_get(other.mirror(), start, end, others),
                0
            );
        }
        let all = [RUST_HMM_PREFER_DEVICE, RUST_HMM_PREFER_OTHER].map(|preferred| preferred as u8);
        assert_eq!(got.each_ref().map(|got| got.preferred), all);
        assert_eq!(got.each_ref().map(|got| got.accessed_by), [1, 0]);
        // After its device is closed, the memory has no preferred location.
        detach(&driver);
        let mut got = no_attributes();
        // SAFETY: The objects are not destroyed before `detach`.
        let errno = unsafe { rust_hmm_attributes_get(other.mirror(), start, end, &mut got) };
        assert_eq!((errno, got.preferred), (0, RUST_HMM_PREFER_ANY as u8));
        detach(&other);
        Ok(())
    }

    #[test]
    fn invalid_attributes_are_refused() -> Result {
        let (range, driver) = attached(1)?;
        let mirror = driver.mirror();
        let start = range.start();
        let end = range.end();
        let refused = |change: fn(&mut rust_hmm_attributes)| {
            let mut set = no_attributes();
            change(&mut set);
            // SAFETY: The objects are not destroyed before `detach`.
            let errno = unsafe { rust_hmm_attributes_set(mirror, start, end, &set) };
            assert_eq!(errno, EINVAL.to_errno());
        };
        refused(|set| (set.valid, set.granularity) = (RUST_HMM_HAS_GRANULARITY, -2));
        refused(|set| {
            (set.valid, set.granularity) = (RUST_HMM_HAS_GRANULARITY, PMD_ORDER as i8 + 1)
        });
        refused(|set| {
            (set.valid, set.preferred) = (RUST_HMM_HAS_PREFERRED, RUST_HMM_PREFER_OTHER as u8)
        });
        refused(|set| (set.valid, set.accessed_by) = (RUST_HMM_HAS_ACCESSED_BY, 2));
        refused(|set| (set.valid, set.read_mostly) = (RUST_HMM_HAS_READ_MOSTLY, 2));
        refused(|set| (set.valid, set.never_migrate) = (RUST_HMM_HAS_NEVER_MIGRATE, 2));
        refused(|set| set.valid = RUST_HMM_HAS_GRANULARITY << 1);
        refused(|set| set.valid = 1 << 31);
        refused(|set| set.reserved = [0, 0, 1]);
        // No part of a refused change was applied.
        let mut got = no_attributes();
        // SAFETY: The objects are not destroyed before `detach`.
        unsafe {
            assert_eq!(rust_hmm_attributes_get(mirror, start, end, &mut got), 0);
        }
        let what = (got.preferred, got.accessed_by, got.read_mostly);
        assert_eq!(what, (RUST_HMM_PREFER_ANY as u8, 0, 0));
        assert_eq!((got.never_migrate, got.granularity), (0, -1));
        detach(&driver);
        Ok(())
    }
}
