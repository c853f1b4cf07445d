// SPDX-License-Identifier: GPL-2.0

//! What a driver says about the memory of its device.

use super::{Copy, CopyJob};
use crate::{
    connection::Connection,
    events::Event,
    mm::{
        device_pages::{DeviceRange, Kind},
        notifier::Cookie, //
    },
};
use kernel::prelude::*;

/// What a driver says about its memory.
pub trait MemoryOps: Send + Sync + Sized + 'static {
    /// Copies the contents of a folio, or fills it with zeros: at once, or later by whoever gets
    /// the job. If it fails the folio stays where it is, with its contents.
    ///
    /// Nobody can change the source meanwhile. Context: the mmap lock is held and the pages are
    /// locked, until all jobs are done; may sleep. Neither this nor who does the job later may take
    /// the table lock of a mirror or allocate with reclaim. From within this and [`Self::kick`],
    /// functions that wait fail with `EDEADLK`.
    fn copy(&self, job: CopyJob);

    /// Copies right now, for who can: that spares a job, its account, and waiting for it. `None`: give a
    /// job to [`Self::copy`]. Context and failures as there.
    fn copy_at_once(&self, copy: &Copy<'_>) -> Option<Result> {
        let _ = copy;
        None
    }

    /// All jobs of a step were handed over: start what was only queued.
    fn kick(&self) {}

    /// Jobs were cancelled, see [`CopyJob::is_cancelled`]: those that wait in a queue should end
    /// now, for a task that was killed waits for them. Context: as [`Self::copy`].
    fn cancelled(&self) {}

    /// Where to take the next folio of `order` from, as a device page number: for a driver that has its
    /// own allocator. If it is not free there, or for `None`, the library chooses. Context: as
    /// [`Self::copy`].
    fn choose(&self, order: u32) -> Option<usize> {
        let _ = order;
        None
    }

    /// A folio of the device's memory is about to be free. Context: any, also interrupts. Functions that wait fail
    /// with `EDEADLK`.
    fn freed(&self, range: DeviceRange) {
        let _ = range;
    }

    /// How this memory and `other`, that of another device of this driver, reach each other. `kind` is how
    /// the CPU sees the other one. Asked once for each pair of devices; of both answers the lesser counts.
    fn connection(&self, other: &Self, kind: Kind) -> Connection {
        let _ = (other, kind);
        Connection::None
    }

    /// As [`Self::copy`], from this memory to that of `other`, to which there is a connection. By default
    /// the job is dropped, which fails it.
    fn copy_to(&self, other: &Self, job: CopyJob) {
        let _ = (other, job);
    }

    /// Whether [`Self::event`] is to be called now: somebody wants to know. Context: as there.
    #[inline]
    fn wants_events(&self) -> bool {
        false
    }

    /// Something has happened in the address space `space`, to this memory: [`Event::CpuFault`]. Context: a folio
    /// lock is held, and the mmap lock; must not sleep or allocate with reclaim. Functions that wait fail with
    /// `EDEADLK`.
    fn event(&self, space: Cookie, event: &Event) {
        let _ = (space, event);
    }

    /// Whether the next allocation, of a folio of `order`, is to fail. For tests.
    fn fail_allocation(&self, order: u32) -> bool {
        let _ = order;
        false
    }
}
