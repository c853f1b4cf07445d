// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: jobs that end in hard interrupts and with interrupts disabled.

use super::{
    super::DmaCopy,
    *, //
};
use crate::{
    bindings,
    inject::ArmedPoint,
    kernel::{
        deferred,
        kthread::Thread,
        limit::logged_lines,
        test_timer::{
            DriverMode,
            HardMode,
            TestTimer, //
        }, //
    },
    mm::dma::{
        totals,
        DmaDevice, //
    }, //
};
use kernel::{
    ffi,
    page::Page,
    sync::Arc,
    time::{
        delay::fsleep,
        hrtimer::{
            HrTimerMode,
            HrTimerPointer, //
        },
        Delta, //
    }, //
};

/// Counts cancellations.
struct Driver(Atomic<usize>);

impl Driver {
    const fn new() -> Self {
        Self(Atomic::new(0))
    }

    fn cancellations(&self) -> usize {
        self.0.load(Relaxed)
    }
}

impl Cancel for Driver {
    fn cancel(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// A job that a driver holds.
enum Held {
    Plain(CopyJob),
    Mapped(DmaCopy),
    /// Ended by dropping it.
    Dropped(#[expect(dead_code, reason = "dropped only")] CopyJob),
}

impl Held {
    fn end(self) {
        match self {
            Self::Plain(job) => job.complete(Ok(())),
            Self::Mapped(copy) => copy.complete(Ok(())),
            Self::Dropped(_) => {}
        }
    }
}

/// Returns a timer whose interrupt handler ends `jobs`, in reverse order, and adds those that it
/// ended in hard interrupt context to `ended`.
fn interrupt<M: HrTimerMode + 'static>(
    mut jobs: KVec<Held>,
    ended: &Arc<Atomic<usize>>,
) -> Result<Pin<KBox<TestTimer<M>>>> {
    let ended = ended.clone();
    TestTimer::new(move |is_interrupt| {
        // The elements are popped, because freeing the vector is left to the owner of the timer.
        while let Some(job) = jobs.pop() {
            ended.fetch_add(usize::from(is_interrupt), Relaxed);
            job.end();
        }
    })
}

/// A section in which interrupts are disabled on this CPU.
struct InterruptsOff(ffi::c_ulong);

impl InterruptsOff {
    fn new() -> Self {
        // SAFETY: The helper has no preconditions.
        Self(unsafe { bindings::rust_hmm_kunit_irq_save() })
    }
}

impl Drop for InterruptsOff {
    fn drop(&mut self) {
        // SAFETY: `self.0` is what `rust_hmm_kunit_irq_save()` returned on this CPU.
        unsafe { bindings::rust_hmm_kunit_irq_restore(self.0) };
    }
}

/// Creates the job of entry `index`, which has no memory.
fn job(batch: &mut CopyBatch<'_>, index: usize) -> CopyJob {
    // SAFETY: No memory is read or written for the job.
    unsafe { batch.job(index, 1, None, CopyEndpoint::Device(index)) }
}

/// Creates jobs of the entries `indices`.
fn jobs(batch: &mut CopyBatch<'_>, indices: core::ops::Range<usize>) -> Result<KVec<Held>> {
    let mut jobs = KVec::with_capacity(indices.len(), GFP_KERNEL)?;
    for index in indices {
        jobs.push(Held::Plain(job(batch, index)), GFP_KERNEL)?;
    }
    Ok(jobs)
}

fn place() -> Result<CopyPlace> {
    Ok(CopyPlace {
        device: 77,
        process: 4321,
        range: PageRange::from_pages(0x7_0000_0000, 2)?,
    })
}

/// Runs a step whose jobs `begin` creates. What `begin` returns is dropped after the wait.
fn step<R>(
    copies: &mut CopyContext,
    driver: &Driver,
    begin: impl FnOnce(&mut CopyBatch<'_>) -> Result<R>,
) -> Result<PageSet> {
    let mut batch = copies.begin(driver, place()?).ok_or(EBUSY)?;
    let begun = begin(&mut batch);
    let filled = batch.wait();
    begun?;
    Ok(filled)
}

fn spawn(run: impl FnOnce() + Send + 'static) -> Result<Thread> {
    Thread::spawn(c"hmm-test", run)
}

fn counter() -> Result<Arc<Atomic<usize>>> {
    Ok(Arc::new(Atomic::new(0), GFP_KERNEL)?)
}

#[cfg(CONFIG_RUST_HMM_QUEUE)]
mod fence;

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_copy_contexts)]
mod suite {
    use super::*;

