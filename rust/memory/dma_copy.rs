// SPDX-License-Identifier: GPL-2.0

//! Copies for engines that address memory by DMA address.

use super::copy::{
    CopyEndpoint,
    CopyJob, //
};
use crate::mm::{
    dma::{
        DeviceAddress,
        DmaDevice,
        DmaDirection,
        DmaRun, //
    },
    location::PageAddress, //
};
use kernel::{
    page::PAGE_SHIFT,
    prelude::*,
    sync::Arc, //
};

/// One end of a copy: device page numbers, or system memory that is mapped until the copy ends.
enum MappedEndpoint {
    Device(usize),
    System(DmaRun),
}

impl MappedEndpoint {
    fn new(
        device: &Arc<DmaDevice>,
        end: CopyEndpoint,
        pages: usize,
        direction: DmaDirection,
    ) -> Result<Self> {
        Ok(match end {
            CopyEndpoint::Device(first) => Self::Device(first),
            CopyEndpoint::Cpu(pfn) => {
                // SAFETY: The job owns the destination, and keeps the source valid and unchanged,
                // until it is completed. The run is dropped before that.
                Self::System(unsafe { DmaRun::new(device, pfn, pages, direction)? })
            }
        })
    }

    fn page(&self, index: usize) -> Option<PageAddress> {
        match self {
            Self::Device(first) => {
                // CAST: Both have 64 bits.
                let byte = first.checked_add(index)?.checked_mul(1 << PAGE_SHIFT)? as u64;
                Some(PageAddress::Device(DeviceAddress::new(byte)))
            }
            Self::System(run) => run.address(index).map(PageAddress::Dma),
        }
    }
}

/// A [`CopyJob`] whose system memory is mapped for DMA. The memory is unmapped before the job is
/// completed, so that the device cannot access the pages when their next owner uses them.
///
/// # Context
///
/// The drop may happen in any context, as [`Self::complete`].
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::sync::Arc;
/// use rust_hmm::memory::CopyJob;
/// use rust_hmm::memory::DmaCopy;
/// use rust_hmm::mirror::PageAddress;
/// use rust_hmm::mm::dma::DmaDevice;
///
/// /// Programs an engine for each page. The driver calls `complete()` when the engine is done.
/// fn start(
///     job: CopyJob,
///     device: &Arc<DmaDevice>,
///     mut program: impl FnMut(Option<PageAddress>, PageAddress),
/// ) -> Result<DmaCopy> {
///     let copy = DmaCopy::new(job, device)?;
///     for page in 0..copy.pages() {
///         program(copy.source(page)?, copy.destination(page)?);
///     }
///     Ok(copy)
/// }
/// ```
#[must_use = "dropped, it has failed"]
pub struct DmaCopy {
    // Dropped before the job, because dropping the job completes it.
    source: Option<MappedEndpoint>,
    destination: MappedEndpoint,
    job: CopyJob,
}

impl DmaCopy {
    /// Maps the memory of `job` for `device`.
    ///
    /// # Errors
    ///
    /// The job has failed if this returns an error.
    ///
    /// - `ENOMEM` if there is no memory for the mapping.
    /// - `ENODEV` if the device was unbound.
    ///
    /// # Context
    ///
    /// Any but NMI, as `dma_map_phys()`: also hard interrupts, but not with `PREEMPT_RT`, where
    /// handlers of drivers are threads.
    pub fn new(job: CopyJob, device: &Arc<DmaDevice>) -> Result<Self> {
        let (pages, source, destination) = job.ends();
        let source = match source {
            Some(end) => Some(MappedEndpoint::new(
                device,
                end,
                pages,
                DmaDirection::ToDevice,
            )?),
            None => None,
        };
        Ok(Self {
            source,
            destination: MappedEndpoint::new(device, destination, pages, DmaDirection::FromDevice)?,
            job,
        })
    }

    /// Returns the number of pages to copy.
    ///
    /// # Context
    ///
    /// Any.
    pub fn pages(&self) -> usize {
        self.job.ends().0
    }

    /// Returns the address of the source of page `index`, or `None` if the page must be filled with
    /// zeros.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `index` is not below [`Self::pages`].
    ///
    /// # Context
    ///
    /// Any.
    pub fn source(&self, index: usize) -> Result<Option<PageAddress>> {
        match &self.source {
            _ if index >= self.pages() => Err(EINVAL),
            None => Ok(None),
            Some(end) => end.page(index).map(Some).ok_or(EINVAL),
        }
    }

    /// Returns the address of the destination of page `index`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `index` is not below [`Self::pages`].
    ///
    /// # Context
    ///
    /// Any.
    pub fn destination(&self, index: usize) -> Result<PageAddress> {
        let inside = index < self.pages();
        inside
            .then(|| self.destination.page(index))
            .flatten()
            .ok_or(EINVAL)
    }

    /// See [`CopyJob::is_cancelled`].
    ///
    /// # Context
    ///
    /// Any.
    pub fn is_cancelled(&self) -> bool {
        self.job.is_cancelled()
    }

    /// Completes the job. The engine no longer accesses the memory. See [`CopyJob::complete`].
    ///
    /// # Context
    ///
    /// Any but NMI, as [`Self::new`]. If this drops the last reference of the [`DmaDevice`], a
    /// worker unregisters the device.
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
