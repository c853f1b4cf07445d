// SPDX-License-Identifier: GPL-2.0

//! A copy job and its source and destination: the side of the driver.

use super::{
    CopyEndpoint,
    CopyState, //
};
#[cfg(doc)]
use crate::mm::addr::PMD_PAGES;
use crate::{
    inject::{
        fails,
        FailPoint, //
    },
    kernel::counted::CountedRef,
    mm::{
        device_pages::DeviceRange,
        folio::{
            CpuPages,
            CpuPagesMut, //
        },
        location::{
            PageMemory,
            PageMemoryMut, //
        }, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::atomic::ordering::Relaxed, //
};

/// Source and destination of a copy of 1 page, or of [`PMD_PAGES`].
pub struct CopyDesc<'a> {
    /// Source of the contents. If `None`, the destination is filled with zeros.
    pub source: Option<PageMemory<'a>>,
    /// Destination of the contents.
    pub destination: PageMemoryMut<'a>,
}

impl CopyDesc<'_> {
    /// Returns the number of bytes to copy: [`PAGE_SIZE`], or for a huge page `PMD_SIZE`.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub fn bytes(&self) -> usize {
        match &self.destination {
            PageMemoryMut::Cpu(pages) => pages.bytes(),
            PageMemoryMut::Device(range) => range.count.saturating_mul(PAGE_SIZE),
        }
    }
}

/// Returns the source and destination of a copy of `count` pages.
///
/// # Safety
///
/// For `'a`, the pages of source and destination must be alive, and only the holder of the returned
/// object may write the destination.
#[inline]
pub(super) unsafe fn copy_of<'a>(
    count: usize,
    source: Option<CopyEndpoint>,
    destination: CopyEndpoint,
) -> CopyDesc<'a> {
    let source = source.map(|end| match end {
        // SAFETY: The page frames are alive for `'a`, by the function's requirements.
        CopyEndpoint::Cpu(pfn) => PageMemory::Cpu(unsafe { CpuPages::new(pfn, count) }),
        CopyEndpoint::Device(first) => PageMemory::Device(DeviceRange { first, count }),
    });
    let destination = match destination {
        // SAFETY: The page frames are alive and exclusive for `'a`, by the function's requirements.
        CopyEndpoint::Cpu(pfn) => PageMemoryMut::Cpu(unsafe { CpuPagesMut::new(pfn, count) }),
        CopyEndpoint::Device(first) => PageMemoryMut::Device(DeviceRange { first, count }),
    };
    CopyDesc {
        source,
        destination,
    }
}

/// A copy that the driver has to carry out, now or later and in any context.
///
/// The migration waits without a time limit until all its jobs are completed or dropped. When its
/// task is killed, the driver should complete jobs that have not begun at once
/// ([`Self::is_cancelled`]). Dropping a job fails it with `EIO`. A leaked job blocks its process
/// forever.
///
/// # Context
///
/// The drop may happen in any context, as [`Self::complete`].
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::page::PAGE_SIZE;
/// use rust_hmm::memory::CopyJob;
/// use rust_hmm::mirror::PageMemory;
/// use rust_hmm::mirror::PageMemoryMut;
/// use rust_hmm::mm::folio::SharedBytes;
///
/// /// Copies to or from device memory that the CPU can access as `vram`.
/// fn execute(job: CopyJob, vram: &SharedBytes) {
///     let copy = job.copy();
///     let result = match (&copy.source, &copy.destination) {
///         // A hole has no source, and must read as zeros.
///         (None, PageMemoryMut::Device(to)) => vram.clear(to.first * PAGE_SIZE, copy.bytes()),
///         (Some(PageMemory::Cpu(from)), PageMemoryMut::Device(to)) => {
///             vram.load(to.first * PAGE_SIZE, from)
///         }
///         (Some(PageMemory::Device(from)), PageMemoryMut::Cpu(to)) => {
///             vram.store(from.first * PAGE_SIZE, to)
///         }
///         _ => Err(EINVAL),
///     };
///     job.complete(result);
/// }
/// ```
///
/// # Invariants
///
/// The pages of source and destination are alive, and only this job may write the destination.
#[must_use = "dropped, it has failed"]
pub struct CopyJob {
    /// Dropping it ends the job.
    pub(super) state: CountedRef<CopyState>,
    pub(super) index: usize,
    pub(super) pages: usize,
    pub(super) source: Option<CopyEndpoint>,
    pub(super) destination: CopyEndpoint,
}

impl CopyJob {
    /// Returns source and destination of the copy.
    ///
    /// # Context
    ///
    /// Any.
    pub fn copy(&self) -> CopyDesc<'_> {
        // SAFETY: By the type invariant, the pages are alive and the destination is exclusive as
        // long as `self` exists, which the result borrows.
        unsafe { copy_of(self.pages, self.source, self.destination) }
    }

    /// Returns the number of bytes to copy: [`PAGE_SIZE`], or for a huge page `PMD_SIZE`.
    ///
    /// # Context
    ///
    /// Any.
    pub fn bytes(&self) -> usize {
        self.pages.saturating_mul(PAGE_SIZE)
    }

    /// Returns whether the result will not be used, because the process was killed or the operation
    /// was stopped. The driver must still complete or drop the job, and should do so at once.
    ///
    /// # Context
    ///
    /// Any.
    pub fn is_cancelled(&self) -> bool {
        self.state.cancelled.load(Relaxed)
    }

    /// Returns number of pages, source and destination, for [`DmaCopy`](super::DmaCopy).
    pub(in crate::memory) fn ends(&self) -> (usize, Option<CopyEndpoint>, CopyEndpoint) {
        (self.pages, self.source, self.destination)
    }

    /// Completes the job. With `Ok` the driver guarantees that the whole destination was written,
    /// which the library cannot check. After an error, the page keeps its place and contents.
    ///
    /// # Context
    ///
    /// Any but NMI: also hard interrupts, with interrupts disabled, and with any lock held that may
    /// be held in that context. Allocates and frees no memory.
    pub fn complete(self, result: Result) {
        if result.is_err() || fails(FailPoint::Copy) {
            return;
        }
        if let Some(word) = self.state.filled.get(self.index / 64) {
            // An addition sets the bit, because only one job marks each index, and only once.
            word.add(1 << (self.index % 64), Relaxed);
        }
    }
}
