// SPDX-License-Identifier: GPL-2.0
//! Fences of an open device, and their state.

use super::descriptors::{
    poll,
    Event,
    SyncFile, //
};
use crate::device::Device;
use crate::engine::Extension;
use crate::errno::Errno;
use std::os::fd::{
    AsRawFd,
    FromRawFd,
    OwnedFd, //
};
use std::time::Duration;

/// `struct dmirror_fence`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawFence {
    pub(crate) size: u32,
    pub(crate) flags: u32,
    pub(crate) fence: u64,
    pub(crate) timeout_ns: u64,
    pub(crate) error: i32,
    pub(crate) fd: i32,
    pub(crate) state: u64,
    pub(crate) result: u64,
    pub(crate) moved: u64,
    pub(crate) stayed: u64,
    pub(crate) began_ns: u64,
    pub(crate) ended_ns: u64,
}
// SAFETY: Plain numbers.
unsafe impl Extension for RawFence {}

/// State of a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not signalled.
    NotDone,
    /// Done.
    Done,
    /// Failed, or cancelled.
    Failed(Errno),
}

/// State of a fence, and results of its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// State of the fence.
    pub state: State,
    /// Result of an engine command.
    pub result: u64,
    /// Pages that moved.
    pub moved: u64,
    /// Pages that could not be moved.
    pub stayed: u64,
    /// Start time of the operation, by the monotonic clock; 0 if it did not start.
    pub began_ns: u64,
    /// Time of its end.
    pub ended_ns: u64,
}

impl From<RawFence> for Checked {
    fn from(raw: RawFence) -> Checked {
        let state = match raw.state {
            0 => State::NotDone,
            1 => State::Done,
            _ => State::Failed(Errno(-raw.error)),
        };
        let RawFence { result, moved, stayed, began_ns, ended_ns, .. } = raw;
        Checked { state, result, moved, stayed, began_ns, ended_ns }
    }
}

/// A fence of an open device, released on drop.
#[derive(Debug)]
pub struct Fence<'d> {
    pub(super) device: &'d Device,
    pub(super) id: u64,
}

impl Device {
    fn fence_call(&self, number: u8, raw: &mut RawFence) -> Result<(), Errno> {
        raw.size = size_of::<RawFence>() as u32;
        self.extension(number, raw)
    }

    /// The fence with number `id`.
    pub(crate) fn fence(&self, id: u64) -> Fence<'_> {
        Fence { device: self, id }
    }

    /// Creates a fence that the host signals.
    pub fn host_fence(&self) -> Result<Fence<'_>, Errno> {
        let mut raw = RawFence::default();
        self.fence_call(0x66, &mut raw)?;
        Ok(Fence { device: self, id: raw.fence })
    }

    /// Imports the DMA fence of a sync file.
    pub fn import(&self, file: &impl AsRawFd) -> Result<Fence<'_>, Errno> {
        let mut raw = RawFence { fd: file.as_raw_fd(), ..RawFence::default() };
        self.fence_call(0x6c, &mut raw)?;
        Ok(Fence { device: self, id: raw.fence })
    }

    /// Imports a fence of another open device.
    pub fn share(&self, other: &Fence<'_>) -> Result<Fence<'_>, Errno> {
        let mut raw = RawFence { flags: 1, fd: other.device.fd(), ..other.raw() };
        self.fence_call(0x6c, &mut raw)?;
        Ok(Fence { device: self, id: raw.fence })
    }

    /// Polls the file for `POLLPRI`: `true` if a fence of [`Fence::by_poll`] has ended.
    pub fn poll_fences(&self, timeout: Duration) -> Result<bool, Errno> {
        poll(self.fd(), libc::POLLPRI, timeout)
    }
}

impl Fence<'_> {
    /// Returns the number of the fence.
    pub fn id(&self) -> u64 {
        self.id
    }

    fn raw(&self) -> RawFence {
        RawFence { fence: self.id, ..RawFence::default() }
    }

    /// State of the fence.
    pub fn check(&self) -> Result<Checked, Errno> {
        let mut raw = self.raw();
        self.device.fence_call(0x68, &mut raw).map(|()| raw.into())
    }

    /// Waits for the fence; `None`: without a timeout.
    pub fn sync(&self, timeout: Option<Duration>) -> Result<Checked, Errno> {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX - 1);
        let mut raw = RawFence { timeout_ns: timeout.map_or(u64::MAX, ns), ..self.raw() };
        self.device.fence_call(0x69, &mut raw).map(|()| raw.into())
    }

    /// Waits for the fence, with a timeout for slow machines. The operation must succeed.
    pub fn done(&self) -> Result<Checked, Errno> {
        let checked = self.sync(Some(Duration::from_secs(120)))?;
        match checked.state {
            State::Failed(error) => Err(error),
            _ => Ok(checked),
        }
    }

    /// Signals a host fence.
    pub fn signal(&self, result: Result<(), Errno>) -> Result<(), Errno> {
        let error = result.err().map_or(0, |error| -error.0);
        let mut raw = RawFence { error, ..self.raw() };
        self.device.fence_call(0x67, &mut raw)
    }

    /// Exports the fence as a sync file, if it is a DMA fence.
    pub fn export(&self) -> Result<SyncFile, Errno> {
        let mut raw = self.raw();
        self.device.fence_call(0x6b, &mut raw)?;
        // SAFETY: the ioctl returned a new descriptor, which is owned here.
        Ok(SyncFile(unsafe { OwnedFd::from_raw_fd(raw.fd) }))
    }

    /// Signals an eventfd when the operation ends.
    pub fn notify(&self, event: &impl AsRawFd) -> Result<(), Errno> {
        let mut raw = RawFence { fd: event.as_raw_fd(), ..self.raw() };
        self.device.fence_call(0x6d, &mut raw)
    }

    /// Makes `poll` of the file report the end of the operation.
    pub fn by_poll(&self) -> Result<(), Errno> {
        let mut raw = RawFence { fd: -1, ..self.raw() };
        self.device.fence_call(0x6d, &mut raw)
    }

    /// Creates an eventfd that is signalled when the operation ends.
    pub fn event(&self) -> Result<Event, Errno> {
        let event = Event::new()?;
        self.notify(&event).map(|()| event)
    }

    /// Releases the fence, and returns the result.
    pub fn release(self) -> Result<(), Errno> {
        let fence = std::mem::ManuallyDrop::new(self);
        fence.device.fence_call(0x6a, &mut fence.raw())
    }
}

impl Drop for Fence<'_> {
    fn drop(&mut self) {
        let _ = self.device.fence_call(0x6a, &mut self.raw());
    }
}
