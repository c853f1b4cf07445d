// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: pages that move too often, with a simulated clock.

use super::*;
use crate::mm::addr::PMD_PAGES;
use core::ops::Range;
use kernel::page::PAGE_SIZE;

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_thrash)]
mod suite {
    use super::*;

    const PARAMETERS: Parameters = Parameters {
        thrash_count: 3,
        thrash_lapse: 100,
        thrash_pin: 1000,
        thrash_delay: 0,
        ..Parameters::DEFAULT
    };

    fn page(number: usize) -> Result<PageRange> {
        PageRange::from_pages(0x4000_0000 + number * PAGE_SIZE, 1)
    }

    #[test]
    fn thrashing_page_is_pinned_for_a_while() -> Result {
        let mut detector = ThrashDetector::new();
        let mut moves = 0;
        // A page that leaves the device immediately, with a fault each ms for 10 s of a fake clock.
        for now in 0..10_000u64 {
            if detector.fault(page(5)?, &PageSet::EMPTY, false, now, &PARAMETERS)
                == ThrashHint::Move
            {
                detector.moved(page(5)?, now);
                moves += 1;
            }
        }
        // The bound: this number of migrations for each time that the page is pinned, including the
        // first time.
        assert!(moves <= 3 * (10_000 / 1000 + 1) && moves >= 10);
        Ok(())
    }

    #[test]
    fn prefetched_pages_count_like_faulted_pages() -> Result {
        let mut detector = ThrashDetector::new();
        // A fault on a new page, with which all pages before it would be migrated. Returns whether
        // they are.
        let mut fault = |number, resident: Range<usize>, now| {
            let part = PageRange::from_pages(page(0)?.start(), number + 1)?;
            let mut mask = PageSet::EMPTY;
            mask.add(resident);
            assert_eq!(
                detector.fault(page(number)?, &PageSet::EMPTY, false, now, &PARAMETERS),
                ThrashHint::Move
            );
            let comes = detector.comes_along(part, &mask, now, &PARAMETERS);
            detector.moved(if comes { part } else { page(number)? }, now);
            Ok::<_, Error>(comes)
        };
        // Pages that have not left the device can be included any number of times.
        for number in 20..30 {
            assert!(fault(number, 0..number, 0)?);
        }
        // All pages have left. They are included the second and third time, but not again.
        assert!(fault(30, 0..0, 1)?);
        assert!(fault(31, 0..0, 2)?);
        assert!(!fault(32, 0..0, 3)?);
        // The previous events are too old to be counted.
        assert!(fault(33, 0..0, 104)?);
        Ok(())
    }

    #[test]
    fn faulted_and_prefetched_pages_count_once() -> Result {
        let mut detector = ThrashDetector::new();
        let napping = Parameters {
            thrash_delay: 5,
            ..PARAMETERS
        };
        let part = PageRange::from_pages(page(0)?.start(), 16)?;
        detector.moved(part, 0);
        for now in [0, 10] {
            assert_eq!(
                detector.fault(page(5)?, &PageSet::EMPTY, false, now, &napping),
                ThrashHint::Wait(5)
            );
            assert!(!detector.comes_along(part, &PageSet::EMPTY, now, &napping));
            assert_eq!(
                detector.fault(page(5)?, &PageSet::EMPTY, false, now + 5, &napping),
                ThrashHint::Move
            );
            assert!(detector.comes_along(part, &PageSet::EMPTY, now + 5, &napping));
            detector.moved(part, now + 5);
        }
        assert_eq!(
            detector.fault(page(5)?, &PageSet::EMPTY, false, 20, &napping),
            ThrashHint::Stay
        );
        assert!(!detector.comes_along(part, &PageSet::EMPTY, 1019, &napping));
        // After the pin has expired, the history begins anew.
        assert!(detector.comes_along(part, &PageSet::EMPTY, 1020, &napping));
        detector.moved(part, 1020);
        assert_eq!(
            detector.fault(page(5)?, &PageSet::EMPTY, false, 1021, &napping),
            ThrashHint::Wait(5)
        );
        Ok(())
    }

    #[test]
    fn fault_on_a_thrashing_page_waits_briefly() -> Result {
        let mut detector = ThrashDetector::new();
        let napping = Parameters {
            thrash_delay: 5,
            ..PARAMETERS
        };
        detector.moved(page(5)?, 10);
        assert_eq!(
            detector.fault(page(5)?, &PageSet::EMPTY, false, 12, &napping),
            ThrashHint::Wait(5)
        );
        // All faults on the block sleep until the same time, and they count as one.
        assert_eq!(
            detector.fault(page(5)?, &PageSet::EMPTY, false, 14, &napping),
            ThrashHint::Wait(3)
        );
        assert_eq!(
            detector.fault(page(6)?, &PageSet::EMPTY, false, 16, &napping),
            ThrashHint::Wait(1)
        );
        assert_eq!(
            detector.fault(page(5)?, &PageSet::EMPTY, false, 17, &napping),
            ThrashHint::Move
        );
        detector.moved(page(5)?, 17);
        assert_eq!(
            detector.fault(page(5)?, &PageSet::EMPTY, false, 18, &napping),
            ThrashHint::Wait(5)
        );
        assert_eq!(
            detector.fault(page(5)?, &PageSet::EMPTY, false, 23, &napping),
            ThrashHint::Move
        );
        detector.moved(page(5)?, 23);
        assert_eq!(
            detector.fault(page(5)?, &PageSet::EMPTY, false, 24, &napping),
            ThrashHint::Stay
        );
        Ok(())
    }

