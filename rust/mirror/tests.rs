// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of mirrors and migration, with a real user address space: shared code.

use super::*;
use crate::{
    bindings,
    connection::Connection,
    debug::stats::Counter,
    kernel::identity::{
        EventOwner,
        FenceType,
        MigrationId,
        MmId,
        PgmapOwner, //
    },
    memory::{
        CopyDesc,
        CopyJob,
        MemoryOps, //
    },
    mm::{
        addr::{
            PMD_PAGES,
            PMD_SIZE, //
        },
        device_pages::{
            MemoryKind,
            Owner, //
        },
        folio::SharedBytes,
        notifier::{
            NotifierEvent,
            NotifierRange, //
        },
        range_fault::Access, //
    },
    pgtable::{
        DevicePte,
        Format,
        Radix4, //
    },
    space::{
        Invalidated,
        MirrorOps, //
    }, //
};
use core::ops::ControlFlow;
use kernel::{
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    sync::{
        atomic::{
            ordering::{
                Full,
                Relaxed,
                Release, //
            },
            Atomic, //
        },
        Arc,
        Mutex,
        SetOnce, //
    },
    uaccess::UserSlice, //
};

mod cold;
mod dma;
mod dropped;
mod entries;
mod exclusive;
mod file;
mod gone;
mod host_lock;
mod interrupt;
mod isolation;
mod joined;
mod killed;
mod messages;
mod migration;
mod nosy;
mod overlap;
mod pull;
mod reentry;
mod retry;
mod seen;
mod stay;
mod tiles;
mod two_walkers;
mod windows;

/// Device memory of one piece. A block is allocated when it is first used.
struct TestMemory {
    blocks: KVec<SetOnce<SharedBytes>>,
    fail_copies: Atomic<usize>,
    /// The connection to other memories that the driver reports, and how often it was asked.
    connection: Atomic<usize>,
    asked: Atomic<usize>,
    /// Called before each copy.
    at_copy: Pin<KBox<Mutex<Option<Hook>>>>,
    /// If set, copies complete later.
    later: Pin<KBox<Mutex<Option<overlap::Later>>>>,
}

type Hook = Arc<dyn Fn() + Send + Sync>;

impl TestMemory {
    fn new() -> Result<Self> {
        let mut blocks = KVec::new();
        for _ in 0..crate::mm::device_pages::CHUNK_PAGES / PMD_PAGES {
            blocks.push(SetOnce::new(), GFP_KERNEL)?;
        }
        Ok(Self {
            blocks,
            fail_copies: Atomic::new(0),
            connection: Atomic::new(Connection::None as usize),
            asked: Atomic::new(0),
            at_copy: KBox::pin_init(kernel::new_mutex!(None), GFP_KERNEL)?,
            later: KBox::pin_init(kernel::new_mutex!(None), GFP_KERNEL)?,
        })
    }

    fn block(&self, first: usize) -> Result<(&SharedBytes, usize)> {
        let block = self.blocks.get(first / PMD_PAGES).ok_or(EINVAL)?;
        if block.as_ref().is_none() {
            block.populate(SharedBytes::new(PMD_SIZE)?);
        }
        let offset = first % PMD_PAGES * PAGE_SIZE;
        Ok((block.as_ref().ok_or(EIO)?, offset))
    }
}

impl TestMemory {
    fn do_copy(&self, other: &Self, copy: &CopyDesc<'_>) -> Result {
        if self.fail_copies.load(Relaxed) != 0 {
            self.fail_copies.fetch_sub(1, Relaxed);
            return Err(EIO);
        }
        match (&copy.source, &copy.destination) {
            (None, PageMemoryMut::Cpu(to)) => {
                to.clear();
                Ok(())
            }
            (None, PageMemoryMut::Device(to)) => {
                let (block, offset) = self.block(to.first)?;
                block.clear(offset, to.count * PAGE_SIZE)
            }
            (Some(PageMemory::Cpu(from)), PageMemoryMut::Device(to)) => {
                let (block, offset) = self.block(to.first)?;
                block.load(offset, from)
            }
            (Some(PageMemory::Device(from)), PageMemoryMut::Cpu(to)) => {
                let (block, offset) = self.block(from.first)?;
                block.store(offset, to)
            }
            (Some(PageMemory::Device(from)), PageMemoryMut::Device(to)) => {
                let ((block, at), (theirs, there)) =
                    (self.block(from.first)?, other.block(to.first)?);
                theirs.copy_from(there, block, at, from.count * PAGE_SIZE)
            }
            _ => Err(EINVAL),
        }
    }
}

