// SPDX-License-Identifier: GPL-2.0

//! The copy engine: carries out copies between bus addresses, which the driver puts into a ring.
//! The engine has the memory of its own device, and reaches all other memory by the bus. The end of
//! a copy is an interrupt.

use super::{
    registers::{
        Register,
        Registers, //
    },
    store::Store, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        Arc,
        CondVar,
        Mutex, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    }, //
};
use rust_hmm::{
    kernel::kthread::Thread,
    mm::{
        addr::PMD_PAGES,
        folio::SharedBytes,
        vma::fatal_signal_pending, //
    }, //
};

/// Capacity of the ring, four blocks of small pages, so that the blocks of two overlapping
/// migrations fit. When it is full, the submitting task executes the copy itself.
const RING_DEPTH: usize = 4 * PMD_PAGES;

/// Interval at which a delayed copy checks whether it was aborted.
const ABORT_POLL_INTERVAL: Delta = Delta::from_millis(10);

/// Remaining delay that is slept at once: the inaccuracy of so short a sleep does not matter.
const MIN_SLEEP: Delta = Delta::from_micros(50);

/// A copy, as it stands in the ring.
#[derive(Clone, Copy)]
pub(crate) struct Descriptor {
    /// Bus address of the contents. If `None`, the destination is filled with zeros.
    pub(crate) source: Option<u64>,
    /// Bus address of the destination.
    pub(crate) destination: u64,
    /// Number of bytes.
    pub(crate) bytes: usize,
}

/// The bus of a copy: memory that is not of the engine's device, by bus address. There is none if
/// a function is not implemented.
pub(crate) trait CopyBus {
    /// Copies the `bytes` bytes at bus address `from` to `at` of `to`, a part of device memory.
    fn read(&self, _from: u64, _to: &SharedBytes, _at: usize, _bytes: usize) -> Result {
        Err(EFAULT)
    }

    /// Copies the `bytes` bytes at `at` of `from`, a part of device memory, to bus address `to`.
    fn write(&self, _to: u64, _from: &SharedBytes, _at: usize, _bytes: usize) -> Result {
        Err(EFAULT)
    }

    /// Copies the `bytes` bytes at bus address `from` to bus address `to`.
    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result;

    /// Fills the `bytes` bytes at bus address `to` with zeros.
    fn clear(&self, _to: u64, _bytes: usize) -> Result {
        Err(EFAULT)
    }
}

/// What belongs to a copy in the ring.
pub(crate) trait Request: CopyBus + Send {
    /// Whether the driver has set the abort bit of the copy.
    fn is_aborted(&self) -> bool;

    /// Interrupt: the copy has ended. If it is dropped instead, the device was reset.
    fn end(self, result: Result);
}

/// A ring of fixed capacity.
struct Ring<R> {
    copies: KVVec<Option<(Descriptor, R)>>,
    first: usize,
    len: usize,
    stop: bool,
}

impl<R: Request> Ring<R> {
    fn push(&mut self, copy: (Descriptor, R)) -> Result<(), (Descriptor, R)> {
        let at = (self.first + self.len) % self.copies.len().max(1);
        match self.copies.get_mut(at).filter(|_| self.len < RING_DEPTH) {
            Some(place) => {
                *place = Some(copy);
                self.len += 1;
                Ok(())
            }
            None => Err(copy),
        }
    }

    fn pop(&mut self) -> Option<(Descriptor, R)> {
        while self.len != 0 {
            let copy = self.copies.get_mut(self.first)?.take();
            self.first = (self.first + 1) % self.copies.len().max(1);
            self.len -= 1;
            // The place is empty if the copy was aborted before its turn.
            if copy.is_some() {
                return copy;
            }
        }
        None
    }

    fn pop_aborted(&mut self) -> Option<R> {
        self.copies.iter_mut().find_map(|place| {
            let aborted = place.take_if(|(_, request)| request.is_aborted());
            aborted.map(|(_, request)| request)
        })
    }
}

/// Sleeps until `time` has passed since `since`, or until the copy is aborted.
fn wait(request: &impl Request, since: Instant<Monotonic>, time: Delta) {
    // Without threads the submitting task carries the copy out, and must respond to SIGKILL.
    while !request.is_aborted() && !fatal_signal_pending() {
        let left = time - since.elapsed();
        if left <= Delta::ZERO {
            break;
        }
        // `fsleep()` may sleep 25 % longer. Sleep for 80 % of the remaining time, then for the
        // rest.
        let part = Delta::from_nanos(left.as_nanos() - left.as_nanos() / 5);
        fsleep(match part {
            part if part > ABORT_POLL_INTERVAL => ABORT_POLL_INTERVAL,
            part if part > MIN_SLEEP => part,
            _ => left,
        });
    }
}

/// State shared by the threads.
#[pin_data]
struct CopyEngineShared<R> {
    store: Arc<Store>,
    registers: Arc<Registers>,
    #[pin]
    ring: Mutex<Ring<R>>,
    #[pin]
    wake: CondVar,
    bytes: Atomic<u64>,
    failures: Atomic<u64>,
}

impl<R: Request> CopyEngineShared<R> {
    fn carry_out(&self, (copy, request): (Descriptor, R)) {
        let since = Instant::<Monotonic>::now();
        let result = if request.is_aborted() {
            self.failures.add(1, Relaxed);
            Err(EINTR)
        } else {
            self.copy(&copy, &request)
        };
        if let Some(delay) = self.registers.delay(Register::CopyDelay) {
            // The delay is the total duration of a copy, so the time spent copying is deducted.
            wait(&request, since, delay);
        }
        request.end(result);
    }

