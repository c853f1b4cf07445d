// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: invalid arguments from safe code are refused.

use super::{
    addr::{
        PageRange,
        PMD_ORDER,
        PMD_PAGES,
        PMD_SIZE, //
    },
    device_pages::*,
    folio::{
        Effort,
        LockedFolio,
        SharedBytes, //
    },
    migrate::{
        Batch,
        Isolated,
        System, //
    },
    vma::MmapGuard, //
};
use crate::{
    bindings,
    kernel::identity::{
        EventOwner,
        MigrationId, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

struct NoFaults;

impl DevicePageOps for NoFaults {
    fn migrate_to_ram(_: &DevicePages<Self>, _: CpuFault<'_>) -> Result<(), FaultError> {
        Err(FaultError::Lost)
    }
}

fn device(kind: MemoryKind) -> Result<OwnedDevicePages<NoFaults>> {
    device_of(kind, PMD_PAGES)
}

fn device_of(kind: MemoryKind, pages: usize) -> Result<OwnedDevicePages<NoFaults>> {
    OwnedDevicePages::new(kind, pages, NoFaults)
}

/// Returns the start of 512 MiB of memory that the kernel does not use, from the module parameter
/// `kunit_coherent`. Without it, marks the test as skipped and returns `None`.
fn unused_memory() -> Option<u64> {
    // SAFETY: The helper has no preconditions.
    let start = unsafe { bindings::rust_hmm_kunit_coherent() };
    (start != 0).then_some(start)
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_refused)]
mod suite {
    use super::*;

    #[test]
    fn busy_coherent_memory_is_refused() -> Result {
        // System memory. Without the check, the core warns and the whole test run fails.
        let base = if cfg!(CONFIG_ARM64) { 1 << 30 } else { 0 };
        let start = base + (32 << 20);
        let ram = device(MemoryKind::Coherent { start })?;
        assert_eq!(ram.add_chunks(1), Err(EBUSY));
        assert_eq!((ram.total(), ram.alloc(0).is_none()), (0, true));
        // Beyond the physical address space, where additions overflow.
        for start in [
            0,
            PAGE_SIZE as u64,
            1 << 52,
            u64::MAX & !(PMD_SIZE as u64 - 1),
        ] {
            assert!(device(MemoryKind::Coherent { start }).is_err());
        }
        Ok(())
    }

    #[test]
    fn coherent_memory_belongs_to_one_device_until_its_drop() -> Result {
        let Some(start) = unused_memory() else {
            return Ok(());
        };
        let first = device(MemoryKind::Coherent { start })?;
        let second = device(MemoryKind::Coherent { start })?;
        first.add_chunks(1)?;
        assert_eq!(second.add_chunks(1), Err(EBUSY));
        drop(first);
        // The drop has released the region.
        second.add_chunks(1)
    }

    #[test]
    fn coherent_memory_spans_chunks() -> Result {
        const PAGES: usize = 2 * CHUNK_PAGES;
        let Some(start) = unused_memory() else {
            return Ok(());
        };
        let device = device_of(MemoryKind::Coherent { start }, PAGES)?;
        device.add_chunks(CHUNK_PAGES + 1)?;
        assert_eq!((device.total(), device.idle_chunks()), (PAGES, (2, 2)));
        // Consecutive numbers are consecutive addresses, also from one chunk to the next.
        let frame = usize::try_from(start)? / PAGE_SIZE;
        for number in [0, 1, CHUNK_PAGES - 1, CHUNK_PAGES, PAGES - 1] {
            assert_eq!(device.pfn(number), Some(frame + number));
            assert_eq!(device.lookup(frame + number), Some(number));
        }
        assert!(device.pfn(PAGES).is_none());
        assert!(device.lookup(frame - 1).is_none() && device.lookup(frame + PAGES).is_none());
        // All blocks of both chunks are allocated once.
        let mut blocks = KVec::new();
        while let Some(block) = device.alloc(PMD_ORDER) {
            assert_eq!(
                device.used_in_block(device.lookup(block.pfn()).ok_or(EINVAL)?),
                PMD_PAGES
            );
            blocks.push(block, GFP_KERNEL)?;
        }
        assert_eq!((blocks.len(), device.used()), (PAGES / PMD_PAGES, PAGES));
        assert_eq!(device.used_blocks().count(), PAGES / PMD_PAGES);
        drop(blocks);
        // A chunk is removed and added again while the other one is in use.
        for used in [CHUNK_PAGES, CHUNK_PAGES - 1] {
            let page = device.alloc_at(used, 0).ok_or(ENOMEM)?;
            assert_eq!(page.pfn(), frame + used);
            assert_eq!((device.remove_chunks(2), device.total()), (1, CHUNK_PAGES));
            let removed = PAGES - 1 - used;
            assert!(device.pfn(removed).is_none() && device.lookup(frame + removed).is_none());
            assert_eq!(device.lookup(page.pfn()), Some(used));
            device.add_chunks(CHUNK_PAGES)?;
            assert_eq!(device.pfn(removed), Some(frame + removed));
            drop(page);
        }
        Ok(())
    }

    #[test]
    fn overflowing_page_numbers_are_refused() -> Result {
        let device = device(MemoryKind::Private)?;
        device.add_chunks(1)?;
        let mut batch = Batch::new()?;
        for first in [usize::MAX, usize::MAX - PMD_PAGES, CHUNK_PAGES, 1] {
            let mut found = false;
            device.isolate_small(first, MmapLocks::All, &mut batch, |_| found = true);
            assert!(!found);
        }
        assert!(Batch::with_capacity(usize::MAX).is_err());
        assert!(device.pfn(usize::MAX).is_none() && device.lookup(usize::MAX).is_none());
        let bytes = SharedBytes::new(16)?;
        assert!(bytes.read(usize::MAX, &mut [0; 2]).is_err());
        assert!(bytes.clear(8, usize::MAX).is_err());
        assert!(bytes.fetch_add_u64(12, 1).is_err() && bytes.fetch_add_u64(4, 1).is_err());
        assert!(SharedBytes::new(usize::MAX).is_err());
        Ok(())
    }

    #[test]
    fn invalid_orders_are_refused() {
        for order in [PMD_ORDER + 1, 63, 64, u32::MAX] {
            let folio = LockedFolio::alloc_system(None, 0, order, Effort::Try);
            assert_eq!(folio.err(), Some(EINVAL));
        }
    }

    #[test]
    fn second_destination_of_a_page_is_refused() -> Result {
        // SAFETY: The helper has no preconditions. The test task has an mm.
        let addr = unsafe { bindings::rust_hmm_kunit_mmap(4 * PAGE_SIZE) };
        let range = PageRange::from_pages(addr, 4)?;
        let device = device(MemoryKind::Private)?;
        device.add_chunks(8)?;
        let mut batch = Batch::new()?;
        let current = current!();
        let mmap = MmapGuard::lock(current.mm().ok_or(EINVAL)?)?;
        let vma = mmap.vma_lookup(addr).ok_or(EINVAL)?;
        let id = MigrationId::of(&range);
        let System::Isolated(mut isolated, _) =
            Isolated::of_system(vma, range, false, id, &mut batch)?
        else {
            return Err(EINVAL);
        };
        isolated.fill(|_| device.alloc(0));
        assert_eq!(device.used(), 4);
        // A second destination would leak the first one, which would stay locked.
        isolated.fill(|_| device.alloc(0));
        assert_eq!(device.used(), 4);
        isolated.skip(1);
        isolated.skip(1);
        isolated.skip(usize::MAX);
        assert_eq!(device.used(), 3);
        isolated.fill(|_| device.alloc(0));
        assert_eq!(device.used(), 4);
        drop(isolated);
        assert_eq!(device.used(), 0);
        Ok(())
    }

    #[test]
    fn owner_cookies_differ_from_driver_cookies() -> Result {
        let device = device(MemoryKind::Private)?;
        let id = MigrationId::of(&*device);
        assert_ne!(EventOwner::from(device.owner()), id.into());
        Ok(())
    }

    #[test]
    fn narrow_dma_mask_is_refused() -> Result {
        // SAFETY: The name is a C string, and the device is destroyed below.
        unsafe {
            let device = bindings::rust_hmm_dma_create(c"hmm-kunit-narrow".as_char_ptr());
            assert!(!device.is_null());
            for (bits, error) in [(0, EINVAL), (65, EINVAL), (16, EIO)] {
                let adopted = bindings::rust_hmm_dma_adopt(device, bits);
                assert_eq!(adopted, error.to_errno());
            }
            assert_eq!(bindings::rust_hmm_dma_adopt(device, 64), 0);
            bindings::rust_hmm_dma_release(device);
            bindings::rust_hmm_dma_destroy(device);
        }
        Ok(())
    }
}