impl MemoryOps for TestMemory {
    fn copy(&self, job: CopyJob) {
        // Call without the lock, because the hook may take locks.
        let call = self.at_copy.lock().clone();
        if let Some(call) = call {
            call();
        }
        if let Some(later) = &mut *self.later.lock() {
            return later.take(self, job);
        }
        let result = self.do_copy(self, &job.copy());
        job.complete(result);
    }

    fn connection(&self, _other: &Self, _kind: MemoryKind) -> Connection {
        self.asked.fetch_add(1, Relaxed);
        match self.connection.load(Relaxed) {
            0 => Connection::None,
            1 => Connection::Migratable,
            _ => Connection::Unified,
        }
    }

    fn copy_to(&self, other: &Self, job: CopyJob) {
        let result = self.do_copy(other, &job.copy());
        job.complete(result);
    }
}

#[pin_data]
struct Shared {
    walkers: Arc<Walkers<()>>,
    #[pin]
    memory: Memory<TestMemory>,
    flushes: Atomic<usize>,
    /// Counts the start and the wait of each flush.
    clock: Atomic<usize>,
    /// Time when the last flush was started, and when the first one was waited for.
    last_start: Atomic<usize>,
    first_wait: Atomic<usize>,
    /// Pages of the device memory that were in use when the last flush was waited for.
    used_at_wait: Atomic<usize>,
    /// Called when a flush is waited for.
    at_wait: Pin<KBox<Mutex<Option<Hook>>>>,
}

struct TestDevice(Arc<Shared>);

impl Device for TestDevice {
    type Memory = TestMemory;
    type Format = Radix4;
    type Walker = ();
    type Flush = ();

    fn walkers(&self) -> Option<Arc<Walkers<()>>> {
        Some(self.0.walkers.clone())
    }

    fn memory(&self) -> Option<&Memory<TestMemory>> {
        Some(&self.0.memory)
    }

    fn flush_start(&self, _range: PageRange) {
        self.0.flushes.fetch_add(1, Relaxed);
        let now = self.0.clock.fetch_add(1, Relaxed);
        self.0.last_start.store(now, Relaxed);
    }

    fn flush_wait(&self, (): ()) {
        let now = self.0.clock.fetch_add(1, Relaxed);
        if self.0.first_wait.load(Relaxed) == 0 {
            self.0.first_wait.store(now, Relaxed);
        }
        let (used, _) = self.0.memory.usage();
        self.0.used_at_wait.store(used, Relaxed);
        // Call without the lock, because the hook may flush, too.
        let call = self.0.at_wait.lock().clone();
        if let Some(call) = call {
            call();
        }
    }
}

fn shared() -> Result<Arc<Shared>> {
    shared_of(&Owner::new()?)
}

fn shared_of(owner: &Arc<Owner>) -> Result<Arc<Shared>> {
    Arc::pin_init(
        try_pin_init!(Shared {
            walkers: Walkers::new(1, |_| Ok(()))?,
            memory <- Memory::new_tile(owner.clone(), TestMemory::new()?, MemoryKind::Private, PMD_PAGES * 4),
            flushes: Atomic::new(0),
            clock: Atomic::new(1),
            last_start: Atomic::new(0),
            first_wait: Atomic::new(0),
            used_at_wait: Atomic::new(0),
            at_wait: KBox::pin_init(kernel::new_mutex!(None), GFP_KERNEL)?,
        }? Error),
        GFP_KERNEL,
    )
}

fn map(pages: usize) -> Result<PageRange> {
    // SAFETY: The function has no preconditions. The test has an address space.
    let addr = unsafe { bindings::rust_hmm_kunit_mmap(pages * PAGE_SIZE) };
    PageRange::from_pages(addr, pages).map_err(|_| ENOMEM)
}

