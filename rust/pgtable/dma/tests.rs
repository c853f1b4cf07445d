// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: tables of DMA addresses, with a software device.

use super::*;
use crate::{
    inject::{
        ArmedPoint,
        FailPoint, //
    },
    kernel::kthread::Thread,
    mm::{
        dma::{
            DmaDevice,
            DmaUser, //
        },
        table_memory::TableMemory, //
    },
    pgtable::{
        format::order,
        Bits,
        FormatOf,
        Layout,
        Radix4, //
    }, //
};
use fixture::{
    pages,
    Fixture,
    FixtureOf, //
};
use kernel::sync::atomic::{
    ordering::{
        Acquire,
        Release, //
    },
    Atomic, //
};

mod fixture;

/// A layout without exclusive entries.
enum PlainBits {}

impl Layout for PlainBits {
    type Word = u64;

    const LEVELS: u32 = 4;
    const BITS_PER_LEVEL: u32 = 9;
    const LEAVES: &'static [u32] = &[0, 9];
    const BITS: Bits = Bits {
        valid: 0,
        table: 1,
        write: 2,
        device: 3,
        exclusive: None,
        number: 4,
        number_bits: 60,
    };
}

/// Log2 of the number of pages that a leaf of level 1 maps.
const LEAF_ORDER: u32 = order::<Radix4>(1);

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_dma)]
mod suite {
    use super::*;

    #[test]
    fn pages_are_mapped_with_entries_and_unmapped_after_the_flush() -> Result {
        let mut fixture = Fixture::new()?;
        let system = fixture.scattered();
        let range = pages(0, 4)?;
        // No window was created.
        assert_eq!(fixture.install(range, system), Err(EBUSY));
        assert_eq!((fixture.device.live(), fixture.table.live()), (0, 0));
        fixture.windows.prepare(range)?;
        fixture.install(range, system)?;
        assert_eq!((fixture.device.live(), fixture.table.live()), (4, 4));
        for index in 0..4 {
            let addr = range.address(index);
            assert_eq!(fixture.table.get(addr), system(index));
            // Without an IOMMU, the DMA address of a page is its physical address.
            let seen = fixture.table.reader().walk(addr).ok_or(ENOENT)?;
            assert_eq!(seen.entry.number(), system(index).number());
        }
        // A change of access rights does not change the mapping.
        fixture.install(range, |index| system(index).write_protected())?;
        assert_eq!((fixture.device.live(), fixture.device.mapped()), (4, 4));
        let tick = fixture.remove(range);
        assert_eq!((fixture.device.live(), fixture.table.live()), (4, 0));
        fixture.windows.unmap(range, tick);
        assert_eq!((fixture.device.live(), fixture.device.unmapped()), (0, 4));
        Ok(())
    }

    #[test]
    fn flush_unmaps_earlier_removals_only() -> Result {
        let mut fixture = Fixture::new()?;
        let system = fixture.scattered();
        let range = pages(0, 2)?;
        let one = pages(0, 1)?;
        let other = pages(1, 1)?;
        fixture.windows.prepare(range)?;
        fixture.install(range, system)?;
        let first = fixture.remove(one);
        let second = fixture.remove(other);
        fixture.windows.unmap(range, second);
        assert_eq!(fixture.device.live(), 1);
        // The page of the first entry is still mapped.
        assert_eq!(fixture.install(one, system), Err(EBUSY));
        assert_eq!(fixture.table.get(one.start()), DevicePte::NONE);
        assert_eq!(fixture.install(other, system), Ok(()));
        fixture.windows.unmap(range, first);
        assert_eq!(fixture.device.live(), 1);
        assert_eq!(fixture.install(one, system), Ok(()));
        assert_eq!(fixture.device.live(), 2);
        Ok(())
    }

    #[test]
    fn device_memory_replaces_mapped_pages() -> Result {
        let mut fixture = Fixture::new()?;
        let range = pages(0, PMD_PAGES)?;
        fixture.windows.prepare(range)?;
        let frame = fixture.contiguous();
        fixture.install(range, frame)?;
        assert_eq!(
            fixture.table.leaf(range.start()).map(|leaf| leaf.order),
            Some(LEAF_ORDER)
        );
        assert_eq!(fixture.device.live(), PMD_PAGES as u64);
        let before = fixture.windows.tick();
        fixture.install(range, |index| DevicePte::device(index, true))?;
        let tick = fixture.windows.tick();
        assert_eq!(tick, before + 1);
        fixture.windows.unmap(range, tick);
        assert_eq!(fixture.device.live(), 0);
        // Replace the device pages by system pages, one by one.
        let mut batch = fixture.table.batch();
        fixture.table.for_each_split(
            range,
            &mut batch,
            |_| true,
            |span, entry| {
                if let Some(index) = range.index_of(span.start()) {
                    *entry = frame(index).write_protected();
                }
            },
        );
        Fixture::flush(batch);
        assert_eq!(fixture.device.live(), PMD_PAGES as u64);
        Ok(())
    }

