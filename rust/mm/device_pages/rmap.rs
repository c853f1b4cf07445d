// SPDX-License-Identifier: GPL-2.0

//! Isolates and splits device folios by device page number, without knowing which processes map
//! them. The reverse mapping of a folio yields the processes and addresses, including processes
//! without a mirror.
//!
//! The core can also isolate by physical page (`migrate_device_range()`). However, nothing would
//! then keep the `anon_vma` of an isolated page alive: the page has no mapping, and a concurrent
//! `munmap()` frees the `anon_vma` before `remove_migration_ptes()` walks it to restore the page.
//! When pages are isolated by virtual address, the mmap lock keeps the `anon_vma` alive. Besides,
//! `migrate_device_range()` requires a huge destination for a huge page, and that no mapping of the
//! huge page is removed during the migration (see `migrate/thp.rs`).

use super::{
    super::{
        addr::{
            PageRange,
            PMD_ORDER,
            PMD_PAGES,
            PMD_SIZE, //
        },
        migrate::{
            Batch,
            Isolated,
            MigrateEntry,
            Origin,
            Select,
            Source, //
        },
        vma::{
            MmapGuard,
            Vma, //
        }, //
    },
    DevicePageOps,
    DevicePages,
    MemoryKind,
    CHUNK_PAGES, //
};
use crate::{
    bindings,
    inject::{
        fails,
        FailPoint, //
    }, //
};
use core::{
    ops::Range,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::{
    mm::{
        MmWithUser,
        MmWithUserAsync, //
    },
    prelude::*,
    sync::aref::ARef, //
};

/// Maximum number of mappings of one folio that are tried. Isolating a folio through one mapping
/// unmaps it from all. More than one is only needed if processes unmap the folio concurrently or
/// hold their mmap lock.
const MAX_TRIED_MAPPINGS: usize = 16;

/// Maximum number of pages that are skipped after a page whose mmap lock could not be taken.
const MAX_SKIPPED_PAGES: usize = 64;

/// Mmap locks that are waited for, killably. The others are only tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmapLocks {
    /// The mmap lock of the current process. Another process may hold its own lock indefinitely, so
    /// that memory that it maps may be left out.
    Own,
    /// All mmap locks, because the memory is being removed.
    All,
}

/// A mapping of a folio.
struct FolioMapping {
    mm: ARef<MmWithUserAsync>,
    /// First address that maps a page of the folio.
    addr: usize,
}

/// Mappings of a folio, and the page frames of its block.
struct FolioMappings {
    users: [Option<FolioMapping>; MAX_TRIED_MAPPINGS],
    /// Page frames of the block that contains the folio.
    frames: Range<usize>,
}

/// Set of pages of a block, one bit each.
type PageBits = [usize; PMD_PAGES / usize::BITS as usize];

impl<T: DevicePageOps> DevicePages<T> {
    /// Whether a huge folio that is in use begins at device page `number`. It may be freed or split
    /// concurrently.
    ///
    /// # Context
    ///
    /// Any.
    pub fn is_huge(&self, number: usize) -> bool {
        let Some(frame_guard) = self.frame_guard(number) else {
            return false;
        };
        let pfn = frame_guard.frames().start + number % CHUNK_PAGES;
        // SAFETY: `frame_guard` prevents the removal of the page frame.
        let order = unsafe { bindings::rust_hmm_pfn_order(pfn) };
        order == PMD_ORDER && self.used_in_block(number) == PMD_PAGES
    }

    /// Splits the huge folio that begins at device page `number`. Its mappings become mappings of
    /// small pages of the same memory, with the same contents. Returns true if the folio is not
    /// huge now.
    ///
    /// # Context
    ///
    /// May sleep. Calls MMU notifiers, so that the caller must not hold a lock that one of them
    /// takes.
    ///
    /// # Examples
    ///
    /// ```
    /// # use kernel::prelude::*;
    /// use rust_hmm::mm::device_pages::DevicePageOps;
    /// use rust_hmm::mm::device_pages::DevicePages;
    /// use rust_hmm::mm::device_pages::MmapLocks;
    /// use rust_hmm::mm::migrate::Batch;
    ///
    /// fn split<T: DevicePageOps>(pages: &DevicePages<T>, number: usize) -> Result {
    ///     let mut batch = Batch::new()?;
    ///     if pages.split(number, MmapLocks::Own, &mut batch) {
    ///         Ok(())
    ///     } else {
    ///         Err(EBUSY)
    ///     }
    /// }
    /// ```
    pub fn split(&self, number: usize, locks: MmapLocks, batch: &mut Batch) -> bool {
        let _: Option<()> = self.for_each_mapping(number, false, locks, batch, |isolated| {
            drop(isolated);
            None
        });
        !self.is_huge(number)
    }