/// Maps a block of new memory that the CPU maps by one PMD, as soon as it is written.
#[cfg(CONFIG_TRANSPARENT_HUGEPAGE)]
fn map_huge() -> Result<PageRange> {
    let all = map(2 * PMD_PAGES)?;
    // SAFETY: The function has no preconditions.
    kernel::error::to_result(unsafe { bindings::rust_hmm_kunit_advise_huge(all.start()) })?;
    let block = all.pmd_pieces().find(|piece| piece.pages() == PMD_PAGES);
    block.ok_or(EINVAL)
}

fn unmap(range: PageRange) -> Result {
    // SAFETY: The test has mapped the range, and nothing else uses it.
    kernel::error::to_result(unsafe {
        bindings::rust_hmm_kunit_munmap(range.start(), range.pages() * PAGE_SIZE)
    })
}

fn mirror(shared: &Arc<Shared>) -> Result<Mirror<TestDevice>> {
    let current = current!();
    let mm = current.mm().ok_or(EINVAL)?;
    crate::new_mirror!(mm, TestDevice(shared.clone()))
}

fn user(addr: usize) -> UserSlice {
    UserSlice::new(UserPtr::from_addr(addr), size_of::<u64>())
}

fn store(addr: usize, value: u64) -> Result {
    user(addr).writer().write(&value)
}

fn load(addr: usize) -> Result<u64> {
    user(addr).reader().read()
}

/// Returns the first word of the page at `addr`, as the device reads it. `None` without an entry.
fn device_load(mirror: &Mirror<TestDevice>, addr: usize) -> Result<Option<u64>> {
    let mut bytes = [0; 8];
    let table = mirror.lock_table()?;
    match table.readable(addr) {
        None => return Ok(None),
        Some(PageMemory::Cpu(page)) => page.read(0, &mut bytes)?,
        Some(PageMemory::Device(range)) => {
            let memory = mirror.device().memory().ok_or(EINVAL)?;
            let (block, offset) = memory.driver().block(range.first)?;
            block.read(offset, &mut bytes)?;
        }
    }
    Ok(Some(u64::from_ne_bytes(bytes)))
}

/// Maps `pages` new pages, and creates a device and its mirror.
fn attached(pages: usize) -> Result<(PageRange, Arc<Shared>, Mirror<TestDevice>)> {
    let range = map(pages)?;
    let shared = shared()?;
    let mirror = mirror(&shared)?;
    Ok((range, shared, mirror))
}

/// Returns two pages that the device may write, their device and mirror, and the page frame number
/// of the first page, which is clean.
fn writable() -> Result<(PageRange, Arc<Shared>, Mirror<TestDevice>, usize)> {
    let (range, shared, mirror) = attached(2)?;
    mirror.fault(range, Access::Write)?;
    let pfn = mirror.inner().lock().table.get(range.start()).number();
    assert!(!is_dirty(pfn));
    Ok((range, shared, mirror, pfn))
}

/// Returns whether page frame `pfn`, which a test has mapped, is dirty.
fn is_dirty(pfn: usize) -> bool {
    // SAFETY: The test has the page mapped.
    unsafe { bindings::rust_hmm_kunit_is_dirty(pfn) }
}

/// Sets flags of page frame `pfn`, which the test owns, as a migration may leave them.
fn set_stale_flags(pfn: usize) {
    // SAFETY: The test owns the page.
    unsafe { bindings::rust_hmm_kunit_set_stale_flags(pfn) }
}

/// Returns whether page frame `pfn` has any of these flags.
fn has_stale_flags(pfn: usize) -> bool {
    // SAFETY: `pfn` is a page of device memory that was added.
    unsafe { bindings::rust_hmm_kunit_has_stale_flags(pfn) }
}

/// Simulates a notifier event for the mirror. Returns whether the mirror flushed.
fn pretend(mirror: &Mirror<TestDevice>, reason: NotifierEvent, range: PageRange) -> bool {
    let inner = mirror.inner();
    let event = NotifierRange::for_test(reason, range, EventOwner::NONE);
    match inner.invalidate(&event, false) {
        ControlFlow::Continue(Invalidated {
            flush: Some(flush), ..
        }) => {
            inner.finish(flush);
            true
        }
        _ => false,
    }
}
