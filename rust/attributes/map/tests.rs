// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: the attributes of an address space, compared with a simple model.

use super::*;
use crate::{
    attributes::PreferredLocation as To,
    mm::addr::PMD_ORDER, //
};
use core::cell::Cell;

/// Returns the identity of a device.
fn device(number: usize) -> DeviceId {
    DeviceId::for_test(number)
}

const FIRST: usize = 0x1000;
const SECOND: usize = 0x2000;

/// A watched range that contains all ranges of the tests.
const ALL: Option<PageRange> = match PageRange::new(0, 1 << 46) {
    Ok(all) => Some(all),
    Err(_) => None,
};

fn new() -> Result<Pin<KBox<Map>>> {
    KBox::pin_init(Map::new(), GFP_KERNEL)
}

fn anchor(first: usize) -> VmaAnchor {
    VmaAnchor::new(first, first, 0x1234_5678)
}

fn range(first: usize, pages: usize) -> Result<PageRange> {
    PageRange::from_pages(first << PAGE_SHIFT, pages)
}

/// Converts an unwatched range to an error.
fn settled(result: Result<(), PageRange>) -> Result {
    result.map_err(|_| EBUSY)
}

fn access(yes: bool) -> AttributeUpdate {
    AttributeUpdate {
        accessed_by: Some(yes),
        ..AttributeUpdate::default()
    }
}

fn prefer(location: To) -> AttributeUpdate {
    AttributeUpdate {
        preferred: Some(location),
        ..AttributeUpdate::default()
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_attributes)]
mod suite {
    use super::*;

