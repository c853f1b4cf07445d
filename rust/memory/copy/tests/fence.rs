// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: jobs that end in callbacks of DMA fences.

use super::*;
use crate::{
    kernel::{
        dma_fence::{
            DmaFenceAlloc,
            FenceContext, //
        },
        identity::FenceType,
        test_fence::FenceCallback,
        test_timer::{
            DriverMode,
            TestTimer, //
        }, //
    },
    mm::{
        folio::CpuPagesMut,
        location::{
            PageMemory,
            PageMemoryMut, //
        }, //
    }, //
};

/// Copies the page of `job` with the CPU.
fn copy(job: &CopyJob) -> Result {
    let copy = job.copy();
    match (&copy.source, &copy.destination) {
        (Some(PageMemory::Cpu(source)), PageMemoryMut::Cpu(destination)) => {
            destination.copy_from(source)
        }
        _ => Err(EINVAL),
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_copy_fences)]
mod suite {
    use super::*;

    /// The fence is signalled at different times: before the wait and while the task sleeps, by a
    /// timer interrupt and by a thread.
    #[test]
    fn fence_callback_copies_the_page_and_completes_the_job() -> Result {
        const ROUNDS: usize = 400;
        const INDEX: usize = 3;
        let driver = Driver::new();
        let timeline = FenceContext::new();
        let mut copies = CopyContext::new(true)?;
        let pages = [Page::alloc_page(GFP_KERNEL)?, Page::alloc_page(GFP_KERNEL)?];
        let pfns = pages.each_ref().map(|page| {
            // SAFETY: The page is allocated.
            unsafe { bindings::rust_hmm_page_to_pfn(page.as_ptr()) }
        });
        let [source, destination] = pfns.map(|pfn| {
            // SAFETY: The page is allocated until the end of the test, and the CPU can address it.
            unsafe { CpuPagesMut::new(pfn, 1) }
        });
        let [from, to] = pfns.map(CopyEndpoint::Cpu);
        let calls = counter()?;
        let interrupts = counter()?;
        let mut expected = 0;
        for round in 0..ROUNDS {
            // With PREEMPT_RT an interrupt handler cannot take the lock of a fence.
            let by_interrupt = round % 2 == 0 && !cfg!(CONFIG_PREEMPT_RT);
            expected += usize::from(by_interrupt);
            let after = Delta::from_micros((round % 7) as i64 * 30);
            // One word at each end of the page.
            for offset in [0, PAGE_SIZE - 8] {
                source.write(offset, &(round + offset).to_le_bytes())?;
                destination.write(offset, &usize::MAX.to_le_bytes())?;
            }
            let filled = step(&mut copies, &driver, |batch| {
                let pending = DmaFenceAlloc::new()?.init(&timeline, FenceType::NONE);
                let fence = pending.fence();
                // SAFETY: The pages are allocated, and only the job uses them until the wait ends.
                let mut job = Some(unsafe { batch.job(INDEX, 1, Some(from), to) });
                let (calls, interrupts) = (calls.clone(), interrupts.clone());
                let callback = FenceCallback::new(fence, move |is_interrupt| {
                    if let Some(job) = job.take() {
                        calls.fetch_add(1, Relaxed);
                        interrupts.fetch_add(usize::from(is_interrupt), Relaxed);
                        let result = copy(&job);
                        job.complete(result);
                    }
                })?;
                let mut pending = Some(pending);
                let mut signal = move || {
                    if let Some(pending) = pending.take() {
                        pending.signal(Ok(()));
                    }
                };
                let signaller = if by_interrupt {
                    let timer = TestTimer::<DriverMode>::new(move |_| signal())?;
                    (Some(timer.start(after)), None)
                } else {
                    let thread = spawn(move || {
                        fsleep(after);
                        signal();
                    })?;
                    (None, Some(thread))
                };
                Ok((callback, signaller))
            })?;
            assert!(filled.has(INDEX) && filled.count(0..PMD_PAGES) == 1);
            assert_eq!(calls.load(Relaxed), round + 1);
            for offset in [0, PAGE_SIZE - 8] {
                let mut word = [0; 8];
                destination.read(offset, &mut word)?;
                assert_eq!(usize::from_le_bytes(word), round + offset);
            }
        }
        assert_eq!(interrupts.load(Relaxed), expected);
        assert_eq!(driver.cancellations(), 0);
        Ok(())
    }
}
