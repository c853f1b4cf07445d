// SPDX-License-Identifier: GPL-2.0

//! Device memory with `struct page`s: `ZONE_DEVICE`, private or coherent.
//!
//! Memory is divided into chunks of [`CHUNK_PAGES`], which are added when they are needed and
//! removed when they are idle. A chunk is looked up by number in a table of two levels, and by page
//! frame in a maple tree; `hints.rs` records which chunks may have free folios. Therefore the cost
//! of an operation on a page does not depend on the number of chunks. A device page is identified
//! by its *device page number*, which counts from 0 over all chunks.
//!
//! - `ops` has the callbacks of the pages.
//! - `chunk`, `chunks` and `region` have the chunks and their page frames. `growth` adds chunks and
//!   removes them.
//! - `alloc` allocates folios, `lookup` converts between page frames and numbers, and `rmap`
//!   isolates and splits folios.
//! - `owned` and `owner` have the ownership of one memory and of several.
//!
//! C header: [`include/linux/memremap.h`](srctree/include/linux/memremap.h)

use super::{
    addr::{
        PMD_PAGES,
        PMD_SIZE, //
    },
    range_map::RangeMap, //
};
use crate::{
    bindings,
    kernel::{
        identity::{
            MemoryId,
            PgmapOwner, //
        },
        lock_classes, //
    }, //
};
use kernel::{
    page::PAGE_SHIFT,
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        Arc,
        Mutex, //
    }, //
};

mod alloc;
mod chunk;
mod chunks;
mod growth;
mod hints;
mod lookup;
mod ops;
mod owned;
mod owner;
mod region;
mod rmap;
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
mod tests;

pub use super::cpu_fault::{
    CpuFault,
    FaultError, //
};
pub(crate) use alloc::Row;
use chunk::{
    Chunk,
    FrameGuard, //
};
use chunks::Chunks;
use hints::{
    HintClass,
    Hints, //
};
pub use ops::DevicePageOps;
pub use owned::OwnedDevicePages;
pub use owner::Owner;
pub use rmap::MmapLocks;

/// Bytes of one chunk: 256 MiB, as in the kernel's `lib/test_hmm.c`. The kernel adds device memory
/// in sections of at most 128 MiB.
const CHUNK_BYTES: u64 = 256 << 20;

/// Pages of one chunk.
pub const CHUNK_PAGES: usize = (CHUNK_BYTES >> PAGE_SHIFT) as usize;

/// Highest physical address of any machine. The kernel enforces the actual limit.
const LAST_PHYSICAL: u64 = (1 << 52) - 1;

/// Maximum number of pages of one device: the number of page frames in the physical address space.
pub const MAX_PAGES: usize = ((LAST_PHYSICAL + 1) >> PAGE_SHIFT) as usize;

/// System memory that the kernel needs for a chunk, in bytes: a `struct page` of 64 bytes for each
/// page.
pub const CHUNK_OVERHEAD: usize = CHUNK_PAGES * 64;

/// Type of device memory, which determines how the CPU accesses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// `MEMORY_DEVICE_PRIVATE`: the CPU cannot address it. A CPU access faults, and the fault
    /// migrates the page to system memory.
    Private,
    /// `MEMORY_DEVICE_COHERENT`: the CPU addresses it like its own memory.
    Coherent {
        /// Physical address of the memory in bytes, a multiple of [`PMD_SIZE`]. The address range
        /// has the size of the memory's limit, rounded up to 256 MiB. The driver must not request
        /// the region, because the library does.
        start: u64,
    },
}

/// Consecutive device pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRange {
    /// Device page number of the first one.
    pub first: usize,
    /// Number of pages.
    pub count: usize,
}

