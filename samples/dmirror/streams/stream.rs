// SPDX-License-Identifier: GPL-2.0

//! The event stream of a file: a ring of records that user space reads.
//!
//! Records are added under the spinlock of the ring, in the context of the event, which may be
//! atomic. If the ring is full, new records are dropped and counted. Readers are serialized by a
//! mutex, because they copy records to user space before they remove them: a fault on the buffer
//! then loses none.

use super::record::{
    EventFields,
    Record,
    Type,
    RECORD_BYTES, //
};
use crate::device::View;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        poll::PollCondVar,
        Arc,
        Mutex,
        SpinLock, //
    },
    uaccess::UserSliceWriter, //
};
use rust_hmm::{
    kernel::{
        completion::ktime_get_ns,
        identity::MmId,
        miscdevice::{
            PollFlags,
            Poller, //
        }, //
    },
    mirror::Mirror, //
};

/// Capacity of a ring.
const RING_RECORDS: usize = 1024;

/// Number of records that are copied out of the ring under one lock.
const COPY_BATCH_RECORDS: usize = 8;

/// Records that were not read yet.
struct Ring {
    records: KVVec<Option<Record>>,
    first: usize,
    count: usize,
    /// Sequence number of the next event.
    sequence: u64,
    lost: u64,
}

impl Ring {
    fn push(&mut self, mirror: u32, fields: EventFields) {
        let sequence = self.sequence;
        self.sequence += 1;
        let at = (self.first + self.count) % RING_RECORDS;
        match self.records.get_mut(at) {
            Some(place) if self.count < RING_RECORDS => {
                *place = Some(Record {
                    time_ns: ktime_get_ns(),
                    lost: self.lost,
                    sequence,
                    mirror,
                    fields,
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
        *self.records.get((self.first + index) % RING_RECORDS)?
    }

    fn drop_first(&mut self, count: usize) {
        let count = count.min(self.count);
        self.first = (self.first + count) % RING_RECORDS;
        self.count -= count;
    }
}

/// The event stream of one file.
#[pin_data]
pub(crate) struct Stream {
    /// Tag of the file's mirror in TLBs, and its address space.
    tag: u64,
    space: MmId,
    /// Mask of selected event types; 0: none.
    mask: Atomic<u64>,
    /// Whether events of all mirrors of the device are reported.
    all: Atomic<u32>,
    #[pin]
    ring: SpinLock<Ring>,
    /// Notified when a record is added.
    #[pin]
    filled: PollCondVar,
    /// Held by the task that copies records to user space.
    #[pin]
    reading: Mutex<()>,
}

impl Stream {
    /// Creates a stream of `mirror` with an empty event mask. `ENOMEM`.
    pub(super) fn new(mirror: &Mirror<View>) -> Result<Arc<Self>> {
        let mut records = KVVec::new();
        records.resize(RING_RECORDS, None, GFP_KERNEL_ACCOUNT)?;
        let ring = Ring {
            records,
            first: 0,
            count: 0,
            sequence: 0,
            lost: 0,
        };
        Arc::pin_init(
            pin_init!(Self {
                tag: mirror.device().tag(),
                space: mirror.mm_id(),
                mask: Atomic::new(0),
                all: Atomic::new(0),
                ring <- kernel::new_spinlock!(ring, "dmirror::ring"),
                filled <- kernel::new_poll_condvar!("dmirror::filled"),
                reading <- kernel::new_mutex!((), "dmirror::reading"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Whether events of the mirror with tag `tag` are reported.
    pub(super) fn is_of_mirror(&self, tag: u64) -> bool {
        self.tag == tag || self.is_of_all()
    }

    /// Whether events of address space `space` are reported.
    pub(super) fn is_of_space(&self, space: MmId) -> bool {
        self.space == space || self.is_of_all()
    }

    fn is_of_all(&self) -> bool {
        self.all.load(Relaxed) != 0
    }

    /// Whether events of this type are selected.
    pub(super) fn is_selected(&self, kind: Type) -> bool {
        self.mask.load(Relaxed) & (1 << kind as u32) != 0
    }

    pub(super) fn push(&self, mirror: u32, fields: EventFields) {
        self.ring.lock().push(mirror, fields);
        self.filled.notify_all();
    }

    /// Selects events by `mask`, and with `all` those of all mirrors of the device. Returns the
    /// previous mask.
    pub(crate) fn set(&self, mask: u64, all: bool) -> u64 {
        self.all.store(u32::from(all), Relaxed);
        self.mask.xchg(mask, kernel::sync::atomic::ordering::Full)
    }

    /// Returns the number of records that can be read, and of events lost so far.
    pub(crate) fn state(&self) -> (usize, u64) {
        let ring = self.ring.lock();
        (ring.count, ring.lost)
    }

    /// Copies whole records to user space.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: the buffer is smaller than a record.
    /// - `EAGAIN`: the ring is empty, and `wait` is false.
    /// - `EINTR`
    /// - `EFAULT`
    pub(crate) fn read(&self, to: &mut UserSliceWriter, wait: bool) -> Result<usize> {
        if to.len() < RECORD_BYTES {
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
                // A concurrent reader has taken the records.
                0 => {}
                bytes => return Ok(bytes),
            }
        }
    }

    /// Copies records to user space, and removes them from the ring. Returns the number of bytes, 0
    /// if the ring is empty.
    fn copy_out(&self, to: &mut UserSliceWriter) -> Result<usize> {
        let _reader = self.reading.lock();
        let mut bytes = 0;
        while to.len() >= RECORD_BYTES {
            let mut part = [const { None }; COPY_BATCH_RECORDS];
            let most = COPY_BATCH_RECORDS.min(to.len() / RECORD_BYTES);
            {
                let ring = self.ring.lock();
                for (index, place) in part.iter_mut().enumerate().take(most) {
                    *place = ring.get(index);
                }
            }
            let mut copied = 0;
            for record in part.iter().flatten() {
                if let Err(error) = to.write_slice(record.encode().as_mut_bytes()) {
                    self.ring.lock().drop_first(copied);
                    // Return the number of bytes copied before the fault, if any.
                    return if bytes + copied == 0 {
                        Err(error)
                    } else {
                        Ok(bytes + copied * RECORD_BYTES)
                    };
                }
                copied += 1;
            }
            self.ring.lock().drop_first(copied);
            bytes += copied * RECORD_BYTES;
            if copied < most {
                break;
            }
        }
        Ok(bytes)
    }

    /// Registers `waiter` and returns whether a record can be read.
    pub(crate) fn poll(&self, waiter: &Poller<'_>) -> PollFlags {
        waiter.add(&self.filled);
        match self.ring.lock().count {
            0 => PollFlags::NOTHING,
            _ => PollFlags::READ,
        }
    }
}
