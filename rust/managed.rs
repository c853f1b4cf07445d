// SPDX-License-Identifier: GPL-2.0

//! Managed allocation: memory that CPU and devices use, and that migrates by itself to who touches it.
//!
//! It is anonymous memory, mapped from a device's file with an [offset](Flags::offset) that says how; the
//! file names the device that it is meant for. All else works as with other anonymous memory. See
//! `Documentation/managed.rst`.

use crate::{
    attributes::{Attributes, Location},
    migrate::Outcome,
    mirror::{Device, Mirror},
    mm::{
        addr::{PageRange, PMD_SIZE},
        anon,
        fence::Fence, //
    },
    node::{FileOps, OpenFile},
    queue::{HasMirror, Queue, Report, Stop},
    within,
};
use kernel::{
    mm::virt::VmaNew,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc, //
    },
};

/// Says that a mapping of the device file is managed memory. What is below tells one allocation from
/// another; no mapping is so large that its offsets reach this bit.
const MANAGED: usize = 1 << 48;
const HOST_SHARED: usize = 1 << 49;
const POPULATE: usize = 1 << 50;
const HUGE: usize = 1 << 51;
const ALL: usize = (MANAGED - 1) | MANAGED | HOST_SHARED | POPULATE | HUGE;

/// Where the offsets of the next allocation begin.
static NEXT: Atomic<usize> = Atomic::new(PMD_SIZE);

/// How memory is managed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// The host uses it as much as the device: a device that faults on it maps it where it is.
    pub host_shared: bool,
    /// It begins in the device's memory: all of it, when it is allocated or the device first faults on it.
    pub populate: bool,
    /// Huge pages are preferred.
    pub huge: bool,
}

impl Flags {
    /// Those of an offset; `None` if it is not one of managed memory.
    pub fn of(offset: usize) -> Option<Self> {
        (offset & MANAGED != 0).then_some(Self {
            host_shared: offset & HOST_SHARED != 0,
            populate: offset & POPULATE != 0,
            huge: offset & HUGE != 0,
        })
    }

    /// The attributes of such memory as long as nothing else was said of it.
    pub(crate) fn attributes(self) -> Attributes {
        Attributes::preferring(match self.host_shared {
            true => Location::System,
            false => Location::Device,
        })
    }

    /// The offset by which a mapping has these.
    pub fn offset(self) -> usize {
        let bit = |yes: bool, bit| if yes { bit } else { 0 };
        MANAGED
            | bit(self.host_shared, HOST_SHARED)
            | bit(self.populate, POPULATE)
            | bit(self.huge, HUGE)
    }
}

/// Serves an mmap of a device file, if it asks for managed memory. `false` if it does not.
///
/// # Errors
///
/// `EINVAL`: the mapping is shared, or the offset has unknown bits.
pub fn map(vma: &VmaNew) -> Result<bool> {
    let offset = anon::offset(vma);
    let Some(flags) = Flags::of(offset) else {
        return Ok(false);
    };
    if offset & !ALL != 0 {
        return Err(EINVAL);
    }
    anon::set_anonymous(vma, flags.huge)?;
    Ok(true)
}

/// Memory that was allocated. Its pages are known by the offsets that they were mapped with, so that what
/// the process has mapped there since is not taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    range: PageRange,
    offset: usize,
}

impl Allocation {
    /// Where it was mapped.
    pub fn range(&self) -> PageRange {
        self.range
    }

    /// Whether a mapping that begins at `start`, with `offset`, is a part of it.
    fn holds(&self, start: usize, offset: usize) -> bool {
        // As far from each other; where they are is known.
        offset.wrapping_sub(start) == self.offset.wrapping_sub(self.range.start())
    }
}

/// Maps `bytes` of managed memory, rounded up as [`length`] does, into the current process, from its open
/// file `fd` of a driver whose [`OpenFile::mmap`] calls [`map`].
///
/// # Errors
///
/// `EINVAL`: no bytes, or too many; else as [`FileOps::map`]. Context: may sleep; takes the mmap lock.
pub fn allocate<F: OpenFile>(
    files: &'static FileOps<F>,
    fd: i32,
    bytes: usize,
    flags: Flags,
) -> Result<Allocation> {
    let length = length(bytes, flags)?;
    // Apart, so that no two allocations become one mapping, and aligned, since the address will be as
    // the offset is.
    let step = (length / PMD_SIZE + 1) * PMD_SIZE;
    let next = NEXT.fetch_add(step, Relaxed) % MANAGED;
    let first = if next > MANAGED - step { 0 } else { next };
    let offset = flags.offset() + first;
    let start = files.map(fd, length, offset)?;
    let range = PageRange::new(start, start.checked_add(length).ok_or(EINVAL)?)?;
    Ok(Allocation { range, offset })
}

