// SPDX-License-Identifier: GPL-2.0

//! The operations that a driver implements for its device.

use super::Walkers;
use crate::{
    debug::events::Event,
    memory::{
        Memory,
        MemoryOps, //
    },
    mm::{
        addr::PageRange,
        dma::DmaDevice,
        table_memory::TableMemory, //
    },
    pgtable::Format, //
};
use kernel::sync::Arc;

/// Operations of a device that uses the address space of a process. Implemented by the driver.
///
/// # Examples
///
/// ```
/// use rust_hmm::memory::Memory;
/// use rust_hmm::memory::NoMemory;
/// use rust_hmm::mirror::Device;
/// use rust_hmm::mm::addr::PageRange;
/// use rust_hmm::pgtable::Radix4;
///
/// /// A device without memory, whose TLB flushes have numbers.
/// struct Gpu {
///     start_flush: fn(PageRange) -> u64,
///     wait_for_flush: fn(u64),
/// }
///
/// impl Device for Gpu {
///     type Memory = NoMemory;
///     type Format = Radix4;
///     type Walker = ();
///     type Flush = u64;
///
///     fn memory(&self) -> Option<&Memory<NoMemory>> {
///         None
///     }
///
///     fn flush_start(&self, range: PageRange) -> u64 {
///         (self.start_flush)(range)
///     }
///
///     fn flush_wait(&self, flush: u64) {
///         (self.wait_for_flush)(flush);
///     }
/// }
/// ```
pub trait Device: Send + Sync + Sized + 'static {
    /// The driver's view of its memory.
    type Memory: MemoryOps;

    /// Format of the device page table.
    type Format: Format;

    /// Data of each walker of a software device, such as a TLB; `()` for other devices.
    type Walker: Send + Unpin + 'static;

    /// An outstanding TLB flush.
    type Flush: Send;

    /// Returns the device's own memory, to which its faults migrate, or `None` if the device has no
    /// memory.
    ///
    /// # Context
    ///
    /// Any lock of the library may be held. Must not sleep.
    fn memory(&self) -> Option<&Memory<Self::Memory>>;

    /// Returns tile `index`, which is a further memory of a device with several. The library
    /// enumerates the tiles from 0 until the first `None`, and at most 64.
    ///
    /// The tiles must exist before the first mirror is created, and as long as the device. A memory
    /// whose owner differs from that of [`Self::memory`] is ignored, see [`Memory::new_tile`];
    /// [`Self::memory`] itself is ignored, too.
    ///
    /// Pages of a tile are mapped in place if [`MemoryOps::connection`] of both memories returns
    /// [`Unified`]. Otherwise a device fault moves them to [`Self::memory`].
    ///
    /// # Context
    ///
    /// The table lock may be held. Must not sleep.
    ///
    /// [`Unified`]: crate::connection::Connection::Unified
    fn tile(&self, index: usize) -> Option<&Memory<Self::Memory>> {
        let _ = index;
        None
    }

    /// Returns the device for which system memory is mapped. Must return a device if the format has
    /// DMA addresses ([`DmaFormat`](crate::pgtable::DmaFormat)), and `None` otherwise. Called once
    /// for each mirror.
    ///
    /// A page is mapped for DMA when its entry is installed. It is unmapped after the entry was
    /// removed and [`Self::flush_wait`] has returned.
    ///
    /// # Context
    ///
    /// May sleep.
    fn dma(&self) -> Option<&Arc<DmaDevice>> {
        None
    }

    /// Returns the memory for the page table that the hardware walks. Called once for each mirror.
    /// [`Mirror::table_root`](super::Mirror::table_root) returns the address for the hardware.
    ///
    /// The default is [`TableMemory::coherent`] memory of [`Self::dma`] if that was made by
    /// [`DmaDevice::bound`], and [`TableMemory::none`] otherwise. A device that finds its own
    /// memory at another address than 0 overrides it, see [`TableMemory::with_device_pages_at`].
    ///
    /// # Context
    ///
    /// May sleep.
    fn table_memory(&self) -> TableMemory {
        TableMemory::default_of(self.dma())
    }

    /// Returns whether [`Self::flush_wait`] may sleep now. If it may, the library refuses
    /// non-blockable events. The OOM reaper then skips the mirrored memory, and the process frees
    /// it when it exits.
    ///
    /// # Context
    ///
    /// A non-blockable event is handled. Must not sleep. Blocking functions of the library return
    /// `EDEADLK`.
    fn flush_sleeps(&self) -> bool {
        true
    }

    /// Returns the walkers that access memory through mirrors of this device. Called once for each
    /// mirror.
    ///
    /// # Context
    ///
    /// May sleep.
    fn walkers(&self) -> Option<Arc<Walkers<Self::Walker>>> {
        None
    }

    /// Returns whether the driver needs events now. [`Self::event`] is called only then.
    ///
    /// # Context
    ///
    /// As for [`Self::event`].
    #[inline]
    fn wants_events(&self) -> bool {
        false
    }

    /// Reports an event of the memory that mirror number `mirror` of this device maps, see
    /// [`crate::debug::events`].
    ///
    /// # Context
    ///
    /// Called during the operation that the event describes, including non-blockable invalidations.
    /// The table lock may be held. Must not sleep or allocate with reclaim. Functions of this
    /// library that may sleep return `EDEADLK`.
    fn event(&self, mirror: u32, event: &Event) {
        let _ = (mirror, event);
    }

    /// Starts to flush all translations of `range` from the device's TLBs.
    ///
    /// Entries in the range were just removed or write-protected. A translation that a walk found
    /// before this call must not be used after [`Self::flush_wait`].
    ///
    /// # Context
    ///
    /// The table lock is held. Must not allocate with reclaim. Functions of this library that may
    /// sleep return `EDEADLK`. Walkers may be entered.
    fn flush_start(&self, range: PageRange) -> Self::Flush;

    /// Flushes all translations of `range` from `walker`, as a part of `flush`. Called once for
    /// each of [`Self::walkers`], before [`Self::flush_wait`]. The default implementation is for
    /// walkers that cache no translations.
    ///
    /// # Context
    ///
    /// The walker's spinlock is held. The table lock may be held. Must not sleep. Functions of this
    /// library that may sleep return `EDEADLK`, and so does
    /// [`Mirror::enter`](super::Mirror::enter) for this walker.
    fn flush_walker(&self, flush: &Self::Flush, walker: &mut Self::Walker, range: PageRange) {
        let _ = (flush, walker, range);
    }

    /// Waits until `flush` has completed. Afterwards the device must not use a translation that was
    /// flushed.
    ///
    /// # Context
    ///
    /// The table lock may be held. Must not allocate with reclaim. Functions of this library that
    /// may sleep return `EDEADLK`.
    fn flush_wait(&self, flush: Self::Flush);
}
