// SPDX-License-Identifier: GPL-2.0

//! Event streams: report events of a file's address space to readers of the file.
//!
//! A stream has a ring of records that is allocated in advance. Reporting an event takes spinlocks
//! only; it neither allocates nor waits for a reader. Events that find the ring full are counted as
//! lost.
//!
//! Lock order: the list of a device's streams, then a ring. Both nest inside all locks of the
//! library.

use crate::device::View;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        Arc,
        SpinLock, //
    }, //
};
use record::EventFields;
use rust_hmm::{
    debug::events::Event,
    kernel::identity::MmId,
    mirror::Mirror, //
};

mod record;
mod stream;

pub(crate) use record::ALL_TYPES;
pub(crate) use stream::Stream;

/// Maximum number of streams of a device.
const MAX_STREAMS: usize = 256;

/// All streams of one device.
#[pin_data]
pub(crate) struct Streams {
    /// Number of streams, so that without streams an event costs one load.
    count: Atomic<usize>,
    #[pin]
    list: SpinLock<KVec<Arc<Stream>>>,
}

impl Streams {
    /// Whether a stream exists.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Relaxed) != 0
    }

    /// Creates an empty list.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let list = KVec::with_capacity(MAX_STREAMS, GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                count: Atomic::new(0),
                list <- kernel::new_spinlock!(list, "dmirror::streams"),
            }),
            GFP_KERNEL,
        )
    }

    /// Adds a stream of `mirror` with an empty event mask. `EBUSY`: too many streams. `ENOMEM`.
    pub(crate) fn add(&self, mirror: &Mirror<View>) -> Result<Arc<Stream>> {
        let stream = Stream::new(mirror)?;
        let added = self.list.lock().push_within_capacity(stream.clone());
        added.map_err(|_| EBUSY)?;
        self.count.add(1, Relaxed);
        Ok(stream)
    }

    /// Removes `stream`: no further events are added to it.
    pub(crate) fn remove(&self, stream: &Arc<Stream>) {
        let mut list = self.list.lock();
        let at = list.iter().position(|other| Arc::ptr_eq(other, stream));
        // Dropped without the lock.
        let _gone = at.and_then(|at| list.remove(at).ok());
        drop(list);
        self.count.add(usize::MAX, Relaxed);
    }

    fn offer(&self, mirror: u32, event: &Event, is_meant: impl Fn(&Stream) -> bool) {
        let fields = EventFields::new(event);
        let list = self.list.lock();
        for stream in list.iter() {
            if is_meant(stream) && stream.is_selected(fields.kind) {
                stream.push(mirror, fields);
            }
        }
    }

    /// Reports an event of mirror number `mirror`, whose tag in TLBs is `tag`.
    ///
    /// Context: as [`Device::event`](rust_hmm::mirror::Device::event).
    pub(crate) fn of_mirror(&self, mirror: u32, tag: u64, event: &Event) {
        self.offer(mirror, event, |stream| stream.is_of_mirror(tag));
    }

    /// Reports an event of an address space.
    ///
    /// Context: as [`MemoryOps::event`](rust_hmm::memory::MemoryOps::event).
    pub(crate) fn of_space(&self, space: MmId, event: &Event) {
        self.offer(u32::MAX, event, |stream| stream.is_of_space(space));
    }
}
