// SPDX-License-Identifier: GPL-2.0

//! Managed allocations: memory that CPUs and devices use, and that migrates on demand.
//!
//! A managed allocation is anonymous memory that is mapped from a device file. The
//! [offset](Flags::offset) of the mapping encodes its flags, and the file selects the device that
//! the allocation prefers. In all other respects it behaves like other anonymous memory. See
//! `Documentation/managed.rst`.

use crate::{
    attributes::managed::{
        OFFSET_MANAGED,
        OFFSET_MASK, //
    },
    kernel::{
        cancel::CancelToken,
        fence::Fence,
        miscdevice::{
            FileOps,
            OpenFile, //
        },
        reentry, //
    },
    migrate::Outcome,
    mirror::{
        Device,
        Mirror, //
    },
    mm::{
        addr::{
            PageRange,
            PMD_SIZE, //
        },
        mmap, //
    },
    queue::{
        HasMirror,
        Queue,
        TransferReport, //
    }, //
};
use kernel::{
    mm::virt::VmaNew,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        Arc, //
    }, //
};

pub use crate::attributes::managed::Flags;

/// First offset of the next allocation.
static NEXT_OFFSET: Atomic<usize> = Atomic::new(PMD_SIZE);

/// Handles the mmap of a device file if its offset requests managed memory. Returns `false` if it
/// does not.
///
/// # Errors
///
/// - `EINVAL`: the mapping is shared, or the offset has unknown bits
///
/// # Context
///
/// Called from [`OpenFile::mmap`]; the mmap lock is held for writing.
pub fn map(vma: &VmaNew) -> Result<bool> {
    let offset = mmap::offset(vma);
    let Some(flags) = Flags::of(offset) else {
        return Ok(false);
    };
    if offset & !OFFSET_MASK != 0 {
        return Err(EINVAL);
    }
    mmap::set_anonymous(vma, flags.huge)?;
    Ok(true)
}

/// A managed allocation. Its pages are recognised by the offsets of their mappings, so that other
/// memory that the process has mapped there since is not treated as part of it.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::kernel::miscdevice::FileOps;
/// use rust_hmm::kernel::miscdevice::OpenFile;
/// use rust_hmm::managed::allocate;
/// use rust_hmm::managed::Flags;
/// use rust_hmm::mirror::Device;
/// use rust_hmm::mirror::Mirror;
///
/// /// Allocates memory whose pages are on the device from the beginning. Returns its address.
/// fn alloc_on_device<F: OpenFile, D: Device>(
///     files: &'static FileOps<F>,
///     fd: i32,
///     mirror: &Mirror<D>,
/// ) -> Result<usize> {
///     let flags = Flags { host_shared: false, populate: true, huge: true };
///     let memory = allocate(files, fd, 4 << 20, flags)?;
///     mirror.finish_allocation(&memory)?;
///     Ok(memory.range().start())
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    range: PageRange,
    offset: usize,
}

impl Allocation {
    /// Returns the range where the allocation was mapped.
    ///
    /// # Context
    ///
    /// Any.
    pub fn range(&self) -> PageRange {
        self.range
    }

    /// Returns whether a mapping with `offset` at `start` belongs to the allocation.
    fn holds(&self, start: usize, offset: usize) -> bool {
        // The difference between offset and address is the same in the whole allocation.
        offset.wrapping_sub(start) == self.offset.wrapping_sub(self.range.start())
    }
}

/// Maps `bytes` of managed memory, rounded up by [`length`], into the current process. `fd` is an
/// open file of a driver whose [`OpenFile::mmap`] calls [`map`].
///
/// # Errors
///
/// - `EINVAL`: `bytes` is 0 or too large
/// - the errors of [`FileOps::map`]
///
/// # Context
///
/// May sleep; takes the mmap lock.
pub fn allocate<F: OpenFile>(
    files: &'static FileOps<F>,
    fd: i32,
    bytes: usize,
    flags: Flags,
) -> Result<Allocation> {
    let length = length(bytes, flags)?;
    // A gap between the offsets prevents merging the mappings of two allocations. Offsets are
    // multiples of a huge page, because the kernel aligns the address like the offset.
    let step = (length / PMD_SIZE + 1) * PMD_SIZE;
    let next = NEXT_OFFSET.fetch_add(step, Relaxed) % OFFSET_MANAGED;
    let first = if next > OFFSET_MANAGED - step {
        0
    } else {
        next
    };
    let offset = flags.offset() + first;
    let start = files.map(fd, length, offset)?;
    let range = PageRange::new(start, start.checked_add(length).ok_or(EINVAL)?)?;
    Ok(Allocation { range, offset })
}

impl<D: Device> Mirror<D> {
    /// Migrates a new allocation to the device. Unmaps it after an error.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: a page could not be populated in device memory
    /// - the errors of [`Migrate::to_device`](crate::migrate::Migrate::to_device)
    ///
    /// # Context
    ///
    /// May sleep; a task of the process or a kernel thread.
    fn populate(&self, memory: &Allocation, stop: Option<CancelToken>) -> Result<Outcome> {
        let migration = self.migrate(memory.range);
        let migration = match stop {
            Some(stop) => migration.cancel_token(stop),
            None => migration,
        };
        let result = migration.to_device().and_then(|outcome| {
            let missing = outcome.no_memory + outcome.copy_failed;
            if missing != 0 {
                return Err(ENOMEM);
            }
            Ok(outcome)
        });
        if result.is_err() {
            // If the process has exited, its memory is unmapped already.
            let _gone = self.release(memory);
        }
        result
    }

