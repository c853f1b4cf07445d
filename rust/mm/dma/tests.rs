// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: mappings of software devices that are closed.

use super::*;
#[cfg(CONFIG_ARM64)]
use crate::kernel::limit::logged_lines;
use crate::{
    alarm::{
        Alarm,
        ExpectedAlarm, //
    },
    kernel::kthread::Thread,
    mm::addr::{
        PageRange,
        PMD_SIZE, //
    }, //
};
use core::mem::ManuallyDrop;
use kernel::{
    page::Page,
    sync::Completion, //
};

/// `-EOPNOTSUPP`, for which the kernel crate has no constant.
const EOPNOTSUPP: i32 = -95;

/// Maps `page` `count` times.
fn mapping(device: &Arc<DmaDevice>, page: &Page, count: usize) -> Result<DmaMapping> {
    // SAFETY: The page is allocated.
    let pfn = unsafe { bindings::rust_hmm_page_to_pfn(page.as_ptr()) };
    let frames = (0..count).map(|_| Ok(pfn));
    // SAFETY: Callers keep the page allocated for longer than the mapping.
    unsafe { DmaMapping::of_frames(device, count, frames) }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_dma_device)]
mod suite {
    use super::*;

    #[test]
    fn close_waits_for_a_running_unmap() -> Result {
        // With CONFIG_DMA_API_DEBUG, each call searches all mappings of the page.
        const PAGES: usize = if cfg!(CONFIG_DMA_API_DEBUG) {
            1 << 11
        } else {
            1 << 15
        };
        let page = Page::alloc_page(GFP_KERNEL)?;
        for _ in 0..8 {
            let device = DmaDevice::software(c"hmm-kunit")?;
            let mapped = mapping(&device, &page, PAGES)?;
            assert_eq!(device.live(), PAGES as u64);
            let begun = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
            let begin = begun.clone();
            let thread = Thread::spawn(c"hmm-test", move || {
                begin.complete_all();
                drop(mapped);
            })?;
            begun.wait_for_completion();
            // Most pages are still mapped after this time.
            fsleep(Delta::from_micros(100));
            device.close();
            assert_eq!((device.live(), device.unmapped()), (0, PAGES as u64));
            drop(thread);
            assert_eq!(device.unmapped(), PAGES as u64);
        }
        Ok(())
    }

    #[test]
    fn close_unmaps_leaked_mappings() -> Result {
        let page = Page::alloc_page(GFP_KERNEL)?;
        let device = DmaDevice::software(c"hmm-kunit")?;
        let kept = mapping(&device, &page, 3)?;
        let forgotten = ManuallyDrop::new(mapping(&device, &page, 4)?);
        assert!(kept.address(2).is_some() && kept.address(3).is_none());
        assert_eq!(device.close(), 7);
        assert_eq!((device.live(), device.unmapped()), (0, 7));
        assert!(kept.address(2).is_none());
        drop(kept);
        assert_eq!(device.unmapped(), 7);
        assert_eq!(mapping(&device, &page, 1).err(), Some(ENODEV));
        drop(ManuallyDrop::into_inner(forgotten));
        assert_eq!(device.unmapped(), 7);
        Ok(())
    }

    /// With `CONFIG_DMA_API_DEBUG`, the kernel warns of mappings with different attributes.
    #[test]
    fn run_and_page_mappings_have_the_same_attributes() -> Result {
        let page = Page::alloc_page(GFP_KERNEL)?;
        // SAFETY: The page is allocated.
        let pfn = unsafe { bindings::rust_hmm_page_to_pfn(page.as_ptr()) };
        let device = DmaDevice::software(c"hmm-kunit")?;
        for run_first in [false, true] {
            let mapped = mapping(&device, &page, 1)?;
            // SAFETY: The page outlives the run, and nothing accesses it.
            let run = unsafe { DmaRun::new(&device, pfn, 1, DmaDirection::Both)? };
            assert_eq!(device.live(), 2);
            if run_first {
                drop(run);
                drop(mapped);
            } else {
                drop(mapped);
                drop(run);
            }
            assert_eq!(device.live(), 0);
        }
        Ok(())
    }

    // On x86-64 all devices are coherent.
    #[cfg(CONFIG_ARM64)]
    #[test]
    fn incoherent_devices_are_refused() -> Result {
        let device = DmaDevice::software(c"hmm-kunit-incoherent")?;
        let lines = || {
            logged_lines(
                c"hmm-kunit-incoherent: rust_hmm: refused: the device is not DMA-coherent",
                c"so it would not see CPU writes",
            )
        };
        let before = lines();
        // SAFETY: The device is registered, nothing is mapped for it, and it is refused before the
        // call takes a reference.
        let adopted = unsafe {
            bindings::rust_hmm_kunit_set_incoherent(device.as_raw());
            bindings::rust_hmm_dma_adopt(device.as_raw(), 64)
        };
        assert_eq!((adopted, lines()), (EOPNOTSUPP, before + 1));
        Ok(())
    }

