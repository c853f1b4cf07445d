// SPDX-License-Identifier: GPL-2.0

//! Copies of a migration, which a driver may carry out in its own time and order.

use crate::{
    inject::{fails, Point},
    locks,
    mirror::{Place, PlaceMut},
    mm::{
        addr::PMD_PAGES,
        device_pages::DeviceRange,
        page::{CpuPages, CpuPagesMut},
    },
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Full, Relaxed},
            Atomic,
        },
        Arc,
        CondVar,
        Mutex, //
    },
};

const WORDS: usize = PMD_PAGES / u64::BITS as usize;

/// What a copy is of: 1 or 512 pages.
pub struct Copy<'a> {
    /// Where the contents come from; `None` asks for zeros.
    pub source: Option<Place<'a>>,
    /// Where they go.
    pub destination: PlaceMut<'a>,
}

/// One end of a copy.
#[derive(Clone, Copy)]
pub(crate) enum End {
    /// Page frames that the CPU can address.
    Cpu(usize),
    /// Device page numbers of private memory.
    Device(usize),
}

/// What the jobs of one step have in common.
#[pin_data]
struct State {
    /// Jobs that exist, and one for who hands them out.
    outstanding: Atomic<usize>,
    /// A bit for each job, by the index of its entry.
    failed: [Atomic<u64>; WORDS],
    #[pin]
    lock: Mutex<()>,
    #[pin]
    idle: CondVar,
}

impl State {
    /// Takes one away, and says whether it was the last.
    fn finish_one(&self) -> bool {
        self.outstanding.fetch_sub(1, Full) == 1
    }
}

/// Room for the jobs of one step; reuse it.
pub(crate) struct Copies(Arc<State>);

impl Copies {
    /// Context: may sleep. `ENOMEM`.
    pub(crate) fn new() -> Result<Self> {
        let (name, key) = locks::copies();
        let (idle_name, idle_key) = locks::copies_idle();
        Ok(Self(Arc::pin_init(
            pin_init!(State {
                outstanding: Atomic::new(0),
                failed: core::array::from_fn(|_| Atomic::new(0)),
                lock <- Mutex::new((), name, key),
                idle <- CondVar::new(idle_name, idle_key),
            }),
            GFP_KERNEL,
        )?))
    }

    /// Hands out jobs and waits for them. Meanwhile the pages must stay as they are.
    pub(crate) fn run(&mut self, hand_out: impl FnOnce(&mut Batch<'_>)) -> Failed<'_> {
        for word in &self.0.failed {
            word.store(0, Relaxed);
        }
        self.0.outstanding.store(1, Relaxed);
        let mut batch = Batch(&self.0);
        hand_out(&mut batch);
        drop(batch);
        Failed(&self.0)
    }
}

/// The step's jobs. Dropping it waits for all of them.
pub(crate) struct Batch<'a>(&'a Arc<State>);

impl Batch<'_> {
    /// Makes a job for the entry at `index`.
    ///
    /// # Safety
    ///
    /// The frames must be alive, the destination's must be to be written by nobody else, until
    /// `self` was dropped.
    pub(crate) unsafe fn job(
        &mut self,
        index: usize,
        pages: usize,
        source: Option<End>,
        destination: End,
    ) -> CopyJob {
        self.0.outstanding.fetch_add(1, Relaxed);
        // INVARIANT: By the function's requirements, and because the drop of `self` waits.
        CopyJob {
            state: self.0.clone(),
            index,
            pages,
            source,
            destination,
            result: Err(EIO),
        }
    }

    /// Takes note that the entry at `index` has no job that could be done.
    pub(crate) fn fail(&mut self, index: usize) {
        mark(self.0, index);
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if self.0.finish_one() {
            return;
        }
        // Not to be interrupted: the pages are in use by whoever copies.
        let mut guard = self.0.lock.lock();
        while self.0.outstanding.load(Acquire) != 0 {
            self.0.idle.wait(&mut guard);
        }
    }
}

/// Which entries could not be copied.
pub(crate) struct Failed<'a>(&'a State);

impl Failed<'_> {
    pub(crate) fn is(&self, index: usize) -> bool {
        self.0
            .failed
            .get(index / 64)
            .is_some_and(|word| word.load(Relaxed) & (1 << (index % 64)) != 0)
    }
}

/// Each index is marked once, by one job, so that adding sets the bit.
fn mark(state: &State, index: usize) {
    if let Some(word) = state.failed.get(index / 64) {
        word.add(1 << (index % 64), Relaxed);
    }
}

/// A copy to be done: now, or later by another thread.
///
/// The migration waits until all its jobs are completed or dropped, however long that takes. A job
/// that is dropped has failed with `EIO`; one that is leaked blocks its process for ever.
///
/// # Invariants
///
/// What source and destination name is alive, and the destination is nobody else's to write.
#[must_use = "dropped, it has failed"]
pub struct CopyJob {
    state: Arc<State>,
    index: usize,
    pages: usize,
    source: Option<End>,
    destination: End,
    result: Result,
}

impl CopyJob {
    /// What to copy.
    pub fn copy(&self) -> Copy<'_> {
        let count = self.pages;
        let source = self.source.map(|end| match end {
            // SAFETY: Alive by the type invariant, as long as `self` is.
            End::Cpu(pfn) => Place::Cpu(unsafe { CpuPages::new(pfn, count) }),
            End::Device(first) => Place::Device(DeviceRange { first, count }),
        });
        let destination = match self.destination {
            // SAFETY: As above, and it may be written.
            End::Cpu(pfn) => PlaceMut::Cpu(unsafe { CpuPagesMut::new(pfn, count) }),
            End::Device(first) => PlaceMut::Device(DeviceRange { first, count }),
        };
        Copy {
            source,
            destination,
        }
    }

    /// Bytes to copy: 4 KiB or 2 MiB.
    pub fn bytes(&self) -> usize {
        self.pages.saturating_mul(PAGE_SIZE)
    }

    /// Ends the job. After an error the page stays where it is, with its contents.
    pub fn complete(mut self, result: Result) {
        self.result = match result {
            Ok(()) if fails(Point::Copy) => Err(EIO),
            result => result,
        };
    }
}

impl Drop for CopyJob {
    fn drop(&mut self) {
        if self.result.is_err() {
            mark(&self.state, self.index);
        }
        if self.state.finish_one() {
            // Under the lock, so that who just found the number above 0 sleeps by now.
            let _guard = self.state.lock.lock();
            self.state.idle.notify_all();
        }
    }
}
