// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: attributes of several devices, and the sets that they share.

use super::*;

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_device_attributes)]
mod suite {
    use super::*;

    #[test]
    fn preference_of_one_device_is_remote_for_the_other() -> Result {
        let map = new()?;
        let all = range(1000, 10)?;
        let anchor = anchor(1000);
        map.change(all, anchor, &prefer(To::Device), device(FIRST))?;
        map.change(all, anchor, &access(true), device(SECOND))?;
        let seen = |number| map.common(all, device(number));
        let both = |number| (seen(number).preferred, seen(number).accessed_by);
        assert_eq!(both(FIRST), (Some(To::Device), Some(false)));
        assert_eq!(both(SECOND), (Some(To::Other), Some(true)));
        // A device that no attribute names, and no device at all.
        assert_eq!(both(0x3000), (Some(To::Other), Some(false)));
        assert_eq!(both(0), (Some(To::Other), Some(false)));
        // A device can only remove its own access. The preferred location is that of the last
        // change.
        map.change(all, anchor, &access(false), device(FIRST))?;
        assert_eq!(both(SECOND), (Some(To::Other), Some(true)));
        map.change(range(1000, 5)?, anchor, &prefer(To::Device), device(SECOND))?;
        assert_eq!(both(FIRST), (None, Some(false)));
        assert_eq!(
            map.at(1000 << PAGE_SHIFT, all, device(FIRST)).0.preferred(),
            To::Other
        );
        assert_eq!(
            map.at(1000 << PAGE_SHIFT, all, device(SECOND))
                .0
                .preferred(),
            To::Device
        );
        map.change(all, anchor, &prefer(To::Any), device(FIRST))?;
        assert_eq!(both(SECOND), (Some(To::Any), Some(true)));
        map.change(all, anchor, &access(false), device(SECOND))?;
        assert!(!map.any(all));
        // A change cannot name another device.
        let other = map.change(all, anchor, &prefer(To::Other), device(FIRST));
        assert_eq!((other, map.any(all)), (Err(EINVAL), false));
        Ok(())
    }

    #[test]
    fn attributes_of_two_devices_move_with_the_range() -> Result {
        let map = new()?;
        map.change(
            range(1000, 10)?,
            anchor(1000),
            &prefer(To::Device),
            device(FIRST),
        )?;
        map.change(range(1005, 5)?, anchor(1000), &access(true), device(SECOND))?;
        map.orphan(range(1000, 10)?);
        let moved = Relocated {
            first: 5000,
            pages: 10,
            offset: 1000,
            anchor: VmaAnchor::new(5000, 1000, 0x1234_5678),
        };
        let find = |offset: usize, from: usize| {
            (from < 5010 && (1000..1010).contains(&offset)).then_some(moved)
        };
        settled(map.resolve_orphans(ALL, find))?;
        let seen = |number, first| {
            let common = map.common(range(first, 5)?, device(number));
            Ok::<_, Error>((common.preferred, common.accessed_by))
        };
        assert_eq!(seen(FIRST, 5000)?, (Some(To::Device), Some(false)));
        assert_eq!(seen(FIRST, 5005)?, (Some(To::Device), Some(false)));
        assert_eq!(seen(SECOND, 5000)?, (Some(To::Other), Some(false)));
        assert_eq!(seen(SECOND, 5005)?, (Some(To::Other), Some(true)));
        assert!(!map.any(range(1000, 10)?));
        Ok(())
    }

    #[test]
    fn device_close_drops_its_attributes() -> Result {
        let map = new()?;
        let all = range(1000, 10)?;
        let anchor = anchor(1000);
        map.change(all, anchor, &prefer(To::Device), device(FIRST))?;
        map.change(all, anchor, &access(true), device(FIRST))?;
        map.change(all, anchor, &access(true), device(SECOND))?;
        let set = AttributeUpdate {
            read_mostly: Some(true),
            ..AttributeUpdate::default()
        };
        map.change(range(1000, 5)?, anchor, &set, device(FIRST))?;
        // This includes ranges that are set aside.
        map.orphan(range(1005, 5)?);
        map.remove_device(device(FIRST));
        let find = |offset: usize, from: usize| {
            (from == 0).then_some(Relocated {
                first: 5000 + (offset - 1000),
                pages: 1,
                offset,
                anchor: VmaAnchor::new(5000, 1000, 0x1234_5678),
            })
        };
        settled(map.resolve_orphans(ALL, find))?;
        let seen = |number, first| {
            let common = map.common(range(first, 5)?, device(number));
            Ok::<_, Error>((common.preferred, common.accessed_by, common.read_mostly))
        };
        let any = Some(To::Any);
        let no = Some(false);
        let yes = Some(true);
        assert_eq!(seen(FIRST, 1000)?, (any, no, yes));
        assert_eq!(seen(SECOND, 1000)?, (any, yes, yes));
        assert_eq!(seen(SECOND, 5005)?, (any, yes, no));
        // A new device does not inherit attributes, neither with the same index nor with the same
        // identity.
        map.change(range(0, 1)?, anchor, &access(true), device(0x3000))?;
        assert_eq!(seen(0x3000, 1000)?, (any, no, yes));
        map.remove_device(device(SECOND));
        assert_eq!(seen(SECOND, 5005)?, (any, no, no));
        Ok(())
    }