    #[test]
    fn device_in_use_at_its_close_raises_an_alarm() -> Result {
        let device = DmaDevice::software(c"hmm-kunit")?;
        let call = device.begin()?;
        let expected = ExpectedAlarm::new(Alarm::DeviceInUse);
        let theirs = device.clone();
        let thread = Thread::spawn(c"hmm-test", move || {
            theirs.close_in_time(3);
        })?;
        for _ in 0..5000 {
            if expected.raised() != 0 {
                break;
            }
            fsleep(Delta::from_millis(1));
        }
        assert_eq!(expected.raised(), 1);
        // It is closed as soon as the call ends.
        drop(call);
        drop(thread);
        assert_eq!(device.begin().err(), Some(ENODEV));
        assert_eq!(expected.raised(), 1);
        Ok(())
    }

    #[test]
    fn page_mapped_after_close_raises_an_alarm() -> Result {
        let device = DmaDevice::software(c"hmm-kunit")?;
        // A mapping that has no owner.
        device.count_mapped(1);
        let expected = ExpectedAlarm::new(Alarm::PagesStayMapped);
        device.close();
        assert_eq!(expected.raised(), 1);
        device.count_unmapped(1);
        Ok(())
    }

    #[test]
    fn closed_device_refuses_users_and_mappings() -> Result {
        struct Nothing;

        impl DmaUser for Nothing {
            fn close(&self) -> usize {
                0
            }
        }

        let device = DmaDevice::software(c"hmm-kunit")?;
        device.close();
        assert_eq!(device.add(Arc::new(Nothing, GFP_KERNEL)?), Err(ENODEV));
        assert_eq!(DmaBuffer::new(&device, 1).err(), Some(ENODEV));
        let page = Page::alloc_page(GFP_KERNEL)?;
        // SAFETY: The page is allocated.
        let pfn = unsafe { bindings::rust_hmm_page_to_pfn(page.as_ptr()) };
        // SAFETY: The page outlives the run, and nothing accesses it.
        let run = unsafe { DmaRun::new(&device, pfn, 1, DmaDirection::Both) };
        assert_eq!(run.err(), Some(ENODEV));
        assert_eq!((device.live(), device.mapped()), (0, 0));
        Ok(())
    }

    #[test]
    fn page_mapped_when_its_table_is_freed_raises_an_alarm() -> Result {
        let page = Page::alloc_page(GFP_KERNEL)?;
        // SAFETY: The page is allocated.
        let pfn = unsafe { bindings::rust_hmm_page_to_pfn(page.as_ptr()) };
        let device = DmaDevice::software(c"hmm-kunit")?;
        let windows = OwnedWindows(DmaWindows::new(&device)?);
        let range = PageRange::from_pages(PMD_SIZE, 1)?;
        windows.0.prepare(range)?;
        windows.0.cursor().map(range.start(), pfn)?;
        assert_eq!(device.live(), 1);
        let expected = ExpectedAlarm::new(Alarm::PagesStayMapped);
        drop(windows);
        // The page is unmapped nevertheless.
        assert_eq!((expected.raised(), device.live()), (1, 0));
        Ok(())
    }

    #[test]
    fn bounced_devices_are_refused_and_never_coherent() -> Result {
        let page = Page::alloc_page(GFP_KERNEL)?;
        let device = DmaDevice::bouncing(c"hmm-kunit-bouncing")?;
        assert!(!device.is_coherent());
        // SAFETY: The device is registered, and refused before it takes a reference.
        let adopted = unsafe { bindings::rust_hmm_dma_adopt(device.as_raw(), 64) };
        assert_eq!(adopted, EOPNOTSUPP);
        let device = DmaDevice::software(c"hmm-kunit")?;
        assert!(device.is_coherent());
        // A device whose DMA is bounced from now on: mapping must fail instead of bouncing.
        // SAFETY: The device is registered, and nothing is mapped for it.
        unsafe { bindings::rust_hmm_dma_bounce(device.as_raw()) };
        assert_eq!(mapping(&device, &page, 1).err(), Some(ENOMEM));
        assert_eq!((device.live(), device.mapped()), (0, 0));
        for bits in [0, 65] {
            // SAFETY: The device is registered, and the call fails before it takes a reference.
            let adopted = unsafe { bindings::rust_hmm_dma_adopt(device.as_raw(), bits) };
            assert_eq!(adopted, EINVAL.to_errno());
        }
        Ok(())
    }
}