    #[test]
    fn pages_resident_for_another_mirror_do_not_thrash() -> Result {
        let mut detector = ThrashDetector::new();
        let mut there = PageSet::EMPTY;
        there.add(5..6);
        detector.moved(page(5)?, 0);
        for now in 0..10 {
            let verdict = detector.fault(page(5)?, &there, false, now, &PARAMETERS);
            assert_eq!(verdict, ThrashHint::Move);
        }
        // Now the page has left, and faults of any mirror count.
        for (now, expected) in [ThrashHint::Move, ThrashHint::Move, ThrashHint::Stay]
            .into_iter()
            .enumerate()
        {
            let verdict = detector.fault(page(5)?, &PageSet::EMPTY, false, now as u64, &PARAMETERS);
            assert_eq!(verdict, expected);
            detector.moved(page(5)?, now as u64);
        }
        Ok(())
    }

    #[test]
    fn slow_moves_are_not_thrashing() -> Result {
        let mut detector = ThrashDetector::new();
        for round in 0..100 {
            let now = round * 101;
            assert_eq!(
                detector.fault(page(5)?, &PageSet::EMPTY, false, now, &PARAMETERS),
                ThrashHint::Move
            );
            detector.moved(page(5)?, now);
        }
        Ok(())
    }

    #[test]
    fn moves_of_other_pages_are_not_thrashing() -> Result {
        let mut detector = ThrashDetector::new();
        for number in 0..PMD_PAGES {
            assert_eq!(
                detector.fault(page(number)?, &PageSet::EMPTY, true, 0, &PARAMETERS),
                ThrashHint::Move
            );
            detector.moved(page(number)?, 0);
        }
        Ok(())
    }

    #[test]
    fn pages_evicted_from_full_memory_stay_at_once() -> Result {
        let mut detector = ThrashDetector::new();
        detector.moved(PageRange::from_pages(0x4000_0000, PMD_PAGES)?, 0);
        assert_eq!(
            detector.fault(page(7)?, &PageSet::EMPTY, true, 50, &PARAMETERS),
            ThrashHint::Stay
        );
        // The whole block stays until the pin expires.
        assert_eq!(
            detector.fault(page(8)?, &PageSet::EMPTY, false, 1049, &PARAMETERS),
            ThrashHint::Stay
        );
        assert_eq!(
            detector.fault(page(8)?, &PageSet::EMPTY, false, 1050, &PARAMETERS),
            ThrashHint::Move
        );
        // With free memory, the page is migrated again.
        detector.moved(page(8)?, 1050);
        assert_eq!(
            detector.fault(page(8)?, &PageSet::EMPTY, false, 1051, &PARAMETERS),
            ThrashHint::Move
        );
        Ok(())
    }

    #[test]
    fn each_block_has_its_own_history() -> Result {
        const BLOCKS: usize = 3 * MIN_KEPT_HISTORIES;
        let mut detector = ThrashDetector::new();
        // The blocks are 1024 blocks apart, 2 GiB with pages of 4 KiB.
        let far = |block| page(block * 1024 * PMD_PAGES + 5);
        for now in [0, 1] {
            for block in 0..BLOCKS {
                assert_eq!(
                    detector.fault(far(block)?, &PageSet::EMPTY, false, now, &PARAMETERS),
                    ThrashHint::Move
                );
                detector.moved(far(block)?, now);
            }
        }
        for block in 0..BLOCKS {
            assert_eq!(
                detector.fault(far(block)?, &PageSet::EMPTY, true, 2, &PARAMETERS),
                ThrashHint::Stay
            );
        }
        assert_eq!(detector.count, BLOCKS);
        Ok(())
    }

    #[test]
    fn old_history_is_discarded() -> Result {
        let mut detector = ThrashDetector::new();
        for now in 0..20 * MIN_KEPT_HISTORIES {
            let range = page(now * PMD_PAGES)?;
            // 10 blocks are migrated each ms.
            let now = now as u64 / 10;
            assert_eq!(
                detector.fault(range, &PageSet::EMPTY, false, now, &PARAMETERS),
                ThrashHint::Move
            );
            detector.moved(range, now);
            assert!(detector.count <= 3 * MIN_KEPT_HISTORIES);
        }
        Ok(())
    }
}
