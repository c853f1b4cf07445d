// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: mirrors of devices that use DMA addresses for system memory.

use super::*;
use crate::{
    inject::{
        ArmedPoint,
        FailPoint, //
    },
    kernel::kthread::Thread,
    mm::{
        dma::{
            DmaAddress,
            DmaDevice, //
        },
        user::UserSpan, //
    },
    pgtable::{
        DmaFormat,
        Flushing,
        Leaf, //
    }, //
};

/// A device without an IOMMU: the DMA address of a page is its physical address.
struct Addressed {
    shared: Arc<Shared>,
    dma: Arc<DmaDevice>,
}

impl Device for Addressed {
    type Memory = TestMemory;
    type Format = DmaFormat<Radix4>;
    type Walker = ();
    type Flush = ();

    fn walkers(&self) -> Option<Arc<Walkers<()>>> {
        Some(self.shared.walkers.clone())
    }

    fn memory(&self) -> Option<&Memory<TestMemory>> {
        Some(&self.shared.memory)
    }

    fn dma(&self) -> Option<&Arc<DmaDevice>> {
        Some(&self.dma)
    }

    fn flush_start(&self, _range: PageRange) {}

    fn flush_wait(&self, (): ()) {}
}

/// Maps `pages` new pages, each with its index as contents, and a mirror of them.
fn addressed(pages: usize) -> Result<(PageRange, Arc<DmaDevice>, Mirror<Addressed>)> {
    let range = map(pages)?;
    for index in 0..pages {
        store(range.address(index), index as u64)?;
    }
    let (dma, mirror) = mirror_of_dma()?;
    Ok((range, dma, mirror))
}

fn mirror_of_dma() -> Result<(Arc<DmaDevice>, Mirror<Addressed>)> {
    let dma = DmaDevice::software(c"hmm-kunit")?;
    let device = Addressed {
        shared: shared()?,
        dma: dma.clone(),
    };
    let current = current!();
    let mm = current.mm().ok_or(EINVAL)?;
    Ok((dma, crate::new_mirror!(mm, device)?))
}

/// Returns a block that the CPU maps by one PMD, and a mirror with huge leaves for all of it.
#[cfg(CONFIG_TRANSPARENT_HUGEPAGE)]
fn huge() -> Result<(PageRange, Arc<DmaDevice>, Mirror<Addressed>)> {
    let block = map_huge()?;
    store(block.start(), 0)?;
    let (dma, mirror) = mirror_of_dma()?;
    mirror.fault(block, Access::Write)?;
    assert!(!is_split(&mirror, block.start())?, "no huge page");
    assert_eq!(dma.mapped(), PMD_PAGES as u64);
    Ok((block, dma, mirror))
}

/// Returns whether the leaf that is installed for `addr` is small.
#[cfg(CONFIG_TRANSPARENT_HUGEPAGE)]
fn is_split(mirror: &Mirror<Addressed>, addr: usize) -> Result<bool> {
    Ok(walk(mirror, addr)?.order == 0)
}

fn walk(mirror: &Mirror<Addressed>, addr: usize) -> Result<Leaf> {
    mirror.enter(0)?.walk(addr).ok_or(ENOENT)
}

/// Returns the results of a lookup by a leaf from an earlier walk, and by the table.
fn targets(
    mirror: &Mirror<Addressed>,
    addr: usize,
    kept: &Leaf,
    write: bool,
) -> Result<(Result<PageAddress, TranslateError>, Option<PageAddress>)> {
    let by_walker = mirror.enter(0)?.target(addr, kept, write);
    Ok((by_walker, mirror.lock_table()?.target(addr, write)))
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_mirror_of_dma)]
mod suite {
    use super::*;

    #[test]
    fn present_pages_are_found_by_address() -> Result {
        let (range, dma, mirror) = addressed(4)?;
        mirror.fault(range, Access::Write)?;
        assert_eq!(dma.live(), 4);
        let addr = range.address(2);
        let leaf = walk(&mirror, addr)?;
        let there = PageAddress::Dma(DmaAddress::from_frame(leaf.entry.number()));
        assert_eq!(
            targets(&mirror, addr, &leaf, true)?,
            (Ok(there), Some(there))
        );
        // A software engine accesses the page itself, not its DMA address.
        let mut bytes = [0; 8];
        let beyond = UserSpan::new(range.start(), PAGE_SIZE + 1);
        match mirror.enter(0)?.resolve(addr, &leaf) {
            Ok(PageMemory::Cpu(page)) => {
                page.read(0, &mut bytes)?;
                assert_eq!(page.read_to_user(0, beyond), Err(EINVAL));
            }
            _ => return Err(EIO),
        }
        match mirror.enter(0)?.resolve_mut(addr, &leaf) {
            Ok(PageMemoryMut::Cpu(page)) => {
                assert_eq!(page.write_from_user(0, beyond), Err(EINVAL))
            }
            _ => return Err(EIO),
        }
        assert_eq!(u64::from_ne_bytes(bytes), 2);
        // After the page was unmapped, no lookup returns its address, and its DMA mapping is
        // removed.
        unmap(PageRange::from_pages(addr, 1)?)?;
        let gone = (Err(TranslateError::Stale), None);
        assert_eq!(targets(&mirror, addr, &leaf, false)?, gone);
        assert!(mirror.enter(0)?.resolve(addr, &leaf).is_err());
        assert_eq!((dma.live(), dma.unmapped()), (3, 1));
        drop(mirror);
        assert_eq!((dma.live(), dma.mapped()), (0, 4));
        Ok(())
    }

