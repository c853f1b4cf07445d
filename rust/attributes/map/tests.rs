// SPDX-License-Identifier: GPL-2.0

//! The attributes of an address space, against a plain model.

use super::*;
use crate::attributes::Location as To;
use core::cell::Cell;

fn home(first: usize) -> Home {
    Home::new(first, first, 0x1234_5678)
}

fn range(first: usize, pages: usize) -> Result<PageRange> {
    PageRange::from_pages(first << PAGE_SHIFT, pages)
}

fn prefer(location: To) -> Change {
    Change {
        preferred: Some(location),
        ..Change::default()
    }
}

#[kunit_tests(rust_hmm_attributes)]
mod suite {
    use super::*;

    #[test]
    fn random_changes_agree_with_an_array() -> Result {
        const BASE: usize = 1 << 30;
        const LEN: usize = 200;
        let map = Map::new()?;
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
                2 => Change {
                    accessed_by: Some(flag),
                    ..Change::default()
                },
                3 => Change {
                    read_mostly: Some(flag),
                    ..Change::default()
                },
                4 => Change {
                    never_migrate: Some(flag),
                    ..Change::default()
                },
                _ => Change {
                    granularity: Some(flag.then_some(bits(55, 10) as u32)),
                    ..Change::default()
                },
            };
            if bits(58, 8) == 0 {
                // Unmapped, and nowhere else.
                map.lose(part);
                map.settle(|_, _| None);
                model
                    .iter_mut()
                    .skip(first)
                    .take(pages)
                    .for_each(|one| *one = Attributes::DEFAULT);
            } else {
                map.change(part, home(BASE), &change)?;
                for one in model.iter_mut().skip(first).take(pages) {
                    *one = change.apply(*one)?;
                }
            }
            // What holds for a range, and for each page of it.
            let mut all = model.iter().skip(first).take(pages);
            let one = all.next().ok_or(EINVAL)?;
            let expected = all.fold(Common::of(*one), |common, other| common.and(*other));
            assert_eq!(map.common(part), expected);
            let limits = range(BASE, LEN)?;
            let (found, same) = map.at(part.start(), limits);
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
    fn gaps_reach_from_piece_to_piece() -> Result {
        let map = Map::new()?;
        map.change(range(1000, 10)?, home(1000), &prefer(To::Device))?;
        let limits = range(900, 200)?;
        for (page, first, pages) in [(950, 900, 100), (1005, 1000, 10), (1050, 1010, 90)] {
            let (_, same) = map.at(page << PAGE_SHIFT, limits);
            assert_eq!(same, range(first, pages)?);
        }
        Ok(())
    }

    #[test]
    fn what_was_moved_is_found_again() -> Result {
        let map = Map::new()?;
        map.change(range(1000, 10)?, home(1000), &prefer(To::Device))?;
        map.change(range(1004, 2)?, home(1000), &prefer(To::System))?;
        // Moved to 5000 by mremap: the offset stays, and so does the reverse mapping.
        map.lose(range(1000, 10)?);
        assert!(map.is_unsettled());
        assert_eq!(
            map.common(range(1000, 10)?),
            Common::of(Attributes::DEFAULT)
        );
        let moved = Found {
            first: 5000,
            pages: 10,
            offset: 1000,
            home: Home::new(5000, 1000, 0x1234_5678),
        };
        let find = |offset: usize, from: usize| {
            (from < 5010 && (1000..1010).contains(&offset)).then_some(moved)
        };
        map.settle(find);
        let preferred = |first, pages| Ok::<_, Error>(map.common(range(first, pages)?).preferred);
        assert_eq!(preferred(5000, 4)?, Some(To::Device));
        assert_eq!(preferred(5004, 2)?, Some(To::System));
        assert_eq!(preferred(5000, 10)?, None);
        assert_eq!(preferred(1000, 10)?, Some(To::Any));
        // And once more, in part: what stays where it was unmapped is lost.
        map.lose(range(5000, 5)?);
        let again = Found {
            first: 7000,
            pages: 3,
            offset: 1000,
            home: Home::new(7000, 1000, 0x1234_5678),
        };
        map.settle(|offset, from| (from < 7003 && offset < 1003).then_some(again));
        assert_eq!(preferred(7000, 3)?, Some(To::Device));
        assert_eq!(preferred(5000, 5)?, Some(To::Any));
        assert_eq!(preferred(5005, 1)?, Some(To::System));
        Ok(())
    }

    #[test]
    fn new_memory_at_an_old_place_has_none() -> Result {
        let map = Map::new()?;
        map.change(range(1000, 10)?, home(1000), &prefer(To::Device))?;
        map.lose(range(1000, 10)?);
        // Mapped anew where it was; and another mapping that came from there, of other pages.
        let anew = Found {
            first: 1000,
            pages: 10,
            offset: 1000,
            home: home(1000),
        };
        let other = Found {
            first: 9000,
            pages: 10,
            offset: 1000,
            home: Home::new(9000, 1000, 0x9999_0000),
        };
        assert_ne!(other.home.tag, home(1000).tag);
        map.settle(|_, from| match from {
            0 => Some(anew),
            _ if from < 9010 => Some(other),
            _ => None,
        });
        assert_eq!(
            map.common(range(1000, 10)?),
            Common::of(Attributes::DEFAULT)
        );
        assert_eq!(
            map.common(range(9000, 10)?),
            Common::of(Attributes::DEFAULT)
        );
        Ok(())
    }

    #[test]
    fn what_has_no_home_is_not_looked_for() -> Result {
        let map = Map::new()?;
        map.change(
            range(1000, 10)?,
            Home::new(1000, 1000, 0),
            &prefer(To::Device),
        )?;
        map.lose(range(1000, 10)?);
        assert!(map.is_unsettled());
        let asked = Cell::new(0);
        map.settle(|_, _| {
            asked.set(asked.get() + 1);
            None
        });
        assert_eq!((asked.get(), map.is_unsettled()), (0, false));
        assert!(!map.any(range(0, 10_000)?));
        Ok(())
    }

    #[test]
    fn bad_orders_are_refused_and_change_nothing() -> Result {
        let map = Map::new()?;
        let bad = Change {
            granularity: Some(Some(10)),
            ..Change::default()
        };
        assert_eq!(map.change(range(5, 5)?, home(5), &bad), Err(EINVAL));
        assert!(!map.any(range(0, 100)?));
        Ok(())
    }

    #[test]
    fn more_than_there_is_room_for_is_lost_the_oldest_first() -> Result {
        let map = Map::new()?;
        for number in 0..ASIDE + 10 {
            map.change(
                range(2 * number + 1000, 1)?,
                home(1000),
                &prefer(To::Device),
            )?;
        }
        map.lose(range(1000, 2 * (ASIDE + 10))?);
        let mut found = 0;
        let count = |_, from| {
            (from == 0).then_some(Found {
                first: 50_000,
                pages: 1000,
                offset: 1000,
                home: Home::new(50_000, 1000, 0x1234_5678),
            })
        };
        map.settle(count);
        for number in 0..ASIDE + 10 {
            found += usize::from(map.any(range(2 * number + 50_000, 1)?));
        }
        assert_eq!(found, ASIDE);
        assert!(!map.any(range(50_000, 20)?) && map.any(range(50_020, 1)?));
        Ok(())
    }
}
