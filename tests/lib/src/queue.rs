// SPDX-License-Identifier: GPL-2.0
//! Queues and fences of an open device.

use crate::device::Device;
use crate::engine::{
    EngineOp,
    Extension, //
};
use crate::errno::Errno;
use std::os::fd::{
    AsRawFd,
    FromRawFd,
    OwnedFd,
    RawFd, //
};
use std::time::Duration;

/// `struct dmirror_queue`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawQueue {
    pub(crate) size: u32,
    pub(crate) flags: u32,
    pub(crate) queue: u32,
    pub(crate) op: u32,
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    pub(crate) src: u64,
    pub(crate) value: u64,
    pub(crate) stride: u64,
    pub(crate) reserved: u64,
    pub(crate) after: u64,
    pub(crate) nafter: u64,
    pub(crate) rounds: u64,
    pub(crate) fence: u64,
}
// SAFETY: Plain numbers; `after` is only set where a slice is lent, and only read.
unsafe impl Extension for RawQueue {}

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

/// An operation of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueOp(RawQueue);

impl QueueOp {
    fn memory(op: u32, addr: usize, bytes: usize) -> QueueOp {
        QueueOp(RawQueue { op, addr: addr as u64, bytes: bytes as u64, ..RawQueue::default() })
    }

    /// Migrates pages to the device.
    pub fn migrate(addr: usize, bytes: usize) -> QueueOp {
        Self::memory(0, addr, bytes)
    }

    /// Migrates pages to the device, and installs device PTEs.
    pub fn prefetch(addr: usize, bytes: usize) -> QueueOp {
        Self::memory(1, addr, bytes)
    }

    /// Migrates pages to system memory.
    pub fn evict(addr: usize, bytes: usize) -> QueueOp {
        Self::memory(2, addr, bytes)
    }

    /// Copies pages with the device.
    pub fn copy(to: usize, from: usize, bytes: usize) -> QueueOp {
        let QueueOp(raw) = Self::memory(3, to, bytes);
        QueueOp(RawQueue { src: from as u64, ..raw })
    }

    /// A command of an engine, one round.
    pub fn engine(op: EngineOp, addr: usize, bytes: usize) -> QueueOp {
        Self::memory(16 + op as u32, addr, bytes)
    }

    /// A copy by an engine, as far as both ranges are whole words.
    pub fn engine_copy(to: usize, from: usize, bytes: usize) -> QueueOp {
        let QueueOp(raw) = Self::engine(EngineOp::Memcpy, to, bytes);
        QueueOp(RawQueue { src: from as u64, ..raw })
    }

    /// The same with another operation number, for tests of its rejection.
    pub fn numbered(self, op: u32) -> QueueOp {
        QueueOp(RawQueue { op, ..self.0 })
    }

    /// With a value.
    pub fn value(self, value: u64) -> QueueOp {
        QueueOp(RawQueue { value, ..self.0 })
    }

    /// With a stride in bytes.
    pub fn stride(self, stride: usize) -> QueueOp {
        QueueOp(RawQueue { stride: stride as u64, ..self.0 })
    }

    /// With a number of rounds.
    pub fn rounds(self, rounds: u64) -> QueueOp {
        QueueOp(RawQueue { rounds, ..self.0 })
    }
}

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

/// Statistics of the waits of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// For fences of the same type of device.
    pub on_device: u64,
    /// For other fences.
    pub on_host: u64,
    /// Polls of these.
    pub looks: u64,
    /// Sleeps after unsuccessful polls.
    pub sleeps: u64,
}

/// A queue, destroyed on drop.
#[derive(Debug)]
pub struct Queue<'d> {
    device: &'d Device,
    number: u32,
}

/// A fence of an open device, released on drop.
#[derive(Debug)]
pub struct Fence<'d> {
    device: &'d Device,
    id: u64,
}

