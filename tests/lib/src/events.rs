// SPDX-License-Identifier: GPL-2.0
//! The event stream of an open device.

use crate::device::Device;
use crate::engine::Extension;
use crate::errno::Errno;
use std::os::fd::RawFd;
use std::time::Duration;

/// Types of events; bit `n` of a mask is type `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Type {
    /// A device fault is about to be handled.
    FaultBegin,
    /// The device fault was handled.
    FaultEnd,
    /// The CPU faulted on device memory.
    CpuFault,
    /// A migration begins.
    MigrateBegin,
    /// The migration has ended.
    MigrateEnd,
    /// Pages were evicted.
    Evict,
    /// The kernel invalidates a range.
    Invalidate,
    /// A device fault is retried.
    Retry,
    /// Memory is thrashing between CPU and device.
    Thrash,
}

impl Type {
    /// All of them.
    pub const ALL: [Type; 9] = [
        Type::FaultBegin,
        Type::FaultEnd,
        Type::CpuFault,
        Type::MigrateBegin,
        Type::MigrateEnd,
        Type::Evict,
        Type::Invalidate,
        Type::Retry,
        Type::Thrash,
    ];

    /// Returns the bit of this type in a mask.
    pub fn bit(self) -> u64 {
        1 << self as u16
    }
}

/// Bytes of a record.
pub const RECORD: usize = 88;

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Type of the event.
    pub kind: Type,
    /// `-errno`, or 0.
    pub error: i32,
    /// Time of the event, in ns of the monotonic clock.
    pub time_ns: u64,
    /// Sequence number, which also counts lost events.
    pub sequence: u64,
    /// Events that were lost before.
    pub lost: u64,
    /// First address.
    pub addr: u64,
    /// Pages of 4 KiB.
    pub npages: u64,
    /// The mirror's number.
    pub mirror: u32,
    /// Access, migration reason, eviction reason or type of notifier event, by the type of the
    /// event.
    pub detail: u32,
    /// Whether a migration is one to the device.
    pub to_device: bool,
    /// Pages moved.
    pub moved: u64,
    /// Pages whose entry was switched.
    pub switched: u64,
    /// Pages that were not moved.
    pub stayed: u64,
}

impl Record {
    /// Parses a record; `None` if the version or the type is unknown.
    pub fn parse(bytes: &[u8; RECORD]) -> Option<Record> {
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]));
        let half = |at: usize| u32::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]));
        let short = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        if short(0) != 1 || half(60) != 0 {
            return None;
        }
        Some(Record {
            kind: *Type::ALL.get(usize::from(short(2)))?,
            error: half(4) as i32,
            time_ns: word(8),
            sequence: word(16),
            lost: word(24),
            addr: word(32),
            npages: word(40),
            mirror: half(48),
            detail: half(52),
            to_device: half(56) != 0,
            moved: word(64),
            switched: word(72),
            stayed: word(80),
        })
    }
}

/// `struct dmirror_events`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawEvents {
    pub(crate) size: u32,
    pub(crate) flags: u32,
    pub(crate) mask: u64,
    pub(crate) old: u64,
    pub(crate) waiting: u64,
    pub(crate) lost: u64,
}
// SAFETY: Plain numbers.
unsafe impl Extension for RawEvents {}

/// State of a stream when its mask was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Previous mask.
    pub old: u64,
    /// Pending records.
    pub waiting: u64,
    /// Events lost so far.
    pub lost: u64,
}

/// Polls `fd` for reading, up to `time`. Returns the events of poll(), 0 if none.
pub fn poll_fd(fd: RawFd, time: Duration) -> Result<i16, Errno> {
    let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let ms = time.as_millis() as i32;
    // SAFETY: one valid structure.
    Errno::check(unsafe { libc::poll(&mut one, 1, ms) }.into())?;
    Ok(one.revents)
}

impl Device {
    /// Sets the mask of event types; `all`: of all processes.
    pub fn events(&self, mask: u64, all: bool) -> Result<Stream, Errno> {
        let size = size_of::<RawEvents>() as u32;
        let mut raw = RawEvents { size, flags: u32::from(all), mask, ..RawEvents::default() };
        self.extension(0x7a, &mut raw)?;
        Ok(Stream { old: raw.old, waiting: raw.waiting, lost: raw.lost })
    }

    /// Reads bytes of the stream.
    pub fn read_stream(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        // SAFETY: the buffer is valid.
        let read = unsafe { libc::read(self.fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
        Errno::check(read as i64).map(|read| read as usize)
    }

    /// Sets whether reads return `EAGAIN` instead of waiting.
    pub fn set_nonblocking(&self, on: bool) -> Result<(), Errno> {
        let flags = if on { libc::O_NONBLOCK } else { 0 };
        // SAFETY: the descriptor is open.
        Errno::check(unsafe { libc::fcntl(self.fd(), libc::F_SETFL, flags) }.into()).map(|_| ())
    }

    /// Reads all pending records. From then on reads do not wait.
    pub fn records(&self) -> Result<Vec<Record>, Errno> {
        self.set_nonblocking(true)?;
        let mut records = Vec::new();
        let mut buffer = [0; RECORD * 64];
        loop {
            match self.read_stream(&mut buffer) {
                Ok(read) => {
                    if read % RECORD != 0 {
                        return Err(Errno::EIO);
                    }
                    for bytes in buffer[..read].chunks_exact(RECORD) {
                        let bytes = bytes.try_into().map_err(|_| Errno::EIO)?;
                        records.push(Record::parse(bytes).ok_or(Errno::EIO)?);
                    }
                }
                Err(Errno::EAGAIN) => return Ok(records),
                Err(error) => return Err(error),
            }
        }
    }

    /// Polls the stream, up to `time`. Returns the events of poll().
    pub fn poll(&self, time: Duration) -> Result<i16, Errno> {
        poll_fd(self.fd(), time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_parsed() {
        let mut bytes = [0; RECORD];
        bytes[0] = 1;
        bytes[2] = Type::MigrateEnd as u8;
        bytes[4..8].copy_from_slice(&(-22i32).to_ne_bytes());
        bytes[16] = 7;
        bytes[56] = 1;
        bytes[64] = 40;
        let record = Record::parse(&bytes).unwrap();
        assert_eq!((record.kind, record.error, record.sequence), (Type::MigrateEnd, -22, 7));
        assert!(record.to_device && record.moved == 40);
        bytes[2] = 99;
        assert_eq!(Record::parse(&bytes), None);
        bytes[0] = 2;
        assert_eq!(Record::parse(&bytes), None);
    }
}
