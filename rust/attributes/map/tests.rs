// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: the attributes of an address space, compared with a simple model.

use super::*;
use crate::{
    attributes::PreferredLocation as To,
    mm::addr::PMD_ORDER, //
};
use core::cell::Cell;

mod devices;

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
}
