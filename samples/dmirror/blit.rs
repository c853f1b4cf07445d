// SPDX-License-Identifier: GPL-2.0

//! The blit engine: the scheduler of the blitter, for copies between locked ranges, whose ends DMA
//! fences signal. It gives the hardware the bus addresses of locked memory, and decodes them.
//!
//! A blit allocates, pins and maps all memory before its fence is created, and waits for other DMA
//! fences only. Its fence may therefore be exported as a sync file. The blit engine has a thread of
//! its own, because the engines and the copy engine also serve operations that fault, which a DMA
//! fence must not wait for. A second thread unpins the memory: unpinning takes an mmap lock, which
//! must not delay the fence of the next blit.

use crate::{
    hardware::{
        self,
        copy_engine::{
            CopyBus,
            Descriptor, //
        },
        registers::Registers, //
    },
    uapi, //
};
use kernel::{
    page::{
        PAGE_MASK,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            AtomicFlag, //
        },
        Arc,
        Mutex, //
    },
    time::Jiffies, //
};
use rust_hmm::{
    host_lock::{
        Coherence,
        PinnedRange, //
    },
    kernel::{
        cancel::cancelled,
        completion::TimedCompletion,
        dma_fence::{
            DmaDriverFence,
            DmaFence,
            DmaFenceAlloc,
            FenceContext,
            SignallingSection, //
        },
        fence::{
            Fence,
            FenceAlloc, //
        },
        identity::FenceType,
        kthread::Thread, //
    },
    mm::{
        dma::DmaDevice,
        folio::CpuPagesMut, //
    }, //
};

/// Maximum number of blits that are queued or running, or whose memory is still pinned.
const MAX_BLITS: usize = 64;

/// Timeout of the threads' waits, in jiffies. Every event wakes them explicitly, so its value does
/// not matter.
const BLIT_RECHECK_JIFFIES: Jiffies = 1 << 16;

/// Part of a locked range, pinned while this exists.
pub(crate) struct Locked {
    region: Arc<PinnedRange>,
    address: usize,
}

impl Locked {
    /// Returns the `bytes` bytes at `address` of `region`, as `device` accesses them.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: not whole pages
    /// - `EFAULT`: not within the range, or `device` may not access it.
    /// - `EOPNOTSUPP`: the range is locked coarse; a blit would have to synchronise it at its end.
    pub(crate) fn new(
        region: Arc<PinnedRange>,
        address: usize,
        bytes: usize,
        device: &DmaDevice,
    ) -> Result<Self> {
        if (address | bytes) & !PAGE_MASK != 0 || bytes == 0 {
            return Err(EINVAL);
        }
        let last = address.checked_add(bytes - PAGE_SIZE).ok_or(EINVAL)?;
        for end in [address, last] {
            if region.page(end).is_none() || region.dma(device, end).is_none() {
                return Err(EFAULT);
            }
        }
        if region.grain() != Coherence::Fine {
            return Err(Error::from_errno(uapi::EOPNOTSUPP));
        }
        Ok(Self { region, address })
    }

    /// Decodes a bus address.
    fn page(&self, address: u64) -> Result<CpuPagesMut<'_>> {
        self.region.page(usize::try_from(address)?).ok_or(EFAULT)
    }
}

/// A copy, and the fence that it signals.
struct Blit {
    to: Locked,
    from: Locked,
    bytes: usize,
    after: KVec<Fence>,
    end: DmaDriverFence,
}

impl Blit {
    /// Describes the copy to the hardware.
    fn descriptor(&self) -> Descriptor {
        Descriptor {
            // CAST: Both have 64 bits.
            source: Some(self.from.address as u64),
            destination: self.to.address as u64,
            bytes: self.bytes,
        }
    }
}

impl CopyBus for Blit {
    fn copy(&self, from: u64, to: u64, _bytes: usize) -> Result {
        let from = self.from.page(from)?;
        self.to.page(to)?.copy_from(&from)
    }
}

/// Memory to unpin and fences to release after a blit.
type Remains = (Locked, Locked, KVec<Fence>);

struct Lists {
    /// Queued blits in the order of submission.
    waiting: KVec<Blit>,
    ended: KVec<Remains>,
    /// Blits that are running or being unpinned.
    busy: usize,
}

#[pin_data]
struct BlitterShared {
    registers: Arc<Registers>,
    stop: AtomicFlag,
    /// No allocation happens with this lock held: the blit thread takes it while fences are
    /// pending.
    #[pin]
    lists: Mutex<Lists>,
    #[pin]
    submitted: TimedCompletion,
    #[pin]
    ended: TimedCompletion,
}

impl BlitterShared {
    /// Waits until all fences in `after` are signalled. Returns the first error of a fence, or
    /// `ECANCELED` if the engine is stopped.
    fn wait(&self, after: &[Fence]) -> Result {
        let mut result = Ok(());
        for fence in after {
            loop {
                if let Some(ended) = fence.check().result() {
                    result = result.and(ended);
                    break;
                }
                if self.stop.load(Relaxed) {
                    return Err(cancelled());
                }
                // A kernel thread gets no signals.
                let _signal = fence.sleep(&self.submitted, BLIT_RECHECK_JIFFIES, false);
            }
        }
        result
    }

