// SPDX-License-Identifier: GPL-2.0

//! Device pages, where they are mapped: to be isolated by who does not know that, and huge ones to become small
//! ones. The page's reverse mapping says who maps it, and where; that need not be a process that has a mirror.
//!
//! The core can isolate by physical page, too (`migrate_device_range()`). But then nothing keeps the reverse mapping
//! there: a page that is isolated has no mapping that would, and who unmaps its memory frees it before it is walked to
//! put the page back. By virtual address the mmap lock keeps it. Besides, by physical page a huge page only gets huge
//! memory, and nobody may drop it meanwhile (see `migrate/whole.rs`).

use super::{
    super::{
        addr::{PageRange, PMD_ORDER, PMD_PAGES, PMD_SIZE},
        migrate::{Batch, Entry, Isolated, Origin, Select, Source},
        space::{MmapGuard, Vma},
    },
    DevicePageOps, DevicePages, Kind, PIECE_PAGES,
};
use crate::{
    bindings,
    inject::{fails, Point},
};
use core::{
    ops::Range,
    ptr::{self, NonNull}, //
};
use kernel::{
    mm::{MmWithUser, MmWithUserAsync},
    prelude::*,
    sync::aref::ARef,
};

/// Mappings of one folio that are tried. Isolating a folio through one of them unmaps it from all, so that more are
/// only needed if processes unmap it or hold their mmap lock meanwhile.
const USERS: usize = 16;

/// Most pages that are skipped after one whose mmap lock could not be had.
const MOST_SKIPPED: usize = 64;

/// For which mmap locks it waits, killably.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmapLocks {
    /// For that of the current process. Another one may hold its own as long as it likes: what it maps is left alone then.
    Own,
    /// For all: the memory goes away.
    All,
}

/// A mapping of a folio.
struct User {
    mm: ARef<MmWithUserAsync>,
    /// The first address that mapped a page of the folio.
    addr: usize,
}

/// The mappings of a folio, and its block.
struct Users {
    users: [Option<User>; USERS],
    /// The page frames of the folio's block.
    frames: Range<usize>,
}

/// Pages of a block, a bit each.
type Pages = [usize; PMD_PAGES / usize::BITS as usize];

impl<T: DevicePageOps> DevicePages<T> {
    /// Whether a huge folio in use begins at device page `number`. It may be freed or split at any time.
    pub fn is_huge(&self, number: usize) -> bool {
        let Some(looker) = self.look(number) else {
            return false;
        };
        let pfn = looker.frames().start + number % PIECE_PAGES;
        // SAFETY: The frame is there as long as `looker` is.
        let order = unsafe { bindings::rust_hmm_pfn_order(pfn) };
        order == PMD_ORDER && self.used_in_block(number) == PMD_PAGES
    }

    /// Splits the huge folio that begins at device page `number`: whoever maps it then maps small pages, with the
    /// same contents, of the same memory. Returns whether it is not huge any more.
    ///
    /// Context: may sleep; calls notifiers, so that no lock which one of them takes can be held.
    pub fn split(&self, number: usize, locks: MmapLocks, batch: &mut Batch) -> bool {
        let _: Option<()> = self.visit(number, false, locks, batch, |isolated| {
            drop(isolated);
            None
        });
        !self.is_huge(number)
    }

    /// Isolates the huge folio that begins at device page `number`, whole if nobody else maps it, and calls `take`
    /// with it, or with its pages. `None` if it is not huge, or cannot be had now.
    ///
    /// Context: may sleep; calls notifiers, so that no lock which one of them takes can be held. `take` is called with
    /// an mmap lock held, which need not be that of the current task.
    pub fn isolate_huge<R>(
        &self,
        number: usize,
        locks: MmapLocks,
        batch: &mut Batch,
        take: impl FnOnce(Isolated<'_>) -> R,
    ) -> Option<R> {
        let mut take = Some(take);
        self.visit(number, true, locks, batch, |isolated| {
            take.take().map(|take| take(isolated))
        })
    }

    /// Isolates the small folios of the block of 512 with device page `first`, as many at once as
    /// one mapping has side by side, and calls `take` with them. Best effort: one that is locked or
    /// referenced is left out, and so is one that only a process maps which is ending, or whose
    /// mmap lock cannot be had. Then the next pages may be left out, too.
    ///
    /// Context: as [`Self::isolate_huge`].
    pub fn isolate_small(
        &self,
        first: usize,
        locks: MmapLocks,
        batch: &mut Batch,
        mut take: impl FnMut(Isolated<'_>),
    ) {
        let first = first - first % PMD_PAGES;
        let mut seen = Pages::default();
        let (mut next, mut skip) = (0, 1);
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
                let Ok(mmap) = user.lock(locks) else {
                    is_stalled = true;
                    continue;
                };
                is_stalled = false;
                let (frames, addr) = (&users.frames, user.addr);
                let found = self.isolate_run(&mmap, addr, frames, &mut seen, batch, &mut take);
                if found == Ok(true) {
                    break;
                }
            }
            // The next pages are likely to be of the same process. A lookup for each of them would
            // slow down the caller, which has to find another block.
            skip = if is_stalled {
                MOST_SKIPPED.min(skip * 2)
            } else {
                1
            };
            next = index + skip;
        }
    }

