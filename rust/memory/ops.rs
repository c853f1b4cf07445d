// SPDX-License-Identifier: GPL-2.0

//! Driver callbacks for device memory.

use super::{
    Connection,
    CopyDesc,
    CopyJob, //
};
use crate::{
    debug::events::Event,
    kernel::identity::MmId,
    mm::device_pages::{
        DeviceRange,
        MemoryKind, //
    }, //
};
use kernel::prelude::*;

/// Operations of a driver on the memory of its device.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::new_mutex;
/// use kernel::sync::Mutex;
/// use rust_hmm::memory::CopyJob;
/// use rust_hmm::memory::MemoryOps;
///
/// /// A device that copies in a thread of the driver, which takes jobs from the list.
/// #[pin_data]
/// struct Vram {
///     #[pin]
///     jobs: Mutex<KVec<CopyJob>>,
/// }
///
/// impl MemoryOps for Vram {
///     fn copy(&self, job: CopyJob) {
///         // A job that does not fit is dropped, which fails it.
///         let _ = self.jobs.lock().push_within_capacity(job);
///     }
///
///     // The task that waits for the jobs was killed: none has to be copied.
///     fn cancelled(&self) {
///         self.jobs.lock().retain(|job| !job.is_cancelled());
///     }
/// }
/// ```
pub trait MemoryOps: Send + Sync + Sized + 'static {
    /// Copies the contents of a folio, or fills it with zeros. The copy may complete here, or later
    /// when the driver completes `job`, in any context. If it fails, the folio stays at its source,
    /// with its contents.
    ///
    /// The source cannot change while the job is outstanding. The jobs of a step are passed in
    /// ascending order of their addresses, and are independent: they may run and complete in any
    /// order, also at the same time. A step may begin while jobs of another one are outstanding.
    ///
    /// # Context
    ///
    /// May sleep. The mmap lock is held and the pages are locked until all jobs have completed.
    /// Neither this callback nor the code that completes the job may take the table lock of a
    /// mirror or allocate with reclaim. Blocking functions of the library that are called from here
    /// or from [`Self::ring_doorbell`] return `EDEADLK`.
    fn copy(&self, job: CopyJob);

    /// Copies synchronously, if the driver can: this saves a job and its completion. `None` makes
    /// the library call [`Self::copy`] instead. The meaning of a failure is that of
    /// [`Self::copy`].
    ///
    /// # Context
    ///
    /// As for [`Self::copy`].
    fn copy_sync(&self, copy: &CopyDesc<'_>) -> Option<Result> {
        let _ = copy;
        None
    }

    /// Starts jobs that were only queued. Called when all jobs of a step were submitted.
    ///
    /// # Context
    ///
    /// As for [`Self::copy`].
    fn ring_doorbell(&self) {}

    /// Ends cancelled jobs, see [`CopyJob::is_cancelled`]. Queued jobs should fail immediately,
    /// because a killed task waits for them.
    ///
    /// # Context
    ///
    /// As for [`Self::copy`].
    fn cancelled(&self) {}

    /// Chooses the device page number of the next folio of `order`, for drivers that have an
    /// allocator of their own. If that page is not free, or for `None`, the library chooses.
    ///
    /// # Context
    ///
    /// As for [`Self::copy`].
    fn suggest_page(&self, order: u32) -> Option<usize> {
        let _ = order;
        None
    }

    /// Called before a folio of the device memory is freed.
    ///
    /// # Context
    ///
    /// Any, including interrupts. Blocking functions of the library return `EDEADLK`.
    fn freed(&self, range: DeviceRange) {
        let _ = range;
    }

    /// Returns how this memory and `other`, the memory of another device of the driver, can reach
    /// each other. `kind` is the kind of `other`. Called once for each direction of a pair of
    /// devices; the lesser result counts.
    ///
    /// # Context
    ///
    /// May sleep. The library holds no lock. Blocking functions of the library return `EDEADLK`.
    fn connection(&self, other: &Self, kind: MemoryKind) -> Connection {
        let _ = (other, kind);
        Connection::None
    }

    /// Copies from this memory to `other`, to which it has a connection. Otherwise like
    /// [`Self::copy`]. The default drops the job, which fails it.
    ///
    /// # Context
    ///
    /// As for [`Self::copy`].
    fn copy_to(&self, other: &Self, job: CopyJob) {
        let _ = (other, job);
    }

    /// Returns whether the library should call [`Self::event`] now.
    ///
    /// # Context
    ///
    /// As for [`Self::event`].
    #[inline]
    fn wants_events(&self) -> bool {
        false
    }

    /// Reports an event in the address space `space` that concerns this memory:
    /// [`Event::CpuFault`].
    ///
    /// # Context
    ///
    /// A folio lock and the mmap lock are held. Must not sleep or allocate with reclaim. Blocking
    /// functions of the library return `EDEADLK`.
    fn event(&self, space: MmId, event: &Event) {
        let _ = (space, event);
    }
}