    #[test]
    fn read_only_pages_have_no_writable_address() -> Result {
        let (range, _dma, mirror) = addressed(1)?;
        let other = map(1)?;
        mirror.fault(range, Access::Read)?;
        // Pages that were never written are the zero page.
        mirror.fault(other, Access::Read)?;
        let addr = other.start();
        let leaf = walk(&mirror, addr)?;
        let (by_walker, by_table) = targets(&mirror, addr, &leaf, true)?;
        assert_eq!((by_walker, by_table), (Err(TranslateError::ReadOnly), None));
        let (by_walker, by_table) = targets(&mirror, addr, &leaf, false)?;
        assert!(by_walker.is_ok() && by_walker.ok() == by_table);
        Ok(())
    }

    /// An unmap beside pages that are on the device must not take the DMA window from them: without
    /// a window, the pages would have no entry after they have migrated back.
    #[test]
    fn unmap_beside_device_pages_keeps_their_window() -> Result {
        let (range, dma, mirror) = addressed(4)?;
        mirror.fault(range, Access::Write)?;
        let stays = PageRange::from_pages(range.start(), 2)?;
        let goes = PageRange::from_pages(range.address(2), 2)?;
        assert_eq!(mirror.migrate(stays).to_device()?.moved, 2);
        assert_eq!(dma.live(), 2);
        // The last system pages of the window.
        unmap(goes)?;
        assert_eq!(dma.live(), 0);
        assert_eq!(mirror.migrate(stays).to_system()?.moved, 2);
        assert_eq!(dma.live(), 2);
        assert!(walk(&mirror, stays.address(1)).is_ok());
        // The window is removed with the last entries.
        unmap(stays)?;
        let windows = mirror.inner().dma().ok_or(EINVAL)?;
        assert_eq!((dma.live(), windows.count()), (0, 0));
        Ok(())
    }

    #[test]
    fn device_memory_has_device_addresses() -> Result {
        let (range, dma, mirror) = addressed(2)?;
        mirror.fault(range, Access::Write)?;
        let before = walk(&mirror, range.start())?;
        assert_eq!(mirror.migrate(range).to_device()?.moved, 2);
        assert_eq!(dma.live(), 0);
        let stale = mirror.enter(0)?.target(range.start(), &before, false);
        assert_eq!(stale, Err(TranslateError::Stale));
        let leaf = walk(&mirror, range.address(1))?;
        assert!(leaf.entry.is_device());
        let bytes = (leaf.entry.number() * PAGE_SIZE) as u64;
        let (by_walker, by_table) = targets(&mirror, range.address(1), &leaf, true)?;
        assert_eq!(by_walker.ok(), by_table);
        match by_table {
            Some(PageAddress::Device(address)) => assert_eq!(address.raw(), bytes),
            _ => return Err(EIO),
        }
        assert_eq!(mirror.migrate(range).to_system()?.moved, 2);
        assert_eq!(dma.live(), 2);
        assert_eq!(load(range.address(1))?, 1);
        Ok(())
    }

    #[test]
    fn fault_without_an_address_fails_and_retry_works() -> Result {
        let (range, dma, mirror) = addressed(4)?;
        let armed = ArmedPoint::new(FailPoint::Dma, 2, false)?;
        assert_eq!(mirror.fault(range, Access::Write), Err(ENOMEM));
        assert!(!armed.is_left());
        drop(armed);
        mirror.fault(range, Access::Write)?;
        assert_eq!((dma.live(), dma.mapped()), (4, 4));
        // A fault that gets no DMA address at all fails, and leaves no mapping.
        mirror.discard(range)?;
        let armed = ArmedPoint::new(FailPoint::Dma, 1, true)?;
        assert_eq!(mirror.fault(range, Access::Write), Err(ENOMEM));
        drop(armed);
        assert_eq!(dma.live(), 0);
        Ok(())
    }

    #[test]
    fn pages_migrate_back_without_an_address() -> Result {
        let (range, dma, mirror) = addressed(4)?;
        mirror.fault(range, Access::Write)?;
        assert_eq!(mirror.migrate(range).to_device()?.moved, 4);
        let armed = ArmedPoint::new(FailPoint::Dma, 2, false)?;
        assert_eq!(mirror.migrate(range).to_system()?.moved, 4);
        assert!(!armed.is_left());
        assert_eq!(dma.live(), 3);
        for index in 0..4 {
            assert_eq!(load(range.address(index))?, index as u64);
        }
        mirror.fault(range, Access::Write)?;
        assert_eq!(dma.live(), 4);
        Ok(())
    }