impl Device {
    fn queue_call(&self, number: u8, raw: &mut RawQueue) -> Result<(), Errno> {
        raw.size = size_of::<RawQueue>() as u32;
        self.extension(number, raw)
    }

    fn fence_call(&self, number: u8, raw: &mut RawFence) -> Result<(), Errno> {
        raw.size = size_of::<RawFence>() as u32;
        self.extension(number, raw)
    }

    /// Creates a queue.
    pub fn queue(&self) -> Result<Queue<'_>, Errno> {
        let mut raw = RawQueue::default();
        self.queue_call(0x60, &mut raw)?;
        Ok(Queue { device: self, number: raw.queue })
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

    /// Copies `bytes` of locked memory, from one device address to another. Its fence is a DMA
    /// fence.
    pub fn blit(
        &self,
        to: usize,
        from: usize,
        bytes: usize,
        after: &[&Fence<'_>],
    ) -> Result<Fence<'_>, Errno> {
        let ids: Vec<u64> = after.iter().map(|fence| fence.id).collect();
        let after = ids.as_ptr() as u64;
        let nafter = ids.len() as u64;
        let addr = to as u64;
        let src = from as u64;
        let bytes = bytes as u64;
        let mut raw = RawQueue { addr, src, bytes, after, nafter, ..RawQueue::default() };
        self.queue_call(0x6e, &mut raw)?;
        Ok(Fence { device: self, id: raw.fence })
    }

    /// Polls the file for `POLLPRI`: `true` if a fence of [`Fence::by_poll`] has ended.
    pub fn poll_fences(&self, timeout: Duration) -> Result<bool, Errno> {
        poll(self.fd(), libc::POLLPRI, timeout)
    }
}