    #[test]
    fn failed_huge_mapping_maps_page_by_page() -> Result {
        let mut fixture = Fixture::new()?;
        let range = pages(0, PMD_PAGES)?;
        let one = pages(7, 1)?;
        let frame = fixture.contiguous();
        fixture.windows.prepare(range)?;
        fixture.install(one, |_| frame(7))?;
        let tick = fixture.remove(one);
        // Page 7 is still dying: the seven pages mapped before it are unmapped again.
        assert_eq!(fixture.install(range, frame), Err(EBUSY));
        assert_eq!(fixture.device.unmapped(), 7);
        assert_eq!(fixture.device.mapped(), PMD_PAGES as u64 + 7);
        assert_eq!(fixture.table.get(one.start()), DevicePte::NONE);
        for index in (0..PMD_PAGES).filter(|index| *index != 7) {
            assert_eq!(fixture.table.get(range.address(index)), frame(index));
        }
        fixture.windows.unmap(range, tick);
        assert_eq!(fixture.device.live(), PMD_PAGES as u64 - 1);
        fixture.install(range, frame)?;
        assert_eq!(fixture.device.live(), PMD_PAGES as u64);
        assert_eq!(fixture.table.live(), PMD_PAGES);
        let leaf = fixture.table.leaf(range.start());
        assert_eq!(leaf.map(|leaf| leaf.order), Some(LEAF_ORDER));
        Ok(())
    }

    #[test]
    fn only_pages_without_an_address_are_absent() -> Result {
        let mut fixture = Fixture::new()?;
        let system = fixture.scattered();
        let range = pages(0, 4)?;
        fixture.windows.prepare(range)?;
        let armed = ArmedPoint::new(FailPoint::Dma, 2, false)?;
        assert_eq!(fixture.install(range, system), Err(ENOMEM));
        assert!(!armed.is_left());
        assert_eq!((fixture.device.live(), fixture.table.live()), (3, 3));
        assert_eq!(fixture.table.get(range.address(1)), DevicePte::NONE);
        assert_eq!(fixture.table.get(range.address(2)), system(2));
        // A page that is mapped is not mapped again.
        let armed = ArmedPoint::new(FailPoint::Dma, 2, false)?;
        fixture.install(range, system)?;
        assert!(armed.is_left());
        assert_eq!((fixture.device.live(), fixture.table.live()), (4, 4));
        Ok(())
    }

    #[test]
    fn huge_page_without_all_addresses_is_split() -> Result {
        let mut fixture = Fixture::new()?;
        let range = pages(0, PMD_PAGES)?;
        let frame = fixture.contiguous();
        fixture.windows.prepare(range)?;
        // No page can be mapped.
        let armed = ArmedPoint::new(FailPoint::Dma, 1, true)?;
        assert_eq!(fixture.install(range, frame), Err(ENOMEM));
        drop(armed);
        assert_eq!((fixture.device.mapped(), fixture.table.live()), (0, 0));
        // One page cannot be mapped: the pages of its leaf mapped before it are unmapped again, of
        // which there are 299 if a leaf has 512 pages.
        let armed = ArmedPoint::new(FailPoint::Dma, 300, false)?;
        fixture.install(range, frame)?;
        assert!(!armed.is_left());
        assert_eq!(fixture.device.unmapped(), 299 % (1 << LEAF_ORDER));
        assert_eq!(fixture.device.live(), PMD_PAGES as u64);
        assert_eq!(fixture.table.live(), PMD_PAGES);
        for index in (0..PMD_PAGES).step_by(1 << LEAF_ORDER) {
            let leaf = fixture.table.leaf(range.address(index)).ok_or(ENOENT)?;
            let is_split = (index..index + (1 << LEAF_ORDER)).contains(&299);
            assert_eq!((leaf.order == 0), is_split);
        }
        Ok(())
    }

    #[test]
    fn pages_moved_back_without_an_address_lose_their_entry() -> Result {
        let mut fixture = Fixture::new()?;
        let system = fixture.scattered();
        let range = pages(0, 4)?;
        fixture.windows.prepare(range)?;
        fixture.install(range, |index| DevicePte::device(index, true))?;
        let armed = ArmedPoint::new(FailPoint::Dma, 3, false)?;
        let mut batch = fixture.table.batch();
        fixture.table.for_each(range, &mut batch, |span, entry| {
            if let Some(index) = range.index_of(span.start()) {
                *entry = system(index);
            }
        });
        Fixture::flush(batch);
        assert!(!armed.is_left());
        assert_eq!((fixture.device.live(), fixture.table.live()), (3, 3));
        assert_eq!(fixture.table.get(range.address(2)), DevicePte::NONE);
        assert_eq!(fixture.table.get(range.address(3)), system(3));
        Ok(())
    }

