// SPDX-License-Identifier: GPL-2.0

//! Tests of device memory without a device.

use super::*;
use crate::{
    bindings,
    inject::{
        ArmedPoint,
        FailPoint, //
    },
    kernel::{
        completion::ktime_get_ns,
        kthread::Thread, //
    },
    mm::addr::PMD_ORDER, //
};
use kernel::{
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        Arc, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

struct NoFaults;

impl DevicePageOps for NoFaults {
    fn migrate_to_ram(_: &DevicePages<Self>, _: CpuFault<'_>) -> Result<(), FaultError> {
        Err(FaultError::Lost)
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_device_pages)]
mod suite {
    use super::*;

    fn device(pages: usize) -> Result<OwnedDevicePages<NoFaults>> {
        OwnedDevicePages::new(MemoryKind::Private, pages, NoFaults)
    }

    fn order_of(pfn: usize) -> u32 {
        // SAFETY: The frame belongs to a chunk of device memory that is added.
        unsafe { bindings::rust_hmm_pfn_order(pfn) }
    }

    #[test]
    fn free_block_is_not_a_large_folio() -> Result {
        let device = device(PMD_PAGES)?;
        device.add_chunks(PMD_PAGES)?;
        let pfn = device.pfn(0).ok_or(EINVAL)?;
        let block = device.alloc(PMD_ORDER).ok_or(ENOMEM)?;
        assert_eq!((order_of(pfn), device.used()), (PMD_ORDER, PMD_PAGES));
        drop(block);
        // Else small folios that follow are taken for its parts.
        assert_eq!((order_of(pfn), device.used()), (0, 0));
        assert!(device.used_blocks().next().is_none());
        Ok(())
    }

    #[test]
    fn page_numbers_respect_limits() -> Result {
        let device = device(PMD_PAGES)?;
        assert_eq!((device.total(), device.limit()), (0, PMD_PAGES));
        assert!(device.alloc(0).is_none());
        device.add_chunks(1)?;
        let pages = [0; 2].map(|order| device.alloc(order));
        assert!(pages.iter().all(|page| page.is_some()));
        assert_eq!(device.used(), 2);
        let pfn = device.pfn(1).ok_or(EINVAL)?;
        assert_eq!(device.lookup(pfn), Some(1));
        assert!(device.lookup(0).is_none() && device.pfn(CHUNK_PAGES).is_none());
        // No free block, since two of its pages are in use.
        assert!(device.alloc(PMD_ORDER).is_none() && device.alloc(PMD_ORDER + 1).is_none());
        assert!(device.alloc(8).is_some() && device.alloc_at(2, 0).is_some());
        assert!(device.alloc_at(1, 0).is_none());
        let armed = ArmedPoint::new(FailPoint::DevicePage, 1, false)?;
        assert!(device.alloc_at(3, 0).is_none() && !armed.is_left());
        assert!(device.alloc_at(3, 0).is_some());
        drop(armed);
        let armed = ArmedPoint::new(FailPoint::DevicePage, 1, false)?;
        let mut row = device.take_row(Some(0), 1).ok_or(ENOMEM)?;
        assert!(row.take().is_none() && !armed.is_left());
        assert!(row.take().is_some() && row.take().is_none());
        drop((row, pages));
        assert_eq!(device.used(), 0);
        Ok(())
    }

    #[test]
    fn memory_has_no_pages_beyond_its_limit() -> Result {
        const LIMIT: usize = PMD_PAGES + 5;
        let device = device(LIMIT)?;
        device.add_chunks(LIMIT)?;
        assert_eq!((device.total(), device.limit()), (LIMIT, LIMIT));
        let block = device.alloc(PMD_ORDER).ok_or(ENOMEM)?;
        assert!(device.alloc(PMD_ORDER).is_none());
        let mut pages = KVec::new();
        while let Some(page) = device.alloc(0) {
            pages.push(page, GFP_KERNEL)?;
        }
        assert_eq!((pages.len(), device.used()), (5, LIMIT));
        let mut numbers = pages.iter().map(|page| device.lookup(page.pfn()));
        assert!(numbers.all(|number| number < Some(LIMIT)));
        assert!(device.take_row(Some(LIMIT - 1), 8).is_none());
        assert!(device.alloc_at(LIMIT, 0).is_none());
        assert_eq!(device.add_chunks(1), Err(ENOMEM));
        assert_eq!(device.grow_to(LIMIT), Ok(()));
        let mut blocks = device.used_blocks().map(|block| block.count);
        assert_eq!((blocks.next(), blocks.next()), (Some(PMD_PAGES), Some(5)));
        assert_eq!(device.pages_in_block(PMD_PAGES), 5);
        // More than the memory has.
        let all = DeviceRange {
            first: 0,
            count: 2 * PMD_PAGES,
        };
        assert_eq!(device.offline(all), LIMIT);
        drop((block, pages));
        assert_eq!((device.total(), device.used()), (0, 0));
        device.online(all);
        assert_eq!(device.total(), LIMIT);
        assert_eq!((device.remove_chunks(1), device.total()), (1, 0));
        device.add_chunks(LIMIT)?;
        assert_eq!(device.total(), LIMIT);
        Ok(())
    }

    #[test]
    fn rows_end_at_used_pages_and_block_boundaries() -> Result {
        let device = device(2 * PMD_PAGES)?;
        device.add_chunks(1)?;
        let row = |near, most| device.take_row(near, most).ok_or(ENOMEM);
        // A row has pages of one word of the map only.
        let mut first = row(None, PMD_PAGES)?;
        assert_eq!((first.number(), device.used()), (0, 64));
        let page = first.take().ok_or(ENOMEM)?;
        assert_eq!(device.lookup(page.pfn()), Some(0));
        drop(first);
        assert_eq!(device.used(), 1);
        let taken = device.alloc_at(5, 0).ok_or(ENOMEM)?;
        let mut behind = row(Some(0), 10)?;
        assert_eq!((behind.number(), device.used()), (1, 6));
        let pages = [0; 4].map(|_| behind.take());
        assert!(
            pages.iter().all(Option::is_some) && behind.pages() == 0 && behind.take().is_none()
        );
        // The next page is in use.
        assert_eq!(row(Some(4), 3)?.number(), 6);
        // The last page is at the end of its block: small folios come from the block in use.
        assert_eq!(row(Some(PMD_PAGES - 1), 3)?.number(), 6);
        drop((behind, pages, page, taken));
        assert_eq!(device.used(), 0);
        Ok(())
    }

    #[test]
    fn idle_chunks_are_removed_and_added_again() -> Result {
        let device = device(2 * CHUNK_PAGES)?;
        device.add_chunks(CHUNK_PAGES + 1)?;
        assert_eq!(
            (device.total(), device.idle_chunks()),
            (2 * CHUNK_PAGES, (2, 2))
        );
        let page = device.alloc_at(CHUNK_PAGES + 7, 0).ok_or(ENOMEM)?;
        assert_eq!(device.lookup(page.pfn()), Some(CHUNK_PAGES + 7));
        // The chunk in use is not removed.
        assert_eq!((device.remove_chunks(2), device.total()), (1, CHUNK_PAGES));
        assert!(device.pfn(0).is_none() && device.alloc_at(0, 0).is_none());
        assert_eq!(device.used(), 1);
        device.add_chunks(CHUNK_PAGES)?;
        assert_eq!(device.total(), 2 * CHUNK_PAGES);
        drop(page);
        // A concurrent user of the frames prevents the removal of their chunk.
        let frame_guard = device.frame_guard(CHUNK_PAGES).ok_or(EINVAL)?;
        assert_eq!(device.remove_chunks(2), 1);
        drop(frame_guard);
        assert_eq!((device.remove_chunks(2), device.total()), (1, 0));
        device.add_chunks(1)?;
        assert!(device.alloc(PMD_ORDER).is_some());
        Ok(())
    }

    #[test]
    fn memory_of_16_tib_has_pages() -> Result {
        assert!(device(MAX_PAGES + 1).is_err());
        const PAGES: usize = (16 << 40) >> PAGE_SHIFT;
        let device = device(PAGES)?;
        assert_eq!((device.total(), device.limit()), (0, PAGES));
        device.add_chunks(1)?;
        assert_eq!(device.idle_chunks(), (1, 1));
        let page = device.alloc(0).ok_or(ENOMEM)?;
        let block = device.alloc(PMD_ORDER).ok_or(ENOMEM)?;
        assert_eq!(device.lookup(page.pfn()), Some(0));
        assert_eq!(device.lookup(block.pfn()), Some(CHUNK_PAGES - PMD_PAGES));
        assert_eq!(
            (device.used(), device.idle_chunks()),
            (PMD_PAGES + 1, (1, 0))
        );
        assert_eq!(device.used_blocks().count(), 2);
        // Numbers far beyond the last chunk.
        assert!(device.pfn(PAGES / 2).is_none() && device.alloc_at(PAGES / 2, 0).is_none());
        assert_eq!(device.used_in_block(PAGES / 2), 0);
        drop((page, block));
        assert_eq!((device.remove_chunks(9), device.total()), (1, 0));
        assert_eq!(device.idle_chunks(), (0, 0));
        Ok(())
    }

    #[test]
    fn full_chunks_are_skipped() -> Result {
        let device = device(3 * CHUNK_PAGES)?;
        device.add_chunks(2 * CHUNK_PAGES)?;
        let mut blocks = KVec::new();
        for _ in 0..CHUNK_PAGES / PMD_PAGES {
            blocks.push(device.alloc(PMD_ORDER).ok_or(ENOMEM)?, GFP_KERNEL)?;
        }
        let room = |order, from| device.hints.find(HintClass::Room(order), from);
        let next = device.alloc(0).ok_or(ENOMEM)?;
        assert_eq!(device.lookup(next.pfn()), Some(CHUNK_PAGES));
        // It was looked at once, and is not again until a page is given back.
        assert_eq!((room(0, 0), room(PMD_ORDER, 0)), (Some(1), Some(0)));
        let large = device.alloc(PMD_ORDER).ok_or(ENOMEM)?;
        assert!(device.lookup(large.pfn()) > Some(CHUNK_PAGES));
        assert_eq!(room(PMD_ORDER, 0), Some(1));
        let first = blocks.pop().ok_or(EINVAL)?;
        let number = device.lookup(first.pfn());
        drop(first);
        assert_eq!((room(0, 0), room(PMD_ORDER, 0)), (Some(0), Some(0)));
        let again = device.alloc(PMD_ORDER).ok_or(ENOMEM)?;
        assert_eq!(device.lookup(again.pfn()), number);
        Ok(())
    }

    /// Number of calls that are timed together, because clocks may be coarse.
    const CALLS: usize = 16;
    /// Numbers of measurements: the minimum, and the number after which costs differ.
    const ROUNDS: core::ops::Range<usize> = 50..5000;

    /// Returns whether `large` costs at most 10 % more than `small`.
    ///
    /// Both are measured in turns, and of each the cheapest measurement counts, because interrupts
    /// and a busy host only add to a duration. Measurements are repeated until the costs agree.
    fn costs_agree(what: &str, small: &dyn Fn() -> bool, large: &dyn Fn() -> bool) -> bool {
        let cost = |call: &dyn Fn() -> bool| {
            let begin = ktime_get_ns();
            assert!((0..CALLS).all(|_| call()));
            ktime_get_ns().saturating_sub(begin)
        };
        let mut least = [u64::MAX; 2];
        let mut agree = false;
        let mut rounds = 0;
        while rounds < ROUNDS.start || (!agree && rounds < ROUNDS.end) {
            let [before, after] = least;
            least = [before.min(cost(small)), after.min(cost(large))];
            let [small, large] = least;
            agree = large * 10 <= small * 11;
            rounds += 1;
        }
        pr_info!("cost: {what}: 1 GiB and 16 TiB {least:?} ns / {CALLS}, {rounds} rounds\n");
        agree
    }

    #[test]
    fn allocation_costs_the_same_for_1_gib_and_16_tib() -> Result {
        // The last chunk is the only one that has room.
        let alone = |chunks: usize| -> Result<Hints> {
            let hints = Hints::new(chunks)?;
            hints.prepare(chunks - 1)?;
            hints.set(HintClass::Room(0), chunks - 1);
            Ok(hints)
        };
        let finds = |hints: &Hints, chunks: usize| {
            hints.find(HintClass::Room(0), 0) == Some(chunks - 1) //
        };
        let small = alone(4)?;
        let large = alone(1 << 16)?;
        assert!(costs_agree(
            "chunk with room",
            &|| finds(&small, 4),
            &|| finds(&large, 1 << 16)
        ));
        // Of these chunks, only the last one has room.
        let fill = |device: &DevicePages<NoFaults>, chunks: usize| -> Result<_> {
            device.add_chunks(chunks * CHUNK_PAGES)?;
            let mut blocks = KVec::new();
            for number in (0..(chunks - 1) * CHUNK_PAGES).step_by(PMD_PAGES) {
                let block = device.alloc_at(number, PMD_ORDER).ok_or(ENOMEM)?;
                blocks.push(block, GFP_KERNEL)?;
            }
            Ok(blocks)
        };
        // The pages are dropped before their memory, which waits for them.
        let small = device((1 << 30) >> PAGE_SHIFT)?;
        let _few = fill(&small, 1)?;
        let large = device((16 << 40) >> PAGE_SHIFT)?;
        let _more = fill(&large, 5)?;
        assert!(costs_agree(
            "page taken and freed",
            &|| small.alloc(0).is_some(),
            &|| large.alloc(0).is_some()
        ));
        Ok(())
    }

    #[test]
    fn growing_beside_a_shrinker_succeeds() -> Result {
        const REMOVALS: usize = 50;
        let pages = DevicePages::of_owner(None, MemoryKind::Private, CHUNK_PAGES, NoFaults);
        let device = Arc::pin_init(pages, GFP_KERNEL)?;
        let removed = Arc::new(Atomic::new(0usize), GFP_KERNEL)?;
        let theirs = device.clone();
        let count = removed.clone();
        let thread = Thread::spawn(c"hmm-test", move || {
            while count.load(Relaxed) < REMOVALS {
                count.fetch_add(theirs.remove_chunks(1), Relaxed);
            }
        })?;
        let mut grown = 0;
        let mut result = Ok(());
        // The thread ends only if memory comes again, so that errors do not end this.
        while removed.load(Relaxed) < REMOVALS {
            let growing = device.add_chunks(1);
            grown += usize::from(growing.is_ok());
            result = result.and(growing);
        }
        drop(thread);
        assert!(grown >= REMOVALS);
        result
    }

    #[test]
    fn unusable_region_is_skipped() -> Result {
        let device = device(PMD_PAGES)?;
        device.add_chunks(1)?;
        let usual = device.pfn(0).ok_or(EINVAL)?;
        assert_eq!(device.remove_chunks(1), 1);
        let armed = ArmedPoint::new(FailPoint::Region, 1, false)?;
        device.add_chunks(1)?;
        assert!(!armed.is_left());
        let other = device.pfn(0).ok_or(EINVAL)?;
        assert!(other.abs_diff(usual) >= CHUNK_PAGES);
        assert_eq!(device.lookup(other), Some(0));
        // It was held only meanwhile, and so are all of them.
        assert_eq!(device.remove_chunks(1), 1);
        let armed = ArmedPoint::new(FailPoint::Region, 1, true)?;
        assert_eq!(device.add_chunks(1), Err(ENOMEM));
        drop(armed);
        device.add_chunks(1)?;
        assert_eq!(device.pfn(0), Some(usual));
        Ok(())
    }

    #[test]
    fn pages_are_taken_offline() -> Result {
        let device = device(PMD_PAGES)?;
        device.add_chunks(1)?;
        let range = DeviceRange {
            first: 0,
            count: PMD_PAGES - 1,
        };
        assert_eq!(device.offline(range), 0);
        assert_eq!((device.total(), device.used()), (1, 0));
        let last = device.alloc(0).ok_or(ENOMEM)?;
        assert!(device.alloc(0).is_none());
        // A chunk that has such pages stays, so that they do.
        drop(last);
        assert_eq!(device.remove_chunks(1), 0);
        device.online(range);
        assert!(device.alloc(PMD_ORDER).is_some());
        Ok(())
    }

    #[test]
    fn pages_outliving_their_owner_keep_their_number() -> Result {
        /// Records the last folio that was freed.
        struct Records(Arc<Atomic<usize>>);

        impl DevicePageOps for Records {
            fn migrate_to_ram(_: &DevicePages<Self>, _: CpuFault<'_>) -> Result<(), FaultError> {
                Err(FaultError::Lost)
            }

            fn freed(pages: &DevicePages<Self>, range: DeviceRange) {
                pages.data().0.store(range.first, Relaxed);
            }
        }

        let freed = Arc::new(Atomic::new(usize::MAX), GFP_KERNEL)?;
        let records = Records(freed.clone());
        let pages = DevicePages::of_owner(None, MemoryKind::Private, PMD_PAGES, records);
        let device = KBox::pin_init(pages, GFP_KERNEL)?;
        device.add_chunks(PMD_PAGES)?;
        let page = device.alloc_at(7, 0).ok_or(ENOMEM)?;
        // It waits for the page.
        let thread = Thread::spawn(c"hmm-test", move || drop(device))?;
        fsleep(Delta::from_millis(100));
        assert_eq!(freed.load(Relaxed), usize::MAX);
        drop(page);
        drop(thread);
        assert_eq!(freed.load(Relaxed), 7);
        Ok(())
    }
}