    /// Waits for the dependencies, copies, and signals the fence.
    fn carry_out(&self, blit: Blit) -> Remains {
        let _signalling = SignallingSection::begin();
        let mut result = self.wait(&blit.after);
        if result.is_ok() {
            result = hardware::blit::blit(&self.registers, &blit.descriptor(), &blit);
        }
        blit.end.signal(result);
        (blit.to, blit.from, blit.after)
    }

    fn work(&self) {
        while !self.stop.load(Relaxed) {
            let first = {
                let mut lists = self.lists.lock();
                let first = lists.waiting.remove(0).ok();
                lists.busy += usize::from(first.is_some());
                first
            };
            let Some(blit) = first else {
                self.submitted.wait_timeout(BLIT_RECHECK_JIFFIES);
                continue;
            };
            let remains = self.carry_out(blit);
            let mut lists = self.lists.lock();
            lists.busy -= 1;
            // Does not fail: `submit` limits the number of blits to the capacity.
            let _full = lists.ended.push_within_capacity(remains);
            drop(lists);
            self.ended.complete();
        }
    }

    fn unpin(&self) {
        loop {
            let first = {
                let mut lists = self.lists.lock();
                let first = lists.ended.remove(0).ok();
                lists.busy += usize::from(first.is_some());
                first
            };
            match first {
                Some(remains) => {
                    drop(remains);
                    self.lists.lock().busy -= 1;
                }
                None if self.stop.load(Relaxed) => return,
                None => self.ended.wait_timeout(BLIT_RECHECK_JIFFIES),
            }
        }
    }
}

/// The blit engine of a device. Dropping it cancels the queued blits.
pub(crate) struct BlitEngine {
    shared: Arc<BlitterShared>,
    threads: KVec<Thread>,
}

impl BlitEngine {
    /// Starts the threads. `ENOMEM`; `EINTR`.
    pub(crate) fn new(registers: Arc<Registers>) -> Result<Self> {
        let lists = Lists {
            waiting: KVec::with_capacity(MAX_BLITS, GFP_KERNEL)?,
            ended: KVec::with_capacity(MAX_BLITS, GFP_KERNEL)?,
            busy: 0,
        };
        let shared = Arc::pin_init(
            pin_init!(BlitterShared {
                registers,
                stop: AtomicFlag::new(false),
                lists <- kernel::new_mutex!(lists, "dmirror::blits"),
                submitted <- TimedCompletion::new(),
                ended <- TimedCompletion::new(),
            }),
            GFP_KERNEL,
        )?;
        let mut engine = Self {
            shared,
            threads: KVec::with_capacity(2, GFP_KERNEL)?,
        };
        let shared = engine.shared.clone();
        let blits = Thread::spawn(c"dmirror_blit", move || shared.work())?;
        engine.threads.push(blits, GFP_KERNEL)?;
        let shared = engine.shared.clone();
        let unpins = Thread::spawn(c"dmirror_unpin", move || shared.unpin())?;
        engine.threads.push(unpins, GFP_KERNEL)?;
        Ok(engine)
    }

    /// Queues a copy of `bytes` bytes that starts after all fences in `after`. `kind` identifies
    /// the type of device in the returned fences.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: the ranges overlap.
    /// - `EBUSY`: too many blits are in flight.
    /// - `ENOMEM`
    pub(crate) fn submit(
        &self,
        to: Locked,
        from: Locked,
        bytes: usize,
        after: &[DmaFence],
        kind: FenceType,
    ) -> Result<(Fence, DmaFence)> {
        if to.address.abs_diff(from.address) < bytes {
            return Err(EINVAL);
        }
        let mut fences = KVec::with_capacity(after.len(), GFP_KERNEL_ACCOUNT)?;
        for fence in after {
            fences.push(Fence::of(fence)?, GFP_KERNEL_ACCOUNT)?;
        }
        // Each blit has a fence context of its own, because blits need not signal in order.
        let alloc = DmaFenceAlloc::new()?;
        let fence = FenceAlloc::new()?;
        let end = alloc.init(&FenceContext::new(), kind);
        let dma = end.fence();
        let fence = fence.follow(&dma);
        let blit = Blit {
            to,
            from,
            bytes,
            after: fences,
            end,
        };
        let mut lists = self.shared.lists.lock();
        if lists.waiting.len() + lists.ended.len() + lists.busy >= MAX_BLITS {
            drop(lists);
            // Not under the lock: memory is unpinned, which takes an mmap lock.
            drop(blit);
            return Err(EBUSY);
        }
        // Does not fail: the number of blits was checked above.
        let full = lists.waiting.push_within_capacity(blit);
        drop(lists);
        drop(full);
        self.shared.submitted.complete();
        Ok((fence, dma))
    }
}

impl Drop for BlitEngine {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        self.shared.submitted.complete();
        self.shared.ended.complete();
        self.threads.clear();
        let (waiting, ended) = {
            let mut lists = self.shared.lists.lock();
            (
                core::mem::take(&mut lists.waiting),
                core::mem::take(&mut lists.ended),
            )
        };
        // Not under the lock: memory is unpinned, which takes an mmap lock.
        drop((waiting, ended));
    }
}