impl<'d> Queue<'d> {
    /// Returns the number of the queue.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Submits an operation that starts after all fences in `after`.
    pub fn submit(&self, op: QueueOp, after: &[&Fence<'_>]) -> Result<Fence<'d>, Errno> {
        let ids: Vec<u64> = after.iter().map(|fence| fence.id).collect();
        let after = ids.as_ptr() as u64;
        let nafter = ids.len() as u64;
        let mut raw = RawQueue { queue: self.number, after, nafter, ..op.0 };
        self.device.queue_call(0x62, &mut raw)?;
        Ok(Fence { device: self.device, id: raw.fence })
    }

    /// Creates a fence that is signalled when all operations queued before have ended.
    pub fn record(&self) -> Result<Fence<'d>, Errno> {
        let mut raw = RawQueue { queue: self.number, ..RawQueue::default() };
        self.device.queue_call(0x63, &mut raw)?;
        Ok(Fence { device: self.device, id: raw.fence })
    }

    /// Makes operations that are queued later wait for `fence`.
    pub fn wait(&self, fence: &Fence<'_>) -> Result<(), Errno> {
        let mut raw = RawQueue { queue: self.number, fence: fence.id, ..RawQueue::default() };
        self.device.queue_call(0x64, &mut raw)
    }

    /// Statistics of its waits.
    pub fn waits(&self) -> Result<Waits, Errno> {
        let mut raw = RawQueue { queue: self.number, ..RawQueue::default() };
        self.device.queue_call(0x65, &mut raw)?;
        let RawQueue { addr, bytes, src, value, .. } = raw;
        Ok(Waits { on_device: addr, on_host: bytes, looks: src, sleeps: value })
    }

    /// Destroys the queue, and returns the result.
    pub fn destroy(self) -> Result<(), Errno> {
        let queue = std::mem::ManuallyDrop::new(self);
        let mut raw = RawQueue { queue: queue.number, ..RawQueue::default() };
        queue.device.queue_call(0x61, &mut raw)
    }
}

impl Drop for Queue<'_> {
    fn drop(&mut self) {
        let mut raw = RawQueue { queue: self.number, ..RawQueue::default() };
        let _ = self.device.queue_call(0x61, &mut raw);
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

/// Polls `fd`; `true` if it is ready for `events`.
fn poll(fd: RawFd, events: libc::c_short, timeout: Duration) -> Result<bool, Errno> {
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    let ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one structure, which lives as long as the call.
    let ret = unsafe { libc::poll(&mut poll, 1, ms) };
    Errno::check(ret.into()).map(|_| poll.revents & events != 0)
}

/// An eventfd.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl AsRawFd for Event {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Event {
    /// Creates an eventfd in the unsignalled state. Reads do not wait.
    pub fn new() -> Result<Event, Errno> {
        // SAFETY: plain system call on numbers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        Errno::check(fd.into())?;
        // SAFETY: eventfd() returned a new descriptor, which is owned here.
        Ok(Event(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Polls it; `true` if it was signalled.
    pub fn poll(&self, timeout: Duration) -> Result<bool, Errno> {
        poll(self.as_raw_fd(), libc::POLLIN, timeout)
    }

    /// Number of signals since the last call.
    pub fn take(&self) -> Result<u64, Errno> {
        let mut count = 0u64;
        // SAFETY: The buffer has the eight bytes that the kernel writes.
        let ret = unsafe { libc::read(self.as_raw_fd(), (&raw mut count).cast(), 8) };
        match Errno::check(ret as i64) {
            Ok(_) => Ok(count),
            Err(Errno(libc::EAGAIN)) => Ok(0),
            Err(error) => Err(error),
        }
    }
}

/// A DMA fence as a sync file.
#[derive(Debug)]
pub struct SyncFile(pub(crate) OwnedFd);

impl AsRawFd for SyncFile {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// `struct sync_file_info` of the kernel, without its list of fences.
#[repr(C)]
#[derive(Default)]
struct Info {
    name: [u8; 32],
    status: i32,
    flags: u32,
    num_fences: u32,
    pad: u32,
    sync_fence_info: u64,
}

/// `struct sync_merge_data` of the kernel.
#[repr(C)]
#[derive(Default)]
struct Merge {
    name: [u8; 32],
    fd2: i32,
    fence: i32,
    flags: u32,
    pad: u32,
}

impl SyncFile {
    /// Merges two sync files: the result is signalled when both are. Its fence is a fence array of
    /// the kernel.
    pub fn merge(&self, other: &SyncFile) -> Result<SyncFile, Errno> {
        // _IOWR('>', 3, struct sync_merge_data)
        let request = 0xc000_0000u64 | ((size_of::<Merge>() as u64) << 16) | 0x3e03;
        let mut merge = Merge { fd2: other.as_raw_fd(), ..Merge::default() };
        // SAFETY: the kernel reads and fills the structure.
        let ret = unsafe { libc::ioctl(self.as_raw_fd(), request as _, &mut merge as *mut Merge) };
        Errno::check(ret.into())?;
        // SAFETY: the ioctl returned a new descriptor, which is owned here.
        Ok(SyncFile(unsafe { OwnedFd::from_raw_fd(merge.fence) }))
    }

    /// Polls it; `true` if it is signalled.
    pub fn poll(&self, timeout: Duration) -> Result<bool, Errno> {
        poll(self.as_raw_fd(), libc::POLLIN, timeout)
    }

    /// State of the fence, as SYNC_IOC_FILE_INFO reports it.
    pub fn state(&self) -> Result<State, Errno> {
        // _IOWR('>', 4, struct sync_file_info)
        let request = 0xc000_0000u64 | ((size_of::<Info>() as u64) << 16) | 0x3e04;
        let mut info = Info::default();
        // SAFETY: the kernel fills the structure, and is lent no list.
        let ret = unsafe { libc::ioctl(self.as_raw_fd(), request as _, &mut info as *mut Info) };
        Errno::check(ret.into())?;
        Ok(match info.status {
            0 => State::NotDone,
            1 => State::Done,
            error => State::Failed(Errno(-error)),
        })
    }
}
