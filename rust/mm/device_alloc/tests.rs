// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: the allocator of one piece, compared with a simple model.

use super::*;

/// State of a page in the model.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Page {
    Free,
    Used,
    Out,
}

fn next(random: &mut u64) -> usize {
    // xorshift64
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    (*random >> 16) as usize
}

/// Creates a map of `pages` free pages.
fn free_map(pages: usize) -> Result<FreeMap> {
    let map = FreeMap::new(pages)?;
    assert_eq!((map.take(0), map.withdrawn()), (None, pages));
    map.online(0, pages);
    Ok(map)
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_device_alloc)]
mod suite {
    use super::*;

    #[test]
    fn pages_and_blocks_do_not_overlap() -> Result {
        let map = free_map(2 * PMD_PAGES)?;
        assert_eq!(map.take(0), Some(0));
        assert_eq!(map.take(0), Some(1));
        assert_eq!(map.take(PMD_ORDER), Some(PMD_PAGES));
        // The other block has pages in use.
        assert_eq!(map.take(PMD_ORDER), None);
        assert_eq!(map.used(), PMD_PAGES + 2);
        for index in 2..PMD_PAGES {
            assert_eq!(map.take(0), Some(index));
        }
        assert_eq!(map.take(0), None);
        Ok(())
    }

    #[test]
    fn freed_pages_are_allocated_again() -> Result {
        let map = free_map(PMD_PAGES)?;
        assert_eq!(map.take(PMD_ORDER), Some(0));
        assert_eq!(map.used_in_block(0), PMD_PAGES);
        // A block may be freed page by page, after it was split.
        for index in 0..PMD_PAGES {
            assert!(!map.has_block());
            map.release(index, 1);
        }
        assert_eq!((map.used(), map.used_in_block(0)), (0, 0));
        assert!(map.has_block());
        assert_eq!(map.take(PMD_ORDER), Some(0));
        map.release(0, PMD_PAGES);
        assert_eq!(map.take(0), Some(0));
        assert_eq!(map.take(PMD_ORDER + 1), None);
        Ok(())
    }

    #[test]
    fn every_order_splits_and_merges() -> Result {
        let map = free_map(2 * PMD_PAGES)?;
        for order in 0..=PMD_ORDER {
            let pages = 1 << order;
            let count = 2 * PMD_PAGES / pages;
            let mut seen = KVec::from_elem(false, count, GFP_KERNEL)?;
            for _ in 0..count {
                let index = map.take(order).ok_or(ENOMEM)?;
                assert_eq!(index % pages, 0);
                let slot = seen.get_mut(index / pages).ok_or(EINVAL)?;
                assert!(!core::mem::replace(slot, true));
            }
            assert_eq!((map.take(0), map.used()), (None, 2 * PMD_PAGES));
            // Free every other folio: no larger order can be allocated then.
            for index in (0..count).step_by(2) {
                map.release(index * pages, pages);
            }
            if order < PMD_ORDER {
                assert_eq!(map.take(order + 1), None);
            }
            for index in (1..count).step_by(2) {
                map.release(index * pages, pages);
            }
            assert!(map.take_at(PMD_PAGES, PMD_ORDER));
            map.release(PMD_PAGES, PMD_PAGES);
        }
        Ok(())
    }

    #[test]
    fn small_folios_fill_partial_blocks() -> Result {
        let map = free_map(4 * PMD_PAGES)?;
        // Block 2 is nearly full, block 1 has some pages in use, blocks 0 and 3 have none.
        assert!(map.take_at(PMD_PAGES, 4));
        for order in 0..PMD_ORDER {
            assert!(map.take_at(2 * PMD_PAGES + (1 << order), order));
        }
        assert!(!map.take_at(PMD_PAGES, 4) && !map.take_at(PMD_PAGES + 1, 1));
        map.block.store(2, Relaxed);
        assert_eq!(map.take(0), Some(2 * PMD_PAGES));
        // Block 2 is full now, so that the next page comes from a block with pages in use.
        assert_eq!(map.take(0), Some(PMD_PAGES + 16));
        assert_eq!(map.take(PMD_ORDER - 1), Some(PMD_PAGES + PMD_PAGES / 2));
        assert_eq!(map.take(PMD_ORDER - 1), Some(0));
        assert_eq!(map.take(PMD_ORDER), Some(3 * PMD_PAGES));
        Ok(())
    }