    #[test]
    fn exclusive_entry_needs_a_capable_format() -> Result {
        let mut fixture = FixtureOf::<FormatOf<PlainBits>>::new()?;
        let range = pages(0, PMD_PAGES)?;
        fixture.windows.prepare(range)?;
        let frame = fixture.contiguous();
        fixture.install(range, frame)?;
        let first = pages(0, 1)?;
        let exclusive = |index| DevicePte::exclusive(frame(index).number());
        assert_eq!(fixture.install(first, exclusive), Err(EINVAL));
        // The other entries are unchanged. The first one is removed, and its page unmapped by the
        // flush.
        assert_eq!(fixture.table.get(first.start()), DevicePte::NONE);
        assert_eq!(fixture.device.live(), PMD_PAGES as u64);
        assert_eq!(fixture.table.live(), PMD_PAGES - 1);
        let tick = fixture.windows.tick();
        fixture.windows.unmap(first, tick);
        assert_eq!(fixture.device.live(), PMD_PAGES as u64 - 1);
        Ok(())
    }

    #[test]
    fn forgotten_window_is_freed_when_empty() -> Result {
        let mut fixture = Fixture::new()?;
        let system = fixture.scattered();
        let range = pages(0, 8)?;
        fixture.windows.prepare(range)?;
        fixture.windows.prepare(range)?;
        assert_eq!(fixture.windows.count(), 1);
        fixture.install(range, system)?;
        let tick = fixture.remove(range);
        fixture.windows.retire_windows(range);
        assert_eq!(fixture.windows.count(), 1);
        fixture.windows.unmap(range, tick);
        assert_eq!(fixture.windows.count(), 0);
        Ok(())
    }

    #[test]
    fn device_close_unmaps_all() -> Result {
        let mut fixture = Fixture::new()?;
        let system = fixture.scattered();
        let range = pages(0, 4)?;
        fixture.windows.prepare(range)?;
        fixture.install(range, system)?;
        assert_eq!(fixture.device.close(), 4);
        assert_eq!((fixture.device.live(), fixture.device.close()), (0, 0));
        // The entries still yield the page frames.
        assert_eq!(fixture.table.get(range.address(2)), system(2));
        assert_eq!(fixture.windows.prepare(pages(PMD_PAGES, 1)?), Err(ENODEV));
        assert_eq!(DmaWindows::new(&fixture.device).err(), Some(ENODEV));
        assert_eq!(fixture.install(pages(5, 1)?, system), Err(ENODEV));
        let tick = fixture.remove(range);
        fixture.windows.unmap(range, tick);
        assert_eq!((fixture.device.live(), fixture.table.live()), (0, 0));
        Ok(())
    }

    #[test]
    fn device_close_unmaps_pages_awaiting_their_flush() -> Result {
        let mut fixture = Fixture::new()?;
        let system = fixture.scattered();
        let range = pages(0, 4)?;
        let part = pages(0, 2)?;
        fixture.windows.prepare(range)?;
        fixture.install(range, system)?;
        let tick = fixture.remove(part);
        assert_eq!(fixture.device.live(), 4);
        // Only pages with an entry are counted, not those that waited for the flush.
        assert_eq!(fixture.device.close(), 2);
        assert_eq!(fixture.device.live(), 0);
        fixture.windows.unmap(part, tick);
        let tick = fixture.remove(range);
        fixture.windows.unmap(range, tick);
        assert_eq!((fixture.device.unmapped(), fixture.table.live()), (4, 0));
        Ok(())
    }

    #[test]
    fn table_and_device_close_concurrently() -> Result {
        const BLOCKS: usize = 16 * 512 / PMD_PAGES;
        for _ in 0..8 {
            let mut fixture = Fixture::new()?;
            let system = fixture.scattered();
            let range = pages(0, BLOCKS * PMD_PAGES)?;
            fixture.windows.prepare(range)?;
            for piece in range.pmd_pieces() {
                fixture.install(piece, system)?;
            }
            let windows = fixture.windows.clone();
            let left = Arc::new(Atomic::new(0usize), GFP_KERNEL)?;
            let theirs = left.clone();
            let thread = Thread::spawn(c"hmm-test", move || {
                theirs.store(DmaUser::close(&*windows), Release);
            })?;
            let ours = fixture.device.close();
            // The second caller has waited for the first.
            assert_eq!(fixture.device.live(), 0);
            drop(thread);
            assert_eq!(ours + left.load(Acquire), range.pages());
            assert_eq!(fixture.device.unmapped(), range.pages() as u64);
        }
        Ok(())
    }

    #[test]
    fn format_and_device_must_agree() -> Result {
        let device = DmaDevice::software(c"hmm-kunit")?;
        let windows = DmaWindows::new(&device)?;
        assert!(Table::<Radix4>::with(Some(windows), TableMemory::none()).is_err());
        assert!(Table::<DmaFormat<Radix4>>::with(None, TableMemory::none()).is_err());
        Ok(())
    }
}