    #[test]
    fn late_jobs_are_reported_with_their_place() -> Result {
        let place = place()?;
        let end = place.range.end();
        assert_eq!(end, 0x7_0000_0000 + 2 * PAGE_SIZE);
        let device = c"device 77: 3 copy jobs of process 4321, addresses 0x700000000 to 0x70000";
        let advice = c"not completed for 11 s: the driver must complete or drop each CopyJob";
        let lines = || logged_lines(device, advice);
        let before = lines();
        report_late(3, place, COPY_LATE_NS - 1);
        assert_eq!(lines(), before);
        // Only one message in five seconds, of any step.
        for _ in 0..100 {
            report_late(3, place, 11_000_000_000);
        }
        assert_eq!(lines(), before + 1);
        Ok(())
    }

    /// The interrupt comes at different times: before the wait, while the task holds the lock of
    /// the wait queue, and while it sleeps. The state is freed as soon as the wait has ended.
    #[test]
    fn interrupt_completes_all_jobs_at_any_time_of_the_wait() -> Result {
        const ROUNDS: usize = 1500;
        let ended = counter()?;
        let driver = Driver::new();
        let mut expected = 0;
        for round in 0..ROUNDS {
            let count = 1 + round % 3;
            let after = Delta::from_nanos(100 * (round % 997) as i64);
            let mut copies = CopyContext::new(round % 2 == 0)?;
            let mut timer = None;
            let filled = step(&mut copies, &driver, |batch| {
                let jobs = jobs(batch, 0..count)?;
                timer = Some(interrupt::<HardMode>(jobs, &ended)?.start(after));
                Ok(())
            })?;
            drop(copies);
            drop(timer);
            expected += count;
            assert_eq!(filled.count(0..PMD_PAGES), count);
        }
        assert_eq!(ended.load(Relaxed), expected);
        assert_eq!(driver.cancellations(), 0);
        Ok(())
    }

    #[test]
    fn interrupt_completes_the_first_or_the_last_job() -> Result {
        const JOBS: usize = 8;
        const ROUNDS: usize = 400;
        const SOON: Delta = Delta::from_micros(20);
        const LATE: Delta = Delta::from_micros(600);
        let ended = counter()?;
        let driver = Driver::new();
        let mut copies = CopyContext::new(true)?;
        for round in 0..ROUNDS {
            let is_first = round % 2 == 0;
            let filled = step(&mut copies, &driver, |batch| {
                let one = jobs(batch, 0..1)?;
                let others = jobs(batch, 1..JOBS)?;
                let after = if is_first { SOON } else { LATE };
                let timer = interrupt::<HardMode>(one, &ended)?.start(after);
                let thread = spawn(move || {
                    fsleep(if is_first { LATE } else { SOON });
                    for job in others {
                        job.end();
                    }
                })?;
                Ok((timer, thread))
            })?;
            assert_eq!(filled.count(0..PMD_PAGES), JOBS);
        }
        assert_eq!(ended.load(Relaxed), ROUNDS);
        Ok(())
    }

    #[test]
    fn jobs_end_with_interrupts_disabled() -> Result {
        let driver = Driver::new();
        let mut copies = CopyContext::new(true)?;
        for round in 0..400usize {
            let filled = step(&mut copies, &driver, |batch| {
                let mut held = jobs(batch, 0..3)?;
                held.push(Held::Dropped(job(batch, 3)), GFP_KERNEL)?;
                spawn(move || {
                    fsleep(Delta::from_micros((round % 7) as i64 * 50));
                    while let Some(job) = held.pop() {
                        let _off = InterruptsOff::new();
                        job.end();
                    }
                })
            })?;
            assert_eq!(filled.count(0..PMD_PAGES), 3);
            assert!(!filled.has(3));
            // The task that waits disables interrupts, too.
            let filled = step(&mut copies, &driver, |batch| {
                let held = job(batch, 1);
                let _off = InterruptsOff::new();
                held.complete(Ok(()));
                Ok(())
            })?;
            assert!(filled.has(1));
        }
        Ok(())
    }