    #[inline]
    fn copy(&self, copy: &Descriptor, bus: &impl CopyBus) -> Result {
        let result = if self.registers.fail_copy() {
            Err(EIO)
        } else {
            transfer(&self.store, copy, bus)
        };
        match result {
            Ok(()) => self.bytes.add(copy.bytes as u64, Relaxed),
            Err(_) => self.failures.add(1, Relaxed),
        }
        result
    }

    fn work(&self) {
        let mut ring = self.ring.lock();
        while !ring.stop {
            let Some(copy) = ring.pop() else {
                // A kernel thread gets no signals.
                let _signal = self.wake.wait_interruptible(&mut ring);
                continue;
            };
            drop(ring);
            self.carry_out(copy);
            ring = self.ring.lock();
        }
    }
}

/// Moves the bytes of a copy. Either end is in `store`, or on the bus.
#[inline]
fn transfer(store: &Store, copy: &Descriptor, bus: &impl CopyBus) -> Result {
    let Descriptor {
        source,
        destination,
        bytes,
    } = *copy;
    let Some(to) = store.offset(destination) else {
        return match source {
            None => bus.clear(destination, bytes),
            Some(from) => match store.offset(from) {
                None => bus.copy(from, destination, bytes),
                Some(from) if store.is_lost(from, bytes) => Err(EIO),
                Some(from) => {
                    let (block, at) = store.find(from)?;
                    bus.write(destination, block, at, bytes)
                }
            },
        };
    };
    let (block, at) = store.find_or_make(to)?;
    match source {
        None => block.clear(at, bytes),
        Some(from) => match store.offset(from) {
            None => bus.read(from, block, at, bytes),
            Some(from) => {
                let (source, from) = store.find(from)?;
                block.copy_from(at, source, from, bytes)
            }
        },
    }
}

/// The copy engine of a device.
pub(crate) struct CopyEngine<R> {
    shared: Arc<CopyEngineShared<R>>,
    threads: KVec<Thread>,
}

impl<R: Request + 'static> CopyEngine<R> {
    pub(crate) fn new(
        store: Arc<Store>,
        registers: Arc<Registers>,
        threads: usize,
    ) -> Result<Self> {
        let mut copies = KVVec::with_capacity(RING_DEPTH, GFP_KERNEL)?;
        for _ in 0..RING_DEPTH {
            copies.push(None, GFP_KERNEL)?;
        }
        let ring = Ring {
            copies,
            first: 0,
            len: 0,
            stop: false,
        };
        let shared = Arc::pin_init(
            pin_init!(CopyEngineShared {
                store,
                registers,
                ring <- kernel::new_mutex!(ring, "dmirror::copy_ring"),
                wake <- kernel::new_condvar!("dmirror::copy_wake"),
                bytes: Atomic::new(0),
                failures: Atomic::new(0),
            }),
            GFP_KERNEL,
        )?;
        let mut engine = Self {
            shared,
            threads: KVec::new(),
        };
        for _ in 0..threads {
            let shared = engine.shared.clone();
            // Reserve before the thread starts. If the push failed, dropping the thread would wait
            // for it without having requested it to stop.
            engine.threads.reserve(1, GFP_KERNEL)?;
            let thread = Thread::spawn(c"dmirror_copy", move || shared.work())?;
            engine.threads.push(thread, GFP_KERNEL)?;
        }
        Ok(engine)
    }

    /// Carries a copy out at once, without the ring, if no delay is set and there is at most one
    /// thread: switching to a single thread would only add latency.
    #[inline]
    pub(crate) fn copy_now(&self, copy: &Descriptor, bus: &impl CopyBus) -> Option<Result> {
        let shared = &self.shared;
        let takes_time = shared.registers.read(Register::CopyDelay) != 0;
        (self.threads.len() <= 1 && !takes_time).then(|| shared.copy(copy, bus))
    }

    /// Adds a copy to the ring.
    pub(crate) fn submit(&self, copy: Descriptor, request: R) {
        let copy = (copy, request);
        if self.threads.is_empty() {
            return self.shared.carry_out(copy);
        }
        let full = self.shared.ring.lock().push(copy).err();
        if let Some(copy) = full {
            self.shared.carry_out(copy);
        }
    }

    /// Doorbell: the driver has added copies to the ring.
    pub(crate) fn wake_threads(&self) {
        // Taking the lock orders this after the check of a thread that found the ring empty, so
        // that its wakeup is not lost.
        if !self.threads.is_empty() && self.shared.ring.lock().len != 0 {
            self.shared.wake.notify_all();
        }
    }

    /// Doorbell: the driver has set abort bits. Ends these copies with `EINTR` if they have not
    /// begun.
    pub(crate) fn drop_aborted(&self) {
        let mut ring = self.shared.ring.lock();
        while let Some(request) = ring.pop_aborted() {
            request.end(Err(EINTR));
        }
    }

    /// Returns the number of bytes copied and of failed copies.
    pub(crate) fn counters(&self) -> (u64, u64) {
        let shared = &self.shared;
        (shared.bytes.load(Relaxed), shared.failures.load(Relaxed))
    }
}

impl<R> Drop for CopyEngine<R> {
    fn drop(&mut self) {
        self.shared.ring.lock().stop = true;
        self.shared.wake.notify_all();
        self.threads.clear();
        // Dropping a request ends it with an error.
        let copies = core::mem::replace(&mut self.shared.ring.lock().copies, KVVec::new());
        drop(copies);
    }
}