/// Memory of one device. A driver owns it as [`OwnedDevicePages`].
///
/// Dropping it waits until all pages are free, so the caller must migrate or evict them first.
///
/// # Examples
///
/// ```
/// use rust_hmm::mm::device_pages::DevicePageOps;
/// use rust_hmm::mm::device_pages::DevicePages;
///
/// /// Returns the number of pages that can still be allocated or added.
/// fn room<T: DevicePageOps>(pages: &DevicePages<T>) -> usize {
///     pages.limit().saturating_sub(pages.used())
/// }
/// ```
///
/// # Invariants
///
/// Pinned; chunks point back here.
#[pin_data(PinnedDrop)]
pub struct DevicePages<T: DevicePageOps> {
    chunks: Chunks<T>,
    hints: Hints,
    owner: Arc<Owner>,
    /// Whether the caller has provided the owner, so that other memories may share it.
    shared: bool,
    /// First number of this memory in the owner's numbers.
    first: usize,
    /// The kernel's callbacks. A separate copy, because its address identifies this memory.
    ops: bindings::dev_pagemap_ops,
    /// Number of the chunk, plus one, by page frame. May contain stale frames of removed chunks.
    #[pin]
    frames: RangeMap,
    /// Chunk of the most recent lookup of a frame.
    recent: Atomic<usize>,
    kind: MemoryKind,
    /// Lower bound of the page frames of all chunks.
    lowest: Atomic<usize>,
    max_pages: usize,
    /// Number of pages in use.
    used: Atomic<usize>,
    /// Number of pages of the chunks that are added.
    there: Atomic<usize>,
    /// Held while a chunk is added or removed.
    #[pin]
    adding: Mutex<()>,
    data: T,
}

// SAFETY: Chunks are `Send + Sync`, and so is `T`.
unsafe impl<T: DevicePageOps> Send for DevicePages<T> {}
// SAFETY: Chunks are `Send + Sync`, and so is `T`.
unsafe impl<T: DevicePageOps> Sync for DevicePages<T> {}