impl<D: Device> Mirror<D> {
    /// Moves what was just allocated to the device.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if not all of it could be there; else as a migration. Nothing of it is mapped then.
    /// Context: may sleep; the current process's, or a kernel thread.
    fn populate(&self, memory: &Allocation, stop: Option<Stop>) -> Result<Outcome> {
        let migration = self.migrate(memory.range);
        let migration = match stop {
            Some(stop) => migration.stop(stop),
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
            // If the process is gone, so is its memory.
            let _gone = self.release(memory);
        }
        result
    }

    /// Unmaps what is left of an allocation. What the process has mapped there since, or moved elsewhere,
    /// stays.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the task is of another process; `EFAULT`: the process is gone; `ENOMEM`; `EINTR`;
    /// `EDEADLK` within a callback. Context: may sleep.
    pub fn release(&self, memory: &Allocation) -> Result {
        within::may_wait()?;
        let space = self.space()?;
        anon::unmap_if(space.mm(), memory.range, |start, offset| {
            memory.holds(start, offset)
        })
    }

    /// Finishes an allocation of the current process, the synchronous way.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if it is to be populated, and there is not enough device memory, and so on; then nothing
    /// is mapped any more. Context: may sleep; no lock may be held.
    pub fn allocated(&self, memory: &Allocation) -> Result {
        if Flags::of(memory.offset).is_some_and(|flags| flags.populate) {
            self.populate(memory, None)?;
        }
        Ok(())
    }
}

/// Finishes an allocation, and populates it later: the fence signals when that is done, or has failed; then
/// the memory is not mapped any more. It may be used before: who touches it waits or faults.
///
/// # Errors
///
/// As [`Queue::submit`]; then nothing is mapped either.
pub fn allocated_later<H: HasMirror>(
    queue: &Queue,
    after: KVec<Fence>,
    owner: Arc<H>,
    memory: Allocation,
    report: &Arc<Report>,
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

/// Memory that waits to be populated. Dropped, because that was cancelled, it is unmapped.
struct Unpopulated<H: HasMirror>(Option<(Arc<H>, Allocation)>);

impl<H: HasMirror> Drop for Unpopulated<H> {
    fn drop(&mut self) {
        if let Some((owner, memory)) = self.0.take() {
            // If the process is gone, so is its memory.
            let _gone = owner.mirror().release(&memory);
        }
    }
}

/// The length of an allocation of `bytes`: whole pages, or whole huge pages if these are preferred.
///
/// # Errors
///
/// `EINVAL`: none, or too many.
pub fn length(bytes: usize, flags: Flags) -> Result<usize> {
    let unit = if flags.huge { PMD_SIZE } else { PAGE_SIZE };
    let length = bytes.checked_next_multiple_of(unit).ok_or(EINVAL)?;
    // The flags of an offset are beyond.
    if bytes == 0 || length >= MANAGED - PMD_SIZE {
        return Err(EINVAL);
    }
    Ok(length)
}

#[kunit_tests(rust_hmm_managed)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_tells_the_flags() -> Result {
        for bits in 0..8 {
            let flags = Flags {
                host_shared: bits & 1 != 0,
                populate: bits & 2 != 0,
                huge: bits & 4 != 0,
            };
            assert_eq!(Flags::of(flags.offset()), Some(flags));
            // Within the mapping, as the offset of a part of it.
            assert_eq!(Flags::of(flags.offset() + 77 * PAGE_SIZE), Some(flags));
        }
        assert_eq!(Flags::of(0), None);
        assert_eq!(Flags::of(77 * PAGE_SIZE), None);
        Ok(())
    }

    #[test]
    fn an_allocation_knows_its_mappings() -> Result {
        let start = 77 * PMD_SIZE;
        let memory = Allocation {
            range: PageRange::new(start, start + PMD_SIZE)?,
            offset: Flags::default().offset() + 5 * PMD_SIZE,
        };
        assert!(memory.holds(start, memory.offset));
        assert!(memory.holds(start + PAGE_SIZE, memory.offset + PAGE_SIZE));
        // Moved elsewhere; of another allocation; of no managed memory.
        assert!(!memory.holds(start + PAGE_SIZE, memory.offset));
        assert!(!memory.holds(start, memory.offset + PMD_SIZE));
        assert!(!memory.holds(start, Flags::default().offset()));
        assert!(!memory.holds(start, 0));
        Ok(())
    }

    #[test]
    fn lengths_are_whole_pages() {
        let small = Flags::default();
        let huge = Flags {
            huge: true,
            ..small
        };
        assert_eq!(length(0, small), Err(EINVAL));
        assert_eq!(length(1, small), Ok(PAGE_SIZE));
        assert_eq!(length(PAGE_SIZE + 1, huge), Ok(PMD_SIZE));
        assert_eq!(length(MANAGED, small), Err(EINVAL));
        assert_eq!(length(usize::MAX, huge), Err(EINVAL));
    }
}