    #[test]
    fn pages_are_taken_offline_and_online() -> Result {
        let map = free_map(2 * PMD_PAGES)?;
        assert_eq!(map.take(PMD_ORDER), Some(PMD_PAGES));
        assert_eq!(map.offline(0, 10), 0);
        // One of these three pages is in use.
        assert_eq!(map.offline(PMD_PAGES - 2, 3), 1);
        assert_eq!((map.withdrawn(), map.used()), (12, PMD_PAGES));
        assert_eq!(map.take(0), Some(10));
        // The withdrawn page does not become free when it is given back.
        map.release(PMD_PAGES, PMD_PAGES);
        assert_eq!((map.offline(PMD_PAGES - 2, 3), map.has_block()), (0, false));
        assert_eq!(
            (map.withdrawn(), map.used(), map.used_in_block(PMD_PAGES)),
            (13, 1, 0)
        );
        map.release(10, 1);
        map.online(0, 2 * PMD_PAGES);
        assert_eq!(map.withdrawn(), 0);
        assert!(map.take(PMD_ORDER).is_some() && map.take(PMD_ORDER).is_some());
        Ok(())
    }

    #[test]
    fn part_of_a_block_has_only_its_pages() -> Result {
        for pages in [
            1,
            63,
            65,
            PMD_PAGES - 1,
            PMD_PAGES + 64,
            2 * PMD_PAGES + 100,
        ] {
            let map = free_map(pages)?;
            assert_eq!((map.len(), map.withdrawn()), (pages, 0));
            let blocks = pages / PMD_PAGES;
            for _ in 0..blocks {
                assert!(map
                    .take(PMD_ORDER)
                    .is_some_and(|first| first < blocks * PMD_PAGES));
            }
            assert_eq!(map.take(PMD_ORDER), None);
            for index in blocks * PMD_PAGES..pages {
                assert_eq!(map.take(0), Some(index));
            }
            assert_eq!((map.take(0), map.used()), (None, pages));
            let last = (pages - 1) / PMD_PAGES * PMD_PAGES;
            assert_eq!(map.used_in_block(last), pages - last);
            assert_eq!(map.pages_in_block(last), pages - last);
            // Restores nothing behind the last page.
            assert_eq!(map.offline(0, pages), pages);
            map.online(0, usize::MAX);
            assert_eq!((map.take(0), map.withdrawn()), (None, 0));
            assert_eq!(map.take_row(pages, 64), 0);
            assert!(!map.take_at(pages, 0) && !map.is_used(pages));
        }
        Ok(())
    }

    #[test]
    fn random_use_agrees_with_a_model() -> Result {
        use_randomly::<{ 3 * PMD_PAGES }>()?;
        use_randomly::<{ 2 * PMD_PAGES + 77 }>()
    }

    fn use_randomly<const PAGES: usize>() -> Result {
        let map = free_map(PAGES)?;
        let mut model = KVec::from_elem(Page::Free, PAGES, GFP_KERNEL)?;
        let mut random = 0x9e37_79b9_7f4a_7c15;
        for _ in 0..1500 {
            let order = next(&mut random) as u32 % (PMD_ORDER + 1);
            let pages = 1 << order;
            let at = next(&mut random) % (PAGES / pages) * pages;
            let all = |model: &KVec<Page>, at: usize, state| {
                let mut folio = model.iter().skip(at).take(pages);
                at + pages <= PAGES && folio.all(|page| *page == state)
            };
            let fill = |model: &mut KVec<Page>, at: usize, state| {
                model
                    .iter_mut()
                    .skip(at)
                    .take(pages)
                    .for_each(|page| *page = state);
            };
            match next(&mut random) % 8 {
                0..4 => {
                    let fits = (0..PAGES)
                        .step_by(pages)
                        .any(|at| all(&model, at, Page::Free));
                    let got = map.take(order);
                    assert_eq!(got.is_some(), fits);
                    if let Some(at) = got {
                        assert!(at % pages == 0 && all(&model, at, Page::Free));
                        fill(&mut model, at, Page::Used);
                    }
                }
                4..6 if all(&model, at, Page::Used) => {
                    map.release(at, pages);
                    fill(&mut model, at, Page::Free);
                }
                6 if all(&model, at, Page::Free) => {
                    assert_eq!(map.offline(at, pages), 0);
                    fill(&mut model, at, Page::Out);
                }
                7 if all(&model, at, Page::Out) => {
                    map.online(at, pages);
                    fill(&mut model, at, Page::Free);
                }
                _ => {}
            }
            let count = |state| model.iter().filter(|page| **page == state).count();
            assert_eq!(
                (map.used(), map.withdrawn()),
                (count(Page::Used), count(Page::Out))
            );
        }
        Ok(())
    }
}