    /// Unmaps the remaining mappings of an allocation. Other memory that the process has mapped in
    /// its range since, and parts that were moved out of it, stay mapped.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: the task belongs to another process
    /// - `EFAULT`: the process has exited
    /// - `ENOMEM`
    /// - `EINTR`: the task was killed
    /// - `EDEADLK`: called within a callback
    ///
    /// # Context
    ///
    /// May sleep; no lock may be held.
    pub fn release(&self, memory: &Allocation) -> Result {
        reentry::may_wait()?;
        let space = self.space()?;
        mmap::unmap_if(space.mm(), memory.range, |start, offset| {
            memory.holds(start, offset)
        })
    }

    /// Finishes an allocation of the current process: populates it if its flags require that.
    ///
    /// # Errors
    ///
    /// After an error the allocation is not mapped.
    ///
    /// - `ENOMEM`: not enough device memory
    /// - the errors of [`Migrate::to_device`](crate::migrate::Migrate::to_device)
    ///
    /// # Context
    ///
    /// May sleep; no lock may be held.
    pub fn finish_allocation(&self, memory: &Allocation) -> Result {
        if Flags::of(memory.offset).is_some_and(|flags| flags.populate) {
            self.populate(memory, None)?;
        }
        Ok(())
    }
}

/// Finishes an allocation, and queues an operation that populates it after the fences `after`.
///
/// The returned fence signals when the allocation is populated. If that fails or is cancelled, the
/// allocation is unmapped and the fence has the error. The memory can be used before the fence
/// signals: CPU and device accesses fault, and wait for pages that migrate.
///
/// # Errors
///
/// After an error the allocation is not mapped.
///
/// - Those of [`Queue::submit`].
///
/// # Context
///
/// May sleep; no lock may be held.
pub fn finish_allocation_async<H: HasMirror>(
    queue: &Queue,
    after: KVec<Fence>,
    owner: Arc<H>,
    memory: Allocation,
    report: &Arc<TransferReport>,
) -> Result<Fence> {
    let report = report.clone();
    let mut pending = Unpopulated(Some((owner, memory)));
    queue.submit(after, move |stop| {
        let (owner, memory) = pending.0.take().ok_or(EINVAL)?;
        report.during(|| {
            owner
                .mirror()
                .populate(&memory, Some(stop.clone()))
                .map(|_| ())
        })
    })
}

/// An allocation that a queued operation will populate. Unmapped if the operation is dropped
/// without having run.
struct Unpopulated<H: HasMirror>(Option<(Arc<H>, Allocation)>);

impl<H: HasMirror> Drop for Unpopulated<H> {
    fn drop(&mut self) {
        if let Some((owner, memory)) = self.0.take() {
            // If the process has exited, its memory is unmapped already.
            let _gone = owner.mirror().release(&memory);
        }
    }
}

/// Returns the length of an allocation of `bytes`, rounded up to whole pages, or to whole huge
/// pages if `flags` prefer these.
///
/// # Errors
///
/// - `EINVAL`: `bytes` is 0 or too large
///
/// # Context
///
/// Any.
pub fn length(bytes: usize, flags: Flags) -> Result<usize> {
    let unit = if flags.huge { PMD_SIZE } else { PAGE_SIZE };
    let length = bytes.checked_next_multiple_of(unit).ok_or(EINVAL)?;
    // The offsets of the allocation must not reach the flag bits.
    if bytes == 0 || length >= OFFSET_MANAGED - PMD_SIZE {
        return Err(EINVAL);
    }
    Ok(length)
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_managed)]
mod tests {
    use super::*;

    #[test]
    fn allocation_matches_its_mappings() -> Result {
        let start = 77 * PMD_SIZE;
        let memory = Allocation {
            range: PageRange::new(start, start + PMD_SIZE)?,
            offset: Flags::default().offset() + 5 * PMD_SIZE,
        };
        assert!(memory.holds(start, memory.offset));
        assert!(memory.holds(start + PAGE_SIZE, memory.offset + PAGE_SIZE));
        // A part that was moved; another allocation; not managed memory.
        assert!(!memory.holds(start + PAGE_SIZE, memory.offset));
        assert!(!memory.holds(start, memory.offset + PMD_SIZE));
        assert!(!memory.holds(start, Flags::default().offset()));
        assert!(!memory.holds(start, 0));
        Ok(())
    }

    #[test]
    fn lengths_are_rounded_to_whole_pages() {
        let small = Flags::default();
        let huge = Flags {
            huge: true,
            ..small
        };
        assert_eq!(length(0, small), Err(EINVAL));
        assert_eq!(length(1, small), Ok(PAGE_SIZE));
        assert_eq!(length(PAGE_SIZE + 1, huge), Ok(PMD_SIZE));
        assert_eq!(length(OFFSET_MANAGED, small), Err(EINVAL));
        assert_eq!(length(usize::MAX, huge), Err(EINVAL));
    }
}
