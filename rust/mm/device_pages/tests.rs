// SPDX-License-Identifier: GPL-2.0

//! Device memory without a device.

use super::*;
use crate::mm::addr::PMD_ORDER;

struct NoFaults;

impl DevicePageOps for NoFaults {
    fn migrate_to_ram(_: &DevicePages<Self>, _: CpuFault<'_>) -> Result<(), FaultError> {
        Err(FaultError::Lost)
    }
}

#[kunit_tests(rust_hmm_device_pages)]
mod suite {
    use super::*;

    fn device(pages: usize) -> Result<Pin<KBox<DevicePages<NoFaults>>>> {
        KBox::pin_init(DevicePages::new(Kind::Private, pages, NoFaults), GFP_KERNEL)
    }

    fn order_of(pfn: usize) -> u32 {
        // SAFETY: A frame of device memory that is mapped.
        unsafe { bindings::rust_hmm_pfn_order(pfn) }
    }

    #[test]
    fn a_free_block_is_no_large_folio() -> Result {
        let device = device(PMD_PAGES)?;
        device.grow(PMD_PAGES)?;
        let pfn = device.pfn(0).ok_or(EINVAL)?;
        let block = device.alloc(PMD_ORDER).ok_or(ENOMEM)?;
        assert_eq!((order_of(pfn), device.used()), (PMD_ORDER, PMD_PAGES));
        drop(block);
        // Else migrate_device_range() steps over small folios that follow.
        assert_eq!((order_of(pfn), device.used()), (0, 0));
        assert!(device.used_blocks().next().is_none());
        Ok(())
    }

    #[test]
    fn numbers_and_limits() -> Result {
        let device = device(PMD_PAGES)?;
        assert_eq!((device.total(), device.limit()), (0, PMD_PAGES));
        assert!(device.alloc(0).is_none());
        device.grow(1)?;
        let pages = [0; 2].map(|order| device.alloc(order));
        assert!(pages.iter().all(|page| page.is_some()));
        assert_eq!(device.used(), 2);
        let pfn = device.pfn(1).ok_or(EINVAL)?;
        assert_eq!(device.lookup(pfn), Some(1));
        assert!(device.lookup(0).is_none() && device.pfn(PIECE_PAGES).is_none());
        // No free block, since two of its pages are in use.
        assert!(device.alloc(PMD_ORDER).is_none() && device.alloc(3).is_none());
        drop(pages);
        assert_eq!(device.used(), 0);
        Ok(())
    }
}
