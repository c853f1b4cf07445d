// SPDX-License-Identifier: GPL-2.0

//! Managed allocation: memory that CPU and devices use, and that migrates by itself to who touches it.
//!
//! It is anonymous memory, mapped from a device's file with an [offset](Flags::offset) that says how; the
//! file names the device that it is meant for. All else works as with other anonymous memory. See
//! `Documentation/managed.rst`.

use crate::{
    migrate::Outcome,
    mirror::{Device, Mirror},
    mm::{
        addr::{PageRange, PMD_SIZE},
        anon,
        fence::Fence,
        range_fault::Access,
    },
    queue::{HasMirror, Queue, Report, Stop},
    within,
};
use kernel::{mm::virt::VmaNew, page::PAGE_SIZE, prelude::*, sync::Arc};

/// Says that a mapping of the device file is managed memory. No mapping is so large that its offsets
/// reach the next bit.
const MANAGED: usize = 1 << 48;
const HOST_SHARED: usize = 1 << 49;
const POPULATE: usize = 1 << 50;
const HUGE: usize = 1 << 51;
const ALL: usize = MANAGED | HOST_SHARED | POPULATE | HUGE;

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

/// How the memory at an address is managed, and the range around it that was mapped so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Managed {
    /// How.
    pub flags: Flags,
    /// The mapping.
    pub range: PageRange,
}

impl<D: Device> Mirror<D> {
    /// How the memory at `addr` is managed; `None` if it is not.
    ///
    /// # Errors
    ///
    /// `EFAULT`: the process is gone; `EINTR`; `EDEADLK` within a callback. Context: may sleep.
    pub fn managed(&self, addr: usize) -> Result<Option<Managed>> {
        within::may_wait()?;
        let space = self.space()?;
        let mmap = space.mmap_lock()?;
        let Some(vma) = mmap.vma_lookup(addr) else {
            return Ok(None);
        };
        let Some(flags) = Flags::of(vma.anonymous_offset()) else {
            return Ok(None);
        };
        let range = PageRange::new(vma.start(), vma.end())?;
        Ok(Some(Managed { flags, range }))
    }

    /// As [`Mirror::fault`]; managed memory moves to the device first, the block of 2 MiB around it, or
    /// all of it if it is to be populated.
    ///
    /// # Errors
    ///
    /// As [`Mirror::fault`]: that the memory stays where it is, is none.
    pub fn fault_managed(&self, range: PageRange, access: Access) -> Result {
        let managed = match self.device().memory() {
            Some(_) => self.managed(range.start())?,
            None => None,
        };
        let Some(managed) = managed.filter(|managed| !managed.flags.host_shared) else {
            return self.fault(range, access);
        };
        self.attract(range, &managed)?;
        self.fault(range, access)?;
        // Another device had it, or it was shared after a fork: the fault has brought it back.
        let here = self.notifier.lock().table.get(range.start()).is_device();
        if !here {
            self.attract(range, &managed)?;
        }
        Ok(())
    }

    fn attract(&self, range: PageRange, managed: &Managed) -> Result {
        let block = if managed.flags.populate {
            managed.range
        } else {
            let start = range.start() & !(PMD_SIZE - 1);
            let end = range.end().checked_next_multiple_of(PMD_SIZE);
            PageRange::new(start, end.ok_or(EINVAL)?)?
        };
        let both = block.intersect(&managed.range).ok_or(EINVAL)?;
        match self.migrate(both).to_device() {
            Err(error) if error == EINTR => Err(error),
            // Then it is mapped where it is, or the fault says what is wrong.
            _ => Ok(()),
        }
    }

    /// Moves what was just allocated to the device.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if not all of it could be there; else as a migration. Nothing of `range` is mapped then,
    /// unless the process has mapped something else there. Context: may sleep; the current process's,
    /// or a kernel thread.
    fn populate(&self, range: PageRange, stop: Option<Stop>) -> Result<Outcome> {
        let migration = self.migrate(range);
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
            let _gone = self.release(range);
        }
        result
    }

    /// Unmaps managed memory.
    ///
    /// # Errors
    ///
    /// `EINVAL`: something else is mapped in `range`, or the task is of another process; `EFAULT`: the
    /// process is gone; `EINTR`; `EDEADLK` within a callback. Context: may sleep.
    pub fn release(&self, range: PageRange) -> Result {
        within::may_wait()?;
        let space = self.space()?;
        anon::unmap_if(space.mm(), range, |offset| Flags::of(offset).is_some())
    }

    /// Finishes an allocation: what `mmap` of the device file has just returned in the current process.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if it is to be populated, and there is not enough device memory, and so on; then nothing
    /// is mapped any more. Context: may sleep; no lock may be held.
    pub fn allocated(&self, range: PageRange, flags: Flags) -> Result {
        if flags.populate {
            self.populate(range, None)?;
        }
        Ok(())
    }
}

/// As [`Mirror::allocated`], later: the fence signals when the memory is populated, or has failed to be, and
/// then is not mapped any more. It may be used before: who touches it waits or faults.
///
/// # Errors
///
/// As [`Queue::submit`].
pub fn allocated_later<H: HasMirror>(
    queue: &Queue,
    after: KVec<Fence>,
    owner: Arc<H>,
    range: PageRange,
    report: &Arc<Report>,
) -> Result<Fence> {
    let report = report.clone();
    let mut pending = Unpopulated(Some((owner, range)));
    queue.submit(after, move |stop| {
        let (owner, range) = pending.0.take().ok_or(EINVAL)?;
        report.during(|| {
            owner
                .mirror()
                .populate(range, Some(stop.clone()))
                .map(|_| ())
        })
    })
}

/// Memory that waits to be populated. Dropped, because that was cancelled, it is unmapped.
struct Unpopulated<H: HasMirror>(Option<(Arc<H>, PageRange)>);

impl<H: HasMirror> Drop for Unpopulated<H> {
    fn drop(&mut self) {
        if let Some((owner, range)) = self.0.take() {
            // If the process is gone, so is its memory.
            let _gone = owner.mirror().release(range);
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
    if bytes == 0 || length >= MANAGED {
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