    #[test]
    fn interrupt_reports_failed_and_dropped_jobs() -> Result {
        let ended = counter()?;
        let driver = Driver::new();
        let mut copies = CopyContext::new(true)?;
        // The interrupt handler ends the last element first, which fails.
        let armed = ArmedPoint::new(FailPoint::Copy, 1, false)?;
        let filled = step(&mut copies, &driver, |batch| {
            let mut held = jobs(batch, 0..1)?;
            held.push(Held::Dropped(job(batch, 1)), GFP_KERNEL)?;
            held.push(Held::Plain(job(batch, 2)), GFP_KERNEL)?;
            Ok(interrupt::<HardMode>(held, &ended)?.start(Delta::from_micros(50)))
        })?;
        assert!(!armed.is_left());
        assert!(filled.has(0) && !filled.has(1) && !filled.has(2));
        assert_eq!(ended.load(Relaxed), 3);
        Ok(())
    }

    /// The interrupt handler drops the last reference to the device.
    #[test]
    fn interrupt_unmaps_the_page_and_releases_the_device() -> Result {
        const ROUNDS: u64 = 20;
        let ended = counter()?;
        let driver = Driver::new();
        let page = Page::alloc_page(GFP_KERNEL)?;
        // SAFETY: The page is allocated.
        let pfn = unsafe { bindings::rust_hmm_page_to_pfn(page.as_ptr()) };
        let mut copies = CopyContext::new(true)?;
        let before = totals();
        for _ in 0..ROUNDS {
            let device = DmaDevice::software(c"hmm-kunit")?;
            let filled = step(&mut copies, &driver, |batch| {
                // SAFETY: The page is allocated, and nothing accesses it.
                let job = unsafe { batch.job(0, 1, None, CopyEndpoint::Cpu(pfn)) };
                let mut held = KVec::new();
                held.push(Held::Mapped(DmaCopy::new(job, &device)?), GFP_KERNEL)?;
                drop(device);
                Ok(interrupt::<DriverMode>(held, &ended)?.start(Delta::from_micros(100)))
            })?;
            assert!(filled.has(0));
            deferred::flush();
        }
        let after = totals();
        assert_eq!((after.0 - before.0, after.1 - before.1), (ROUNDS, ROUNDS));
        // With PREEMPT_RT the handler is a thread, because an IOMMU takes locks that sleep there.
        let expected = if cfg!(CONFIG_PREEMPT_RT) { 0 } else { ROUNDS };
        assert_eq!(ended.load(Relaxed) as u64, expected);
        Ok(())
    }

    #[test]
    fn killed_task_cancels_once_and_waits_for_the_jobs() -> Result {
        let driver = Driver::new();
        for killable in [true, false] {
            let mut copies = CopyContext::new(killable)?;
            let filled = step(&mut copies, &driver, |batch| {
                let held = job(batch, 5);
                let thread = spawn(move || {
                    for _ in 0..100 {
                        if held.is_cancelled() {
                            break;
                        }
                        fsleep(Delta::from_millis(1));
                    }
                    let is_cancelled = held.is_cancelled();
                    // The driver is called once, however long it takes.
                    fsleep(Delta::from_millis(50));
                    let _off = InterruptsOff::new();
                    held.complete(if is_cancelled { Err(EINTR) } else { Ok(()) });
                })?;
                // SAFETY: The helper has no preconditions.
                unsafe { bindings::rust_hmm_kunit_kill_current() };
                Ok(thread)
            });
            // SAFETY: The helper has no preconditions.
            unsafe { bindings::rust_hmm_kunit_revive_current() };
            assert_eq!(filled?.has(5), !killable);
            assert_eq!(driver.cancellations(), 1);
        }
        Ok(())
    }
}