impl<T: DevicePageOps> DevicePages<T> {
    /// Creates memory of at most `max_pages` pages; see [`OwnedDevicePages::of_owner`].
    ///
    /// # Errors
    ///
    /// - Those of [`OwnedDevicePages::of_owner`].
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn of_owner(
        owner: Option<Arc<Owner>>,
        kind: MemoryKind,
        max_pages: usize,
        data: T,
    ) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            chunks: {
                if max_pages > MAX_PAGES {
                    return Err(EINVAL);
                }
                let count = max_pages.div_ceil(CHUNK_PAGES);
                if let MemoryKind::Coherent { start } = kind {
                    // CAST: At most the number of physical addresses.
                    let bytes = (count.max(1) as u64).checked_mul(CHUNK_BYTES).ok_or(EINVAL)?;
                    let last = start.checked_add(bytes).ok_or(EINVAL)? - 1;
                    let aligned = start % PMD_SIZE as u64 == 0;
                    if start == 0 || !aligned || last > LAST_PHYSICAL {
                        return Err(EINVAL);
                    }
                }
                Chunks::new(count)?
            },
            hints: Hints::new(max_pages.div_ceil(CHUNK_PAGES))?,
            shared: owner.is_some(),
            owner: match owner {
                Some(owner) => owner,
                None => Owner::new()?,
            },
            first: owner.give(max_pages.next_multiple_of(CHUNK_PAGES))?,
            ops: Chunk::<T>::OPS,
            frames <- RangeMap::new(),
            recent: Atomic::new(0),
            kind,
            lowest: Atomic::new(usize::MAX),
            max_pages,
            used: Atomic::new(0),
            there: Atomic::new(0),
            adding <- {
                let (name, key) = lock_classes::adding();
                Mutex::new((), name, key)
            },
            data,
        }? Error)
    }

    /// Returns the data of the callbacks.
    ///
    /// # Context
    ///
    /// Any.
    pub fn data(&self) -> &T {
        &self.data
    }

    /// Returns the type of the memory.
    ///
    /// # Context
    ///
    /// Any.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// Returns the owner of the device: `dev_pagemap.owner`, which the memories of a device share.
    ///
    /// # Context
    ///
    /// Any.
    pub fn owner(&self) -> PgmapOwner {
        self.owner.name()
    }

    /// Returns the kernel's callbacks, at an address that is unique to this memory.
    fn ops(&self) -> *const bindings::dev_pagemap_ops {
        &self.ops
    }

    /// Returns the identity of this memory: `dev_pagemap.ops`.
    pub(crate) fn tile(&self) -> MemoryId {
        MemoryId::of(&self.ops)
    }

    /// Returns the first number of this memory in device PTEs, which contain the owner's numbers.
    #[inline]
    pub(crate) fn first(&self) -> usize {
        self.first
    }

    /// Returns whether the owner may have other memories. If not, the owner's numbers equal the
    /// device page numbers of this memory.
    #[inline]
    pub(crate) fn shares_owner(&self) -> bool {
        self.shared
    }

    /// Returns the allocated chunks, in the order of their numbers.
    fn chunks(&self) -> impl Iterator<Item = &Chunk<T>> + Clone {
        self.chunks.iter()
    }

    fn chunk(&self, number: usize) -> Option<&Chunk<T>> {
        self.chunks.get(number / CHUNK_PAGES)
    }

    /// Returns the chunks that are marked in the hints of `class`.
    fn hinted(&self, class: HintClass) -> impl Iterator<Item = &Chunk<T>> {
        let mut from = 0;
        core::iter::from_fn(move || {
            let index = self.hints.find(class, from)?;
            from = index + 1;
            self.chunks.get(index)
        })
    }

    /// Returns the number of pages in use.
    ///
    /// # Context
    ///
    /// Any.
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Returns the number of pages that were added and are not withdrawn.
    ///
    /// # Context
    ///
    /// Any.
    pub fn total(&self) -> usize {
        // Skips chunks that are not added, whose pages are all withdrawn.
        let partly = self
            .hinted(HintClass::Withdrawn)
            .filter(|chunk| chunk.is_there());
        let out = partly.map(|chunk| chunk.free.withdrawn()).sum();
        self.there.load(Relaxed).saturating_sub(out)
    }

    /// Returns the maximum number of pages.
    ///
    /// # Context
    ///
    /// Any.
    pub fn limit(&self) -> usize {
        self.max_pages
    }

    /// Called after the folio with the pages `range` of `chunk` was freed. `is_used` is whether
    /// other pages of the chunk are in use. Context: any.
    // Always inlined, so that the number of pages is a compile-time constant.
    #[inline(always)]
    fn pages_released(&self, chunk: &Chunk<T>, range: DeviceRange, is_used: bool) {
        if !is_used {
            self.hints.set(HintClass::Idle, chunk.index);
        }
        self.note_room(chunk, Some(range.first % CHUNK_PAGES));
        let count = range.count;
        T::pages_released(self, range);
        // Last: until then, a drop of the memory must not wait for the current task.
        self.used.fetch_sub(count, Relaxed);
    }

    /// Prevents the removal of the chunk of device page `number` while the returned object exists.
    pub(super) fn frame_guard(&self, number: usize) -> Option<FrameGuard<'_>> {
        self.chunk(number)?.frame_guard()
    }

    /// Returns the number of pages of the block that begins at `number`: [`PMD_PAGES`], or fewer if
    /// the memory ends within it.
    pub(crate) fn pages_in_block(&self, number: usize) -> usize {
        self.chunk(number)
            .map_or(0, |chunk| chunk.free.pages_in_block(number % CHUNK_PAGES))
    }

    /// Returns the number of pages in use in the block of [`PMD_PAGES`] that begins at `number`.
    ///
    /// # Context
    ///
    /// Any.
    pub fn used_in_block(&self, number: usize) -> usize {
        self.chunk(number)
            .map_or(0, |chunk| chunk.free.used_in_block(number % CHUNK_PAGES))
    }

    /// Returns the blocks of device pages that have pages in use.
    ///
    /// # Context
    ///
    /// Any.
    pub fn used_blocks(&self) -> impl Iterator<Item = DeviceRange> + Clone + '_ {
        let used = self.chunks().filter(|chunk| chunk.free.used() != 0);
        used.flat_map(|chunk| {
            (0..chunk.free.len())
                .step_by(PMD_PAGES)
                .filter(|first| chunk.free.used_in_block(*first) != 0)
                .map(|first| DeviceRange {
                    first: chunk.index * CHUNK_PAGES + first,
                    count: chunk.free.pages_in_block(first),
                })
        })
    }
}

#[pinned_drop]
impl<T: DevicePageOps> PinnedDrop for DevicePages<T> {
    fn drop(self: Pin<&mut Self>) {
        for chunk in self.chunks().filter(|chunk| chunk.is_there()) {
            // SAFETY: The chunk is added. `drop` has exclusive access, so no other thread uses it.
            unsafe { chunk.unmap() };
        }
    }
}
