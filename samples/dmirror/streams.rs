// SPDX-License-Identifier: GPL-2.0

//! Streams of events: what happens to the memory of a file's process, for who reads the file.
//!
//! A stream has a ring of records that is allocated when it is made. Who tells of an event takes a spinlock, and
//! neither allocates nor waits for a reader: what has no room is counted as lost. Lock order: the list of a
//! device's streams, then a ring; both come after everything of the library.

use crate::device::View;
use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        poll::PollCondVar,
        Arc, Mutex, SpinLock,
    },
    uaccess::UserSliceWriter,
};
use rust_hmm::{
    events::Event,
    mirror::Mirror,
    mm::{bell::monotonic_ns, notifier::Cookie},
    node::{Ready, Waiter},
};

/// Records of a ring.
const RECORDS: usize = 1024;

/// Records that are copied to user space at once.
const AT_ONCE: usize = 8;

/// Streams of a device.
const STREAMS: usize = 256;

/// `DMIRROR_EVENT_VERSION`.
const VERSION: u16 = 1;

/// `struct dmirror_event`.
pub(crate) const RECORD: usize = 88;

/// `DMIRROR_EVENT_*`.
#[derive(Clone, Copy)]
#[repr(u16)]
enum Type {
    FaultBegin = 0,
    FaultEnd = 1,
    CpuFault = 2,
    MigrateBegin = 3,
    MigrateEnd = 4,
    Evict = 5,
    Invalidate = 6,
    Retry = 7,
    Thrash = 8,
}

/// Bits of a mask: one for each type.
pub(crate) const ALL_TYPES: u64 = (1 << (Type::Thrash as u32 + 1)) - 1;

/// What a record says besides its head.
#[derive(Clone, Copy)]
struct Said {
    kind: Type,
    error: i32,
    addr: u64,
    npages: u64,
    detail: u32,
    to_device: bool,
    moved: u64,
    switched: u64,
    stayed: u64,
}

fn errno(result: Result) -> i32 {
    result.map_or_else(Error::to_errno, |()| 0)
}

impl Said {
    fn new(event: &Event) -> Self {
        let mut said = Self {
            kind: Type::FaultBegin,
            error: 0,
            addr: 0,
            npages: 0,
            detail: 0,
            to_device: false,
            moved: 0,
            switched: 0,
            stayed: 0,
        };
        let range = match *event {
            Event::FaultBegin { range, write } => {
                said.detail = u32::from(write);
                Some(range)
            }
            Event::FaultEnd {
                range,
                write,
                result,
            } => {
                said.kind = Type::FaultEnd;
                said.detail = u32::from(write);
                said.error = errno(result);
                Some(range)
            }
            Event::CpuFault { address, moved } => {
                said.kind = Type::CpuFault;
                said.addr = address as u64;
                said.npages = 1;
                said.moved = moved.unwrap_or(0) as u64;
                said.error = errno(moved.map(|_| ()));
                None
            }
            Event::MigrateBegin {
                range,
                to_device,
                trigger,
            } => {
                said.kind = Type::MigrateBegin;
                said.to_device = to_device;
                // CAST: As the header numbers them.
                said.detail = trigger as u32;
                Some(range)
            }
            Event::MigrateEnd {
                to_device,
                trigger,
                moved,
                switched,
                stayed,
                result,
            } => {
                said.kind = Type::MigrateEnd;
                said.to_device = to_device;
                // CAST: As the header numbers them.
                said.detail = trigger as u32;
                said.moved = moved as u64;
                said.switched = switched as u64;
                said.stayed = stayed as u64;
                said.error = errno(result);
                None
            }
            Event::Evict { need, pages } => {
                said.kind = Type::Evict;
                // CAST: As the header numbers them.
                said.detail = need as u32;
                said.moved = pages as u64;
                None
            }
            Event::Invalidate {
                range,
                reason,
                changed,
            } => {
                said.kind = Type::Invalidate;
                said.detail = reason.number();
                said.moved = changed as u64;
                Some(range)
            }
            Event::Retry { range, why } => {
                said.kind = Type::Retry;
                // CAST: As the header numbers them.
                said.detail = why as u32;
                Some(range)
            }
            Event::Thrash { range, ms } => {
                said.kind = Type::Thrash;
                said.detail = u32::from(ms.is_none());
                said.stayed = ms.unwrap_or(0);
                Some(range)
            }
        };
        if let Some(range) = range {
            said.addr = range.start() as u64;
            said.npages = range.pages() as u64;
        }
        said
    }
}