    /// Isolates the huge folio that begins at device page `number`, and calls `take` with the
    /// result. The folio is isolated whole if it has only one mapping, otherwise it is split and
    /// its pages are isolated. Returns `None` if the folio is not huge or cannot be isolated now.
    ///
    /// # Context
    ///
    /// May sleep. Calls MMU notifiers, so that the caller must not hold a lock that one of them
    /// takes. `take` is called with an mmap lock held for reading, possibly that of another
    /// process.
    pub fn isolate_huge<R>(
        &self,
        number: usize,
        locks: MmapLocks,
        batch: &mut Batch,
        take: impl FnOnce(Isolated<'_>) -> R,
    ) -> Option<R> {
        let mut take = Some(take);
        self.for_each_mapping(number, true, locks, batch, |isolated| {
            take.take().map(|take| take(isolated))
        })
    }

    /// Isolates the small folios of the block of [`PMD_PAGES`] that contains device page `first`,
    /// and calls `take` with each run of pages that one VMA maps contiguously.
    ///
    /// Best effort. A folio is left out if it is locked or has extra references, if only an exiting
    /// process maps it, or if its mmap lock could not be taken. In the last case the following
    /// pages may be left out, too.
    ///
    /// # Context
    ///
    /// As for [`Self::isolate_huge`].
    pub fn isolate_small(
        &self,
        first: usize,
        locks: MmapLocks,
        batch: &mut Batch,
        mut take: impl FnMut(Isolated<'_>),
    ) {
        let first = first - first % PMD_PAGES;
        let mut seen = PageBits::default();
        let mut next = 0;
        let mut skip = 1;
        while next < PMD_PAGES {
            let index = next;
            next += 1;
            let number = first.saturating_add(index);
            let word = seen.get(index / usize::BITS as usize);
            let is_seen = word.is_some_and(|word| word >> (index % usize::BITS as usize) & 1 != 0);
            if is_seen || !self.is_used(number) {
                continue;
            }
            let Some(users) = self.users(number) else {
                continue;
            };
            let mut is_stalled = false;
            for user in users.iter() {
                let Ok(mmap) = user.lock(locks, batch) else {
                    is_stalled = true;
                    continue;
                };
                is_stalled = false;
                let frames = &users.frames;
                let addr = user.addr;
                let found = self.isolate_run(&mmap, addr, frames, &mut seen, batch, &mut take);
                if found == Ok(true) {
                    break;
                }
            }
            // The next pages probably belong to the same process. Looking up the mappings of each
            // of them would delay the caller, which has to find another block.
            skip = if is_stalled {
                MAX_SKIPPED_PAGES.min(skip * 2)
            } else {
                1
            };
            next = index + skip;
        }
    }

    /// Isolates the page that is mapped at `addr` and its neighbours among `frames`, and calls
    /// `take`. Returns false if `addr` does not map any of `frames` now.
    fn isolate_run(
        &self,
        mmap: &MmapGuard<'_>,
        addr: usize,
        frames: &Range<usize>,
        seen: &mut PageBits,
        batch: &mut Batch,
        take: &mut impl FnMut(Isolated<'_>),
    ) -> Result<bool> {
        let Some(vma) = mmap.vma_lookup(addr) else {
            return Ok(false);
        };
        let Some(run) = vma.mapped_run(addr, frames, seen) else {
            return Ok(false);
        };
        take(Isolated::new(vma, run, self.origin(), false, None, batch)?);
        Ok(true)
    }

    /// Whether device page `number` is in use.
    fn is_used(&self, number: usize) -> bool {
        self.chunk(number)
            .is_some_and(|chunk| chunk.free.is_used(number % CHUNK_PAGES))
    }

    /// Returns the criteria by which a migration selects pages of this memory.
    pub(crate) fn origin(&self) -> Origin {
        Origin {
            select: match self.kind() {
                MemoryKind::Private => Select::Private,
                MemoryKind::Coherent { .. } => Select::Coherent,
            },
            owner: self.owner(),
            tile: self.tile(),
        }
    }

    /// Isolates the huge folio through one mapping after the other, until `take` returns `Some` or
    /// the folio is not huge.
    fn for_each_mapping<R>(
        &self,
        number: usize,
        compound: bool,
        locks: MmapLocks,
        batch: &mut Batch,
        mut take: impl FnMut(Isolated<'_>) -> Option<R>,
    ) -> Option<R> {
        let users = self.users(number)?;
        for user in users.iter() {
            if !self.is_huge(number) {
                break;
            }
            // After an error, try the next mapping.
            let Ok(mmap) = user.lock(locks, batch) else {
                continue;
            };
            let frames = &users.frames;
            let addr = user.addr;
            let answer = self.visit_user(&mmap, addr, frames, compound, batch, &mut take);
            if let Ok(Some(answer)) = answer {
                return Some(answer);
            }
        }
        None
    }

    /// Looks up mappings of the folio with device page `number`. Returns `None` if the chunk has no
    /// page frames.
    fn users(&self, number: usize) -> Option<FolioMappings> {
        let frame_guard = self.frame_guard(number)?;
        let pfn = frame_guard.frames().start + number % CHUNK_PAGES;
        let mut raw = [const {
            bindings::rust_hmm_user {
                mm: ptr::null_mut(),
                addr: 0,
            }
        }; MAX_TRIED_MAPPINGS];
        // SAFETY: `frame_guard` prevents the removal of the page frame, and `raw` has
        // `MAX_TRIED_MAPPINGS` elements that may be written.
        unsafe {
            bindings::rust_hmm_pfn_users(
                pfn,
                fails(FailPoint::Window),
                raw.as_mut_ptr(),
                // CAST: A small constant.
                MAX_TRIED_MAPPINGS as u32,
            )
        };
        let first = pfn - number % PMD_PAGES;
        Some(FolioMappings {
            users: raw.map(|raw| {
                let mm = NonNull::new(raw.mm)?.cast::<MmWithUser>();
                // SAFETY: The helper took an `mm_users` reference for us, which `ARef` owns now.
                // `MmWithUser` is a transparent wrapper of `struct mm_struct`.
                let mm = unsafe { ARef::from_raw(mm) };
                // Use mmput_async(): dropping the last `mm_users` reference runs exit_mmap(), which
                // may wait for locks held by a task that waits for this eviction.
                let mm = MmWithUser::into_mmput_async(mm);
                Some(FolioMapping { mm, addr: raw.addr })
            }),
            frames: first..first + PMD_PAGES,
        })
    }

    /// Isolates the pages of the block `frames` that are mapped around `addr`, and calls `take`
    /// with them.
    fn visit_user<R>(
        &self,
        mmap: &MmapGuard<'_>,
        addr: usize,
        frames: &Range<usize>,
        compound: bool,
        batch: &mut Batch,
        take: &mut impl FnMut(Isolated<'_>) -> Option<R>,
    ) -> Result<Option<R>> {
        let Some(vma) = mmap.vma_lookup(addr) else {
            return Ok(None);
        };
        let all = PageRange::new(vma.start(), vma.end())?;
        let block = addr & !(PMD_SIZE - 1);
        let block = PageRange::new(block, block.checked_add(PMD_SIZE).ok_or(EINVAL)?)?;
        let range = all.intersect(&block).ok_or(EINVAL)?;
        let isolated = Isolated::new(vma, range, self.origin(), compound, None, batch)?;
        // The folio may have been unmapped since the lookup, and other pages mapped instead.
        let is_here = |entry: MigrateEntry| match entry.source {
            Source::Page(pfn) => frames.contains(&pfn),
            Source::Hole => false,
        };
        let found = isolated.entries().any(is_here);
        Ok(if found { take(isolated) } else { None })
    }
}

impl FolioMappings {
    fn iter(&self) -> impl Iterator<Item = &FolioMapping> {
        self.users.iter().flatten()
    }
}

impl FolioMapping {
    /// Takes the mmap lock for reading. A task that waits for the folio may hold it for reading
    /// until the folio is unlocked, so that taking it for writing would deadlock.
    ///
    /// # Errors
    ///
    /// - `EINTR`: a fatal signal is pending, and the lock is contended. Recorded in `batch` with
    ///   [`MmapLocks::All`], whose caller must not mistake the pages for lost ones.
    /// - `EBUSY`: the lock is only tried, and contended.
    fn lock(&self, locks: MmapLocks, batch: &mut Batch) -> Result<MmapGuard<'_>> {
        let current = current!();
        let is_own = |mm: &MmWithUser| core::ptr::eq(mm.as_raw(), self.mm.as_raw());
        if locks == MmapLocks::All {
            MmapGuard::lock_here(&self.mm).inspect_err(|_| batch.set_killed())
        } else if current.mm().is_some_and(is_own) {
            MmapGuard::lock_here(&self.mm)
        } else {
            MmapGuard::try_lock_here(&self.mm)
        }
    }
}

impl Vma<'_> {
    /// Returns the range around `addr`, at most [`PMD_PAGES`], whose pages all map page frames of
    /// `frames`; `None` if `addr` maps none of them. Sets the bits of these page frames in `seen`.
    fn mapped_run(
        &self,
        addr: usize,
        frames: &Range<usize>,
        seen: &mut PageBits,
    ) -> Option<PageRange> {
        let mut start = 0;
        let mut end = 0;
        let last = frames.end.min(frames.start + PMD_PAGES);
        // SAFETY: The VMA is valid and contains `addr`, the mmap lock is held, and `seen` has one
        // bit for each of the page frames, at most `PMD_PAGES`.
        let found = unsafe {
            bindings::rust_hmm_vma_run(
                self.as_ptr(),
                addr,
                frames.start,
                last,
                seen.as_mut_ptr(),
                &mut start,
                &mut end,
            )
        };
        found.then(|| PageRange::new(start, end).ok())?
    }
}
