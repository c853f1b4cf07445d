// SPDX-License-Identifier: GPL-2.0

//! Copies by an engine that knows memory by addresses.

use super::copy::{CopyJob, End};
use crate::{
    mirror::Target,
    mm::dma::{DeviceAddress, Direction, DmaDevice, DmaRun},
};
use kernel::{page::PAGE_SHIFT, prelude::*, sync::Arc};

/// One end: device page numbers, or memory that is mapped for the time of the copy.
enum Mapped {
    Device(usize),
    System(DmaRun),
}

impl Mapped {
    fn new(device: &Arc<DmaDevice>, end: End, pages: usize, direction: Direction) -> Result<Self> {
        Ok(match end {
            End::Device(first) => Self::Device(first),
            // SAFETY: The job owns the destination and keeps the source as it is, until it is completed, before which
            // the run is dropped.
            End::Cpu(pfn) => Self::System(unsafe { DmaRun::new(device, pfn, pages, direction)? }),
        })
    }

    fn page(&self, index: usize) -> Option<Target> {
        match self {
            Self::Device(first) => {
                // CAST: Both have 64 bits.
                let byte = first.checked_add(index)?.checked_mul(1 << PAGE_SHIFT)? as u64;
                Some(Target::Device(DeviceAddress::new(byte)))
            }
            Self::System(run) => run.address(index).map(Target::Dma),
        }
    }
}

/// A [`CopyJob`] whose system memory is mapped for a device. It is unmapped before the job ends, so that whoever gets
/// the pages has them for himself.
#[must_use = "dropped, it has failed"]
pub struct DmaCopy {
    // Before the job, which ends when it is dropped.
    source: Option<Mapped>,
    destination: Mapped,
    job: CopyJob,
}

impl DmaCopy {
    /// Maps the memory of `job` for `device`. Context: any; must not be within interrupts.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `ENODEV` if the device is gone. The job has failed then.
    pub fn new(job: CopyJob, device: &Arc<DmaDevice>) -> Result<Self> {
        let (pages, source, destination) = job.ends();
        let source = match source {
            Some(end) => Some(Mapped::new(device, end, pages, Direction::ToDevice)?),
            None => None,
        };
        Ok(Self {
            source,
            destination: Mapped::new(device, destination, pages, Direction::FromDevice)?,
            job,
        })
    }

    /// Pages of 4 KiB to copy.
    pub fn pages(&self) -> usize {
        self.job.ends().0
    }

    /// Where the contents of page `index` come from; `None` asks for zeros. `EINVAL` beyond the end.
    pub fn source(&self, index: usize) -> Result<Option<Target>> {
        match &self.source {
            _ if index >= self.pages() => Err(EINVAL),
            None => Ok(None),
            Some(end) => end.page(index).map(Some).ok_or(EINVAL),
        }
    }

    /// Where they go. `EINVAL` beyond the end.
    pub fn destination(&self, index: usize) -> Result<Target> {
        let inside = index < self.pages();
        inside
            .then(|| self.destination.page(index))
            .flatten()
            .ok_or(EINVAL)
    }

    /// See [`CopyJob::is_cancelled`].
    pub fn is_cancelled(&self) -> bool {
        self.job.is_cancelled()
    }

    /// Ends it: the engine has finished with the memory. See [`CopyJob::complete`].
    pub fn complete(self, result: Result) {
        let Self {
            source,
            destination,
            job,
        } = self;
        drop((source, destination));
        job.complete(result);
    }
}