    /// Returns a change that is distinct for numbers from 8 to 87, and never results in the
    /// default.
    fn distinct(number: usize) -> AttributeUpdate {
        let bit = |bit: usize| Some(number >> bit & 1 != 0);
        AttributeUpdate {
            preferred: Some(if number & 1 == 0 { To::Any } else { To::System }),
            accessed_by: None,
            read_mostly: bit(1),
            never_migrate: bit(2),
            granularity: Some((number >> 3).checked_sub(1).map(|order| order as u32)),
        }
    }

    /// Sets unique attributes for page `number`, for numbers below 1280.
    fn set_distinct(map: &Map, number: usize) -> Result {
        let page = range(number, 1)?;
        let anchor = anchor(0);
        map.change(page, anchor, &distinct(number % 80 + 8), device(FIRST))?;
        for bit in 0..4 {
            let name = device(0x1000 * (bit + 1));
            map.change(page, anchor, &access(number / 80 >> bit & 1 != 0), name)?;
        }
        Ok(())
    }

    #[test]
    fn sets_are_bounded_and_reused() -> Result {
        let map = new()?;
        let mut count = 0;
        let full = loop {
            match set_distinct(&map, count) {
                Ok(()) => count += 1,
                Err(error) => break error,
            }
        };
        // The last change was applied in part.
        assert_eq!((full, count), (ENOSPC, Sets::MAX_SETS));
        // Existing sets can still be used for other pages, and have kept their attributes.
        for number in [0, 1, 500, count - 1] {
            let (seen, _) = map.at(number << PAGE_SHIFT, range(0, 4096)?, device(FIRST));
            let plain = distinct(number % 80 + 8).apply(Attributes::DEFAULT)?;
            let expected = access(number / 80 & 1 != 0).apply(plain)?;
            assert_eq!(seen, expected);
        }
        map.change(range(2000, 1)?, anchor(0), &distinct(8), device(FIRST))?;
        // Numbers of sets are reused when no page has them: those of unmapped pages, but not those
        // of ranges that are set aside, until these are resolved.
        map.orphan(range(100, 1)?);
        assert_eq!(set_distinct(&map, 1279), Err(ENOSPC));
        settled(map.resolve_orphans(ALL, |_, _| None))?;
        set_distinct(&map, 1279)?;
        assert_eq!(set_distinct(&map, 1278), Err(ENOSPC));
        map.change(range(101, 1)?, anchor(0), &distinct(8), device(FIRST))?;
        set_distinct(&map, 1278)
    }

    #[test]
    fn number_of_devices_is_bounded() -> Result {
        let map = new()?;
        let all = range(1000, 1)?;
        let anchor = anchor(1000);
        for number in 1..=Sets::MAX_DEVICES {
            map.change(all, anchor, &access(true), device(number << 12))?;
        }
        let more = device((Sets::MAX_DEVICES + 1) << 12);
        assert_eq!(map.change(all, anchor, &access(true), more), Err(ENOSPC));
        assert_eq!(
            map.change(all, anchor, &prefer(To::Device), more),
            Err(ENOSPC)
        );
        // A change that names no device applies to all devices.
        map.change(all, anchor, &prefer(To::System), more)?;
        assert_eq!(map.common(all, more).preferred, Some(To::System));
        map.remove_device(device(5 << 12));
        map.change(all, anchor, &access(true), more)?;
        assert_eq!(map.common(all, more).accessed_by, Some(true));
        assert_eq!(map.common(all, device(5 << 12)).accessed_by, Some(false));
        for number in (1..=Sets::MAX_DEVICES).filter(|number| *number != 5) {
            let common = map.common(all, device(number << 12));
            assert_eq!(common.accessed_by, Some(true));
        }
        Ok(())
    }
}