    #[test]
    fn random_changes_agree_with_an_array() -> Result {
        const BASE: usize = 1 << 30;
        const LEN: usize = 200;
        let map = new()?;
        let mut model = KVec::from_elem(Attributes::DEFAULT, LEN, GFP_KERNEL)?;
        let mut random = 99u64;
        for _ in 0..400 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            let bits = |shift: u32, count: u64| (random >> shift) % count;
            let first = bits(33, LEN as u64) as usize;
            let pages = (bits(41, 40) as usize + 1).min(LEN - first);
            let part = range(BASE + first, pages)?;
            let flag = bits(50, 2) == 1;
            let change = match bits(52, 6) {
                0 => prefer(if flag { To::Device } else { To::System }),
                1 => prefer(To::Any),
                2 => AttributeUpdate {
                    accessed_by: Some(flag),
                    ..AttributeUpdate::default()
                },
                3 => AttributeUpdate {
                    read_mostly: Some(flag),
                    ..AttributeUpdate::default()
                },
                4 => AttributeUpdate {
                    never_migrate: Some(flag),
                    ..AttributeUpdate::default()
                },
                _ => AttributeUpdate {
                    granularity: Some(flag.then_some(bits(55, 10) as u32)),
                    ..AttributeUpdate::default()
                },
            };
            if bits(58, 8) == 0 {
                // The range was unmapped, and not moved.
                map.orphan(part);
                settled(map.resolve_orphans(ALL, |_, _| None))?;
                model
                    .iter_mut()
                    .skip(first)
                    .take(pages)
                    .for_each(|one| *one = Attributes::DEFAULT);
            } else {
                map.change(part, anchor(BASE), &change, device(FIRST))?;
                for one in model.iter_mut().skip(first).take(pages) {
                    *one = change.apply(*one)?;
                }
            }
            // The attributes of a range, and of each of its pages.
            let mut all = model.iter().skip(first).take(pages);
            let one = all.next().ok_or(EINVAL)?;
            let expected = all.fold(CommonAttributes::of(*one), |common, other| {
                common.and(*other)
            });
            assert_eq!(map.common(part, device(FIRST)), expected);
            let limits = range(BASE, LEN)?;
            let (found, same) = map.at(part.start(), limits, device(FIRST));
            assert_eq!(found, *one);
            let from = (same.start() >> PAGE_SHIFT) - BASE;
            assert!(model
                .iter()
                .skip(from)
                .take(same.pages())
                .all(|other| other == one));
        }
        Ok(())
    }

    #[test]
    fn gaps_end_at_neighbouring_ranges() -> Result {
        let map = new()?;
        map.change(
            range(1000, 10)?,
            anchor(1000),
            &prefer(To::Device),
            device(FIRST),
        )?;
        let limits = range(900, 200)?;
        for (page, first, pages) in [(950, 900, 100), (1005, 1000, 10), (1050, 1010, 90)] {
            let (_, same) = map.at(page << PAGE_SHIFT, limits, device(FIRST));
            assert_eq!(same, range(first, pages)?);
        }
        Ok(())
    }

    #[test]
    fn moved_ranges_are_found_again() -> Result {
        let map = new()?;
        map.change(
            range(1000, 10)?,
            anchor(1000),
            &prefer(To::Device),
            device(FIRST),
        )?;
        map.change(
            range(1004, 2)?,
            anchor(1000),
            &prefer(To::System),
            device(FIRST),
        )?;
        // Moved to page 5000 by `mremap()`. The offset and the reverse mapping stay.
        map.orphan(range(1000, 10)?);
        assert!(map.is_unsettled());
        assert_eq!(
            map.common(range(1000, 10)?, device(FIRST)),
            CommonAttributes::of(Attributes::DEFAULT)
        );
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
        let preferred = |first, pages| {
            Ok::<_, Error>(map.common(range(first, pages)?, device(FIRST)).preferred)
        };
        assert_eq!(preferred(5000, 4)?, Some(To::Device));
        assert_eq!(preferred(5004, 2)?, Some(To::System));
        assert_eq!(preferred(5000, 10)?, None);
        assert_eq!(preferred(1000, 10)?, Some(To::Any));
        // Moved again, in part. The part that was unmapped loses its attributes.
        map.orphan(range(5000, 5)?);
        let again = Relocated {
            first: 7000,
            pages: 3,
            offset: 1000,
            anchor: VmaAnchor::new(7000, 1000, 0x1234_5678),
        };
        settled(map.resolve_orphans(ALL, |offset, from| {
            (from < 7003 && offset < 1003).then_some(again)
        }))?;
        assert_eq!(preferred(7000, 3)?, Some(To::Device));
        assert_eq!(preferred(5000, 5)?, Some(To::Any));
        assert_eq!(preferred(5005, 1)?, Some(To::System));
        Ok(())
    }

    #[test]
    fn new_memory_at_an_old_address_has_no_attributes() -> Result {
        let map = new()?;
        map.change(
            range(1000, 10)?,
            anchor(1000),
            &prefer(To::Device),
            device(FIRST),
        )?;
        map.orphan(range(1000, 10)?);
        // A new VMA at the old address, and another one that was moved from there, with other
        // pages.
        let anew = Relocated {
            first: 1000,
            pages: 10,
            offset: 1000,
            anchor: anchor(1000),
        };
        let other = Relocated {
            first: 9000,
            pages: 10,
            offset: 1000,
            anchor: VmaAnchor::new(9000, 1000, 0x9999_0000),
        };
        assert_ne!(other.anchor.tag, anchor(1000).tag);
        settled(map.resolve_orphans(ALL, |_, from| match from {
            0 => Some(anew),
            _ if from < 9010 => Some(other),
            _ => None,
        }))?;
        assert_eq!(
            map.common(range(1000, 10)?, device(FIRST)),
            CommonAttributes::of(Attributes::DEFAULT)
        );
        assert_eq!(
            map.common(range(9000, 10)?, device(FIRST)),
            CommonAttributes::of(Attributes::DEFAULT)
        );
        Ok(())
    }

    #[test]
    fn ranges_without_an_anchor_are_not_searched() -> Result {
        let map = new()?;
        map.change(
            range(1000, 10)?,
            VmaAnchor::new(1000, 1000, 0),
            &prefer(To::Device),
            device(FIRST),
        )?;
        map.orphan(range(1000, 10)?);
        assert!(map.is_unsettled());
        let asked = Cell::new(0);
        settled(map.resolve_orphans(ALL, |_, _| {
            asked.set(asked.get() + 1);
            None
        }))?;
        assert_eq!((asked.get(), map.is_unsettled()), (0, false));
        assert!(!map.any(range(0, 10_000)?));
        Ok(())
    }

    #[test]
    fn bad_orders_are_refused_without_effect() -> Result {
        let map = new()?;
        let bad = AttributeUpdate {
            granularity: Some(Some(PMD_ORDER + 1)),
            ..AttributeUpdate::default()
        };
        assert_eq!(
            map.change(range(5, 5)?, anchor(5), &bad, device(FIRST)),
            Err(EINVAL)
        );
        assert!(!map.any(range(0, 100)?));
        Ok(())
    }

    #[test]
    fn overflow_drops_the_oldest_range() -> Result {
        let map = new()?;
        for number in 0..MAX_ORPHANS + 10 {
            map.change(
                range(2 * number + 1000, 1)?,
                anchor(1000),
                &prefer(To::Device),
                device(FIRST),
            )?;
        }
        map.orphan(range(1000, 2 * (MAX_ORPHANS + 10))?);
        let mut found = 0;
        let count = |_, from| {
            (from == 0).then_some(Relocated {
                first: 50_000,
                pages: 1000,
                offset: 1000,
                anchor: VmaAnchor::new(50_000, 1000, 0x1234_5678),
            })
        };
        settled(map.resolve_orphans(ALL, count))?;
        for number in 0..MAX_ORPHANS + 10 {
            found += usize::from(map.any(range(2 * number + 50_000, 1)?));
        }
        assert_eq!(found, MAX_ORPHANS);
        assert!(!map.any(range(50_000, 20)?) && map.any(range(50_020, 1)?));
        Ok(())
    }

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
    fn ranges_moved_beyond_the_window_are_watched_first() -> Result {
        let map = new()?;
        map.change(
            range(1000, 10)?,
            anchor(1000),
            &prefer(To::Device),
            device(FIRST),
        )?;
        let watched = Some(range(0, 4096)?);
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
        for _ in 0..2 {
            assert_eq!(map.resolve_orphans(watched, find), Err(range(5000, 10)?));
            assert!(map.is_unsettled() && map.any(range(5000, 10)?));
            let common = map.common(range(5000, 10)?, device(FIRST));
            assert_eq!(common, CommonAttributes::of(Attributes::DEFAULT));
        }
        settled(map.resolve_orphans(ALL, find))?;
        let common = map.common(range(5000, 10)?, device(FIRST));
        assert_eq!(common.preferred, Some(To::Device));
        // Alternatively, the ranges that were set aside lose their attributes.
        map.orphan(range(5000, 10)?);
        map.forget_aside();
        assert!(!map.is_unsettled() && !map.any(range(0, 10_000)?));
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
