// SPDX-License-Identifier: GPL-2.0

//! The memory of a mock device: the operations that the library calls, carried out by the copy
//! engine. The driver itself accesses the contents for user space only, as through a BAR.

use crate::{
    dma::{
        self,
        Mapping,
        Window, //
    },
    format::VRAM,
    hardware::{
        bus::Action,
        copy_engine::CopyEngine,
        store::Store, //
    },
    page_allocator::PageAllocator,
    settings::{
        Fixed,
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
    mm::{
        device_pages::{
            DeviceRange,
            MemoryKind, //
        },
        user::UserSpan, //
    }, //
};

/// Device memory with its copy engine.
pub(crate) struct Vram {
    store: Arc<Store>,
    settings: Arc<Settings>,
    pub(crate) copy_engine: CopyEngine<Mapping>,
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
        let store = Arc::new(Store::new(VRAM, bytes)?, GFP_KERNEL)?;
        let page_allocator = if fixed.own_alloc {
            Some(PageAllocator::new(bytes / PAGE_SIZE)?)
        } else {
            None
        };
        Ok(Self {
            copy_engine: CopyEngine::new(
                store.clone(),
                settings.registers.clone(),
                fixed.copy_threads,
            )?,
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
        self.store.lose(number * PAGE_SIZE)
    }

    /// Performs an engine's `action` at byte `at` of `range`. `EIO` if the memory was never written
    /// there.
    pub(crate) fn access(&self, range: DeviceRange, at: usize, action: &mut Action<'_>) -> Result {
        self.store.access(dma::offset(range) + at, action)
    }

    /// Copies `range` to user memory, as far as that is present. Returns the number of bytes.
    pub(crate) fn read_to_user(&self, range: DeviceRange, to: UserSpan) -> Result<usize> {
        let (bytes, offset) = self.store.find(dma::offset(range))?;
        bytes.read_to_user(offset, to)
    }

    /// Copies user memory to `range`, as far as it is present. Returns the number of bytes.
    pub(crate) fn write_from_user(&self, range: DeviceRange, from: UserSpan) -> Result<usize> {
        let (bytes, offset) = self.store.find(dma::offset(range))?;
        bytes.write_from_user(offset, from)
    }
}

impl MemoryOps for Vram {
    fn copy(&self, job: CopyJob) {
        let copy = dma::describe(&job.copy(), VRAM);
        self.copy_engine.submit(copy, Mapping::new(job, None));
    }

    fn connection(&self, _other: &Self, _kind: MemoryKind) -> Connection {
        // The library takes the lesser of the connections that both devices report.
        match self.settings.connection() {
            0 => Connection::None,
            1 => Connection::Migratable,
            _ => Connection::Unified,
        }
    }

    fn copy_to(&self, other: &Self, job: CopyJob) {
        let copy = dma::describe(&job.copy(), dma::PEER);
        let peer = Some(other.store.clone());
        self.copy_engine.submit(copy, Mapping::new(job, peer));
    }

    fn copy_sync(&self, copy: &CopyDesc<'_>) -> Option<Result> {
        let window = Window::new(copy, None);
        self.copy_engine
            .copy_now(&dma::describe(copy, VRAM), &window)
    }

    fn ring_doorbell(&self) {
        self.copy_engine.wake_threads();
    }

    fn cancelled(&self) {
        self.copy_engine.drop_aborted();
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
