// SPDX-License-Identifier: GPL-2.0

//! The memory of a mock device. Only engines and the copy engine access it.

use crate::{
    copy_engine::CopyEngine,
    hardware::store::Store,
    page_allocator::PageAllocator,
    settings::{
        Fixed,
        Setting,
        Settings, //
    },
    streams::Streams, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};
use rust_hmm::{
    connection::Connection,
    debug::events::Event,
    kernel::identity::MmId,
    memory::{
        CopyDesc,
        CopyJob,
        MemoryOps, //
    },
    mirror::{
        PageMemory,
        PageMemoryMut, //
    },
    mm::{
        device_pages::{
            DeviceRange,
            MemoryKind, //
        },
        user::UserSpan, //
    }, //
};

/// Executes a copy from or to the memory `here`. `there` is the memory of a device destination,
/// which may belong to another device.
pub(crate) fn copy(here: &Store, copy: &CopyDesc<'_>, there: &Store) -> Result {
    match (&copy.source, &copy.destination) {
        (None, PageMemoryMut::Cpu(to)) => {
            to.clear();
            Ok(())
        }
        (None, PageMemoryMut::Device(to)) => {
            let (bytes, offset) = there.find_or_make(*to)?;
            bytes.clear(offset, to.count * PAGE_SIZE)
        }
        (Some(PageMemory::Cpu(from)), PageMemoryMut::Cpu(to)) => to.copy_from(from),
        (Some(PageMemory::Cpu(from)), PageMemoryMut::Device(to)) => {
            let (bytes, offset) = there.find_or_make(*to)?;
            bytes.load(offset, from)
        }
        (Some(PageMemory::Device(from)), PageMemoryMut::Cpu(_)) if here.is_lost(*from) => Err(EIO),
        (Some(PageMemory::Device(from)), PageMemoryMut::Cpu(to)) => {
            let (bytes, offset) = here.find(*from)?;
            bytes.store(offset, to)
        }
        (Some(PageMemory::Device(from)), PageMemoryMut::Device(to)) => {
            let (bytes, offset) = here.find(*from)?;
            let (destination, at) = there.find_or_make(*to)?;
            destination.copy_from(at, bytes, offset, from.count * PAGE_SIZE)
        }
    }
}

/// Device memory with its copy engine.
pub(crate) struct Vram {
    store: Arc<Store>,
    settings: Arc<Settings>,
    pub(crate) copy_engine: CopyEngine,
    page_allocator: Option<PageAllocator>,
    streams: Arc<Streams>,
}

impl Vram {
    /// Creates device memory of `bytes` bytes, which are allocated on demand.
    pub(crate) fn new(
        bytes: usize,
        fixed: &Fixed,
        settings: Arc<Settings>,
        streams: Arc<Streams>,
    ) -> Result<Self> {
        let store = Arc::new(Store::new(bytes)?, GFP_KERNEL)?;
        let page_allocator = if fixed.own_alloc {
            Some(PageAllocator::new(bytes / PAGE_SIZE)?)
        } else {
            None
        };
        Ok(Self {
            copy_engine: CopyEngine::new(store.clone(), settings.clone(), fixed.copy_threads)?,
            store,
            page_allocator,
            streams,
            settings,
        })
    }

    /// Returns the number of folios that were allocated at the page suggested by the device.
    pub(crate) fn chosen(&self) -> u64 {
        self.page_allocator
            .as_ref()
            .map_or(0, PageAllocator::honoured)
    }

    /// Marks the contents of page `number` as lost. `ENOMEM`.
    pub(crate) fn lose(&self, number: usize) -> Result {
        self.store.lose(number)
    }

    /// Reads from byte `at` of `range`, for an engine.
    pub(crate) fn read(&self, range: DeviceRange, at: usize, dst: &mut [u8]) -> Result {
        let (bytes, offset) = self.store.find(range)?;
        bytes.read(offset.checked_add(at).ok_or(EINVAL)?, dst)
    }

    /// Writes to byte `at` of `range`, for an engine.
    pub(crate) fn write(&self, range: DeviceRange, at: usize, src: &[u8]) -> Result {
        let (bytes, offset) = self.store.find(range)?;
        bytes.write(offset.checked_add(at).ok_or(EINVAL)?, src)
    }

    /// Copies `range` to user memory, as far as that is present. Returns the number of bytes.
    pub(crate) fn read_to_user(&self, range: DeviceRange, to: UserSpan) -> Result<usize> {
        let (bytes, offset) = self.store.find(range)?;
        bytes.read_to_user(offset, to)
    }

    /// Copies user memory to `range`, as far as it is present. Returns the number of bytes.
    pub(crate) fn write_from_user(&self, range: DeviceRange, from: UserSpan) -> Result<usize> {
        let (bytes, offset) = self.store.find(range)?;
        bytes.write_from_user(offset, from)
    }

    /// Atomically adds `value` to the word at byte `at` of `range`. Returns the previous value.
    pub(crate) fn fetch_add(&self, range: DeviceRange, at: usize, value: u64) -> Result<u64> {
        let (bytes, offset) = self.store.find(range)?;
        bytes.fetch_add_u64(offset.checked_add(at).ok_or(EINVAL)?, value)
    }
}

impl MemoryOps for Vram {
    fn copy(&self, job: CopyJob) {
        self.copy_engine.submit(job, None);
    }

    fn connection(&self, _other: &Self, _kind: MemoryKind) -> Connection {
        // The library takes the lesser of the connections that both devices report.
        match self.settings.get(Setting::Connection) {
            0 => Connection::None,
            1 => Connection::Migratable,
            _ => Connection::Unified,
        }
    }

    fn copy_to(&self, other: &Self, job: CopyJob) {
        self.copy_engine.submit(job, Some(other.store.clone()));
    }

    fn copy_sync(&self, copy: &CopyDesc<'_>) -> Option<Result> {
        self.copy_engine.copy_sync(copy)
    }

    fn ring_doorbell(&self) {
        self.copy_engine.wake_threads();
    }

    fn cancelled(&self) {
        self.copy_engine.drop_cancelled();
    }

    fn suggest_page(&self, order: u32) -> Option<usize> {
        self.page_allocator.as_ref()?.suggest_page(order)
    }

    fn freed(&self, range: DeviceRange) {
        if let Some(page_allocator) = &self.page_allocator {
            page_allocator.freed(range);
        }
    }

    fn wants_events(&self) -> bool {
        self.streams.any()
    }

    fn event(&self, space: MmId, event: &Event) {
        self.streams.of_space(space, event);
    }
}
