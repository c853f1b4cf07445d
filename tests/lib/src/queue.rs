// SPDX-License-Identifier: GPL-2.0
//! Queues and fences of an open device.

use crate::device::Device;
use crate::engine::{
    EngineOp,
    Extension, //
};
use crate::errno::Errno;

mod descriptors;
pub(crate) mod fence;

pub use descriptors::{
    Event,
    SyncFile, //
};
pub use fence::{
    Checked,
    Fence,
    State, //
};

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

impl Device {
    fn queue_call(&self, number: u8, raw: &mut RawQueue) -> Result<(), Errno> {
        raw.size = size_of::<RawQueue>() as u32;
        self.extension(number, raw)
    }

    /// Creates a queue.
    pub fn queue(&self) -> Result<Queue<'_>, Errno> {
        let mut raw = RawQueue::default();
        self.queue_call(0x60, &mut raw)?;
        Ok(Queue { device: self, number: raw.queue })
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
