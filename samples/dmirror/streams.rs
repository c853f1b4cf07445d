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
        Arc, SpinLock,
    },
};
use record::Said;
use rust_hmm::{events::Event, mirror::Mirror, mm::notifier::Cookie};

mod record;
mod stream;

pub(crate) use record::ALL_TYPES;
pub(crate) use stream::Stream;

/// Streams of a device.
const STREAMS: usize = 256;

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
        let stream = Stream::new(mirror)?;
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
            if is_meant(stream) && stream.wants(said.kind) {
                stream.push(mirror, said);
            }
        }
    }

    /// Something has happened to mirror number `mirror`, which is `tag` in TLBs. Context: as
    /// [`Device::event`](rust_hmm::mirror::Device::event).
    pub(crate) fn of_mirror(&self, mirror: u32, tag: u64, event: &Event) {
        self.offer(mirror, event, |stream| stream.is_of_mirror(tag));
    }

    /// Something has happened in an address space. Context: as
    /// [`MemoryOps::event`](rust_hmm::memory::MemoryOps::event).
    pub(crate) fn of_space(&self, space: Cookie, event: &Event) {
        self.offer(u32::MAX, event, |stream| stream.is_of_space(space));
    }
}