/// A record, but for its number in the stream, which is in order.
#[derive(Clone, Copy)]
struct Record {
    time_ns: u64,
    lost: u64,
    sequence: u64,
    mirror: u32,
    said: Said,
}

impl Record {
    /// As user space has it.
    fn bytes(&self) -> [u8; RECORD] {
        let said = &self.said;
        let mut bytes = [0; RECORD];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            if let Some(to) = bytes.get_mut(at..at + part.len()) {
                to.copy_from_slice(part);
            }
            at += part.len();
        };
        put(&VERSION.to_ne_bytes());
        // CAST: As the header numbers them.
        put(&(said.kind as u16).to_ne_bytes());
        put(&said.error.to_ne_bytes());
        for value in [
            self.time_ns,
            self.sequence,
            self.lost,
            said.addr,
            said.npages,
        ] {
            put(&value.to_ne_bytes());
        }
        for value in [self.mirror, said.detail, u32::from(said.to_device), 0] {
            put(&value.to_ne_bytes());
        }
        for value in [said.moved, said.switched, said.stayed] {
            put(&value.to_ne_bytes());
        }
        bytes
    }
}

/// Records that nobody has read yet.
struct Ring {
    records: KVVec<Option<Record>>,
    first: usize,
    count: usize,
    /// Of the next event.
    sequence: u64,
    lost: u64,
}

impl Ring {
    fn push(&mut self, mirror: u32, said: Said) {
        let sequence = self.sequence;
        self.sequence += 1;
        let at = (self.first + self.count) % RECORDS;
        match self.records.get_mut(at) {
            Some(place) if self.count < RECORDS => {
                *place = Some(Record {
                    time_ns: monotonic_ns(),
                    lost: self.lost,
                    sequence,
                    mirror,
                    said,
                });
                self.count += 1;
            }
            _ => self.lost += 1,
        }
    }

    fn get(&self, index: usize) -> Option<Record> {
        if index >= self.count {
            return None;
        }
        *self.records.get((self.first + index) % RECORDS)?
    }

    fn drop_first(&mut self, count: usize) {
        let count = count.min(self.count);
        self.first = (self.first + count) % RECORDS;
        self.count -= count;
    }
}

/// The events of one file.
#[pin_data]
pub(crate) struct Stream {
    /// Whose they are: the mirror's name in TLBs, and its address space.
    tag: u64,
    space: Cookie,
    /// Types that are wanted; 0: none.
    mask: Atomic<u64>,
    /// All mirrors of the device.
    all: Atomic<u32>,
    #[pin]
    ring: SpinLock<Ring>,
    /// There is something to read.
    #[pin]
    filled: PollCondVar,
    /// Held by who reads: records are taken out when they are in user space.
    #[pin]
    reading: Mutex<()>,
}

impl Stream {
    fn wants(&self, kind: Type) -> bool {
        self.mask.load(Relaxed) & (1 << kind as u32) != 0
    }

    fn push(&self, mirror: u32, said: Said) {
        self.ring.lock().push(mirror, said);
        self.filled.notify_all();
    }

    /// What is wanted from here on. Returns what was.
    pub(crate) fn set(&self, mask: u64, all: bool) -> u64 {
        self.all.store(u32::from(all), Relaxed);
        self.mask.xchg(mask, kernel::sync::atomic::ordering::Full)
    }

    /// Records there are, and those that were lost so far.
    pub(crate) fn state(&self) -> (usize, u64) {
        let ring = self.ring.lock();
        (ring.count, ring.lost)
    }

    /// Copies whole records to user space.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no room for one. `EAGAIN`: there is none, without `wait`. `EINTR`; `EFAULT`.
    pub(crate) fn read(&self, to: &mut UserSliceWriter, wait: bool) -> Result<usize> {
        if to.len() < RECORD {
            return Err(EINVAL);
        }
        loop {
            {
                let mut ring = self.ring.lock();
                while ring.count == 0 {
                    if !wait {
                        return Err(EAGAIN);
                    }
                    if self.filled.wait_interruptible(&mut ring) {
                        return Err(EINTR);
                    }
                }
            }
            match self.copy_out(to)? {
                // Another reader was faster.
                0 => {}
                bytes => return Ok(bytes),
            }
        }
    }