    #[test]
    fn entries_removed_during_device_close_are_unmapped_once() -> Result {
        // Number of removals during a close. Not every round has some.
        let mut concurrent = 0;
        let mut rounds = 0;
        while rounds < 10 || concurrent <= 20 && rounds < 500 {
            rounds += 1;
            let (range, dma, mirror) = addressed(PMD_PAGES)?;
            mirror.fault(range, Access::Write)?;
            assert_eq!(dma.live(), PMD_PAGES as u64);
            let closing = Arc::new(Atomic::new(false), GFP_KERNEL)?;
            let mut thread = None;
            // Remove pages from the end, while the close begins at the start.
            for index in (0..range.pages()).rev() {
                mirror.discard(PageRange::from_pages(range.address(index), 1)?)?;
                concurrent += usize::from(closing.load(Relaxed));
                if index == 500 {
                    let device = dma.clone();
                    let closing = closing.clone();
                    thread = Some(Thread::spawn(c"hmm-test", move || {
                        closing.store(true, Release);
                        device.close();
                        closing.store(false, Release);
                    })?);
                }
            }
            drop(thread);
            assert_eq!((dma.live(), dma.unmapped()), (0, PMD_PAGES as u64));
        }
        assert!(concurrent > 20);
        Ok(())
    }

    #[cfg(CONFIG_TRANSPARENT_HUGEPAGE)]
    #[test]
    fn fault_merges_a_split_leaf() -> Result {
        let (block, dma, mirror) = huge()?;
        let first = walk(&mirror, block.start())?.entry;
        let page = |index| PageRange::from_pages(block.address(index), 1);
        for index in [7, PMD_PAGES - 1, 0] {
            let before = dma.mapped();
            mirror.discard(page(index)?)?;
            assert_eq!(dma.live(), PMD_PAGES as u64 - 1);
            assert!(is_split(&mirror, block.address(index ^ 1))?);
            mirror.fault(page(index)?, Access::Write)?;
            assert!(!is_split(&mirror, block.address(index))?);
            // The other pages stay mapped, at the same addresses.
            assert_eq!(dma.mapped() - before, 1);
            assert_eq!(dma.live(), PMD_PAGES as u64);
            assert_eq!(walk(&mirror, block.start())?.entry, first);
        }
        // A fault of one page installs the whole leaf.
        mirror.discard(block)?;
        assert_eq!(dma.live(), 0);
        mirror.fault(page(100)?, Access::Read)?;
        assert!(!is_split(&mirror, block.start())?);
        assert_eq!(dma.live(), PMD_PAGES as u64);
        drop(mirror);
        assert_eq!((dma.live(), dma.mapped()), (0, dma.unmapped()));
        Ok(())
    }

    #[cfg(CONFIG_TRANSPARENT_HUGEPAGE)]
    #[test]
    fn fault_does_not_wait_for_other_pages_of_the_block() -> Result {
        let (block, dma, mirror) = huge()?;
        let other = PageRange::from_pages(block.address(7), 1)?;
        let page = PageRange::from_pages(block.address(9), 1)?;
        let inner = mirror.inner();
        mirror.discard(page)?;
        let flush = {
            let mut guard = inner.lock();
            let remove = |_, entry: &mut DevicePte| *entry = DevicePte::NONE;
            let change = inner.change(&mut guard.table, None, |table, batch| {
                table.for_each(other, batch, remove);
            });
            change.1
        };
        // Until the flush has completed, the other page cannot be mapped again.
        let retries = mirror.stats().get(Counter::Retries);
        mirror.fault(page, Access::Write)?;
        assert_eq!(mirror.stats().get(Counter::Retries), retries);
        assert!(is_split(&mirror, page.start())?);
        assert!(walk(&mirror, other.start()).is_err());
        assert_eq!(dma.live(), PMD_PAGES as u64);
        Flushing::end(flush, inner);
        assert_eq!(dma.live(), PMD_PAGES as u64 - 1);
        mirror.fault(page, Access::Write)?;
        assert!(!is_split(&mirror, other.start())?);
        // Without an address for the other page, the fault succeeds, too.
        mirror.discard(other)?;
        let armed = ArmedPoint::new(FailPoint::Dma, 1, true)?;
        mirror.fault(page, Access::Write)?;
        assert_eq!(mirror.fault(other, Access::Write), Err(ENOMEM));
        drop(armed);
        assert!(walk(&mirror, other.start()).is_err());
        mirror.fault(page, Access::Write)?;
        assert!(!is_split(&mirror, other.start())?);
        Ok(())
    }
}