    /// Isolates the page that is mapped at `addr`, with its neighbours among `frames`. Returns whether the page was still
    /// mapped there.
    fn isolate_run(
        &self,
        mmap: &MmapGuard<'_>,
        addr: usize,
        frames: &Range<usize>,
        seen: &mut Pages,
        batch: &mut Batch,
        take: &mut impl FnMut(Isolated<'_>),
    ) -> Result<bool> {
        let Some(vma) = mmap.vma_lookup(addr) else {
            return Ok(false);
        };
        let Some(run) = vma.run(addr, frames, seen) else {
            return Ok(false);
        };
        take(Isolated::new(vma, run, self.origin(), false, None, batch)?);
        Ok(true)
    }

    /// Whether device page `number` is in use.
    fn is_used(&self, number: usize) -> bool {
        self.piece(number)
            .is_some_and(|piece| piece.free.is_used(number % PIECE_PAGES))
    }

    /// How its pages are selected for a migration.
    pub(crate) fn origin(&self) -> Origin {
        Origin {
            select: match self.kind() {
                Kind::Private => Select::Private,
                Kind::Coherent { .. } => Select::Coherent,
            },
            owner: self.owner(),
            tile: self.tile(),
        }
    }

    /// Isolates the huge folio wherever it is mapped, until `take` has an answer or it is not huge any more.
    fn visit<R>(
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
            // On an error the next user is tried.
            let Ok(mmap) = user.lock(locks) else {
                continue;
            };
            let (frames, addr) = (&users.frames, user.addr);
            let answer = self.visit_user(&mmap, addr, frames, compound, batch, &mut take);
            if let Ok(Some(answer)) = answer {
                return Some(answer);
            }
        }
        None
    }

    /// Mappings of the folio with device page `number`. `None` if there are no frames.
    fn users(&self, number: usize) -> Option<Users> {
        let looker = self.look(number)?;
        let pfn = looker.frames().start + number % PIECE_PAGES;
        let mut raw = [const {
            bindings::rust_hmm_user {
                mm: ptr::null_mut(),
                addr: 0,
            }
        }; USERS];
        // SAFETY: The frame is there as long as `looker` is; there are `USERS` elements that may be written.
        unsafe {
            bindings::rust_hmm_pfn_users(
                pfn,
                fails(Point::Window),
                raw.as_mut_ptr(),
                // CAST: A small constant.
                USERS as u32,
            )
        };
        let first = pfn - number % PMD_PAGES;
        Some(Users {
            users: raw.map(|raw| {
                let mm = NonNull::new(raw.mm)?.cast::<MmWithUser>();
                // SAFETY: The helper took a reference to a user of the address space for us. `MmWithUser` is a
                // transparent wrapper of `struct mm_struct`.
                let mm = unsafe { ARef::from_raw(mm) };
                // The last user tears the address space down. That may need locks of a task that waits for us.
                let mm = MmWithUser::into_mmput_async(mm);
                Some(User { mm, addr: raw.addr })
            }),
            frames: first..first + PMD_PAGES,
        })
    }

    /// Isolates what the mapping at `addr` has of the block `frames`, and calls `take` with it.
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
        // It may have been unmapped since, and others mapped.
        let is_here = |entry: Entry| match entry.source {
            Source::Page(pfn) => frames.contains(&pfn),
            Source::Hole => false,
        };
        let found = isolated.entries().any(is_here);
        Ok(if found { take(isolated) } else { None })
    }
}

impl Users {
    fn iter(&self) -> impl Iterator<Item = &User> {
        self.users.iter().flatten()
    }
}

impl User {
    /// Takes the mmap lock, for reading only: a task that waits for the folio may hold it for reading until it has
    /// the folio.
    fn lock(&self, locks: MmapLocks) -> Result<MmapGuard<'_>> {
        let current = current!();
        let is_own = |mm: &MmWithUser| core::ptr::eq(mm.as_raw(), self.mm.as_raw());
        match locks == MmapLocks::All || current.mm().is_some_and(is_own) {
            true => MmapGuard::lock_here(&self.mm),
            false => MmapGuard::try_lock_here(&self.mm),
        }
    }
}

impl Vma<'_> {
    /// The pages around `addr` that map `frames`, at most 512 of them; `None` if `addr` does not. `seen` gets the
    /// index of each.
    fn run(&self, addr: usize, frames: &Range<usize>, seen: &mut Pages) -> Option<PageRange> {
        let (mut start, mut end) = (0, 0);
        let last = frames.end.min(frames.start + PMD_PAGES);
        // SAFETY: The mapping is valid and has `addr`, the mmap lock is held, and `seen` has a bit for each frame.
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