    fn copy_out(&self, to: &mut UserSliceWriter) -> Result<usize> {
        let _alone = self.reading.lock();
        let mut bytes = 0;
        while to.len() >= RECORD {
            let mut part = [const { None }; AT_ONCE];
            let most = AT_ONCE.min(to.len() / RECORD);
            {
                let ring = self.ring.lock();
                for (index, place) in part.iter_mut().enumerate().take(most) {
                    *place = ring.get(index);
                }
            }
            let mut copied = 0;
            for record in part.iter().flatten() {
                if let Err(error) = to.write_slice(&record.bytes()) {
                    self.ring.lock().drop_first(copied);
                    // What was copied counts.
                    return if bytes + copied == 0 {
                        Err(error)
                    } else {
                        Ok(bytes + copied * RECORD)
                    };
                }
                copied += 1;
            }
            self.ring.lock().drop_first(copied);
            bytes += copied * RECORD;
            if copied < most {
                break;
            }
        }
        Ok(bytes)
    }

    /// Whether there is something to read.
    pub(crate) fn poll(&self, waiter: &Waiter<'_>) -> Ready {
        waiter.add(&self.filled);
        match self.ring.lock().count {
            0 => Ready::NOTHING,
            _ => Ready::READ,
        }
    }
}

/// All streams of one device.
#[pin_data]
pub(crate) struct Streams {
    /// Streams that there are: without any, events cost a load.
    count: Atomic<usize>,
    #[pin]
    list: SpinLock<KVec<Arc<Stream>>>,
}

impl Streams {
    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Relaxed) != 0
    }

    /// None.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let list = KVec::with_capacity(STREAMS, GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                count: Atomic::new(0),
                list <- kernel::new_spinlock!(list, "dmirror::streams"),
            }),
            GFP_KERNEL,
        )
    }

    /// A stream of `mirror`, which wants nothing yet. `EBUSY`: there are too many. `ENOMEM`.
    pub(crate) fn add(&self, mirror: &Mirror<View>) -> Result<Arc<Stream>> {
        let mut records = KVVec::new();
        records.resize(RECORDS, None, GFP_KERNEL_ACCOUNT)?;
        let ring = Ring {
            records,
            first: 0,
            count: 0,
            sequence: 0,
            lost: 0,
        };
        let stream = Arc::pin_init(
            pin_init!(Stream {
                tag: mirror.device().tag(),
                space: mirror.space_name(),
                mask: Atomic::new(0),
                all: Atomic::new(0),
                ring <- kernel::new_spinlock!(ring, "dmirror::ring"),
                filled <- kernel::new_poll_condvar!("dmirror::filled"),
                reading <- kernel::new_mutex!((), "dmirror::reading"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let added = self.list.lock().push_within_capacity(stream.clone());
        added.map_err(|_| EBUSY)?;
        self.count.add(1, Relaxed);
        Ok(stream)
    }

    /// `stream` hears nothing any more.
    pub(crate) fn remove(&self, stream: &Arc<Stream>) {
        let mut list = self.list.lock();
        let at = list.iter().position(|other| Arc::ptr_eq(other, stream));
        // Dropped without the lock.
        let _gone = at.and_then(|at| list.remove(at).ok());
        drop(list);
        self.count.add(usize::MAX, Relaxed);
    }

    fn offer(&self, mirror: u32, event: &Event, is_meant: impl Fn(&Stream) -> bool) {
        let said = Said::new(event);
        let list = self.list.lock();
        for stream in list.iter() {
            let sees = is_meant(stream) || stream.all.load(Relaxed) != 0;
            if sees && stream.wants(said.kind) {
                stream.push(mirror, said);
            }
        }
    }

    /// Something has happened to mirror number `mirror`, which is `tag` in TLBs. Context: as
    /// [`Device::event`](rust_hmm::mirror::Device::event).
    pub(crate) fn of_mirror(&self, mirror: u32, tag: u64, event: &Event) {
        self.offer(mirror, event, |stream| stream.tag == tag);
    }

    /// Something has happened in an address space. Context: as
    /// [`MemoryOps::event`](rust_hmm::memory::MemoryOps::event).
    pub(crate) fn of_space(&self, space: Cookie, event: &Event) {
        self.offer(u32::MAX, event, |stream| stream.space == space);
    }
}
