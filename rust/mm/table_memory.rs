// SPDX-License-Identifier: GPL-2.0

//! Memory of page tables that a hardware walker reads.
//!
//! The library writes this memory and the device reads it. The library does not depend on its
//! contents, so that a device which overwrites it cannot corrupt the library's state. Words of it
//! can be read by software that emulates a device
//! ([`AccessSection::table_word`](crate::mirror::AccessSection::table_word)).
//!
//! C headers: [`include/linux/dma-mapping.h`](srctree/include/linux/dma-mapping.h),
//! [`include/linux/gfp.h`](srctree/include/linux/gfp.h)

#[cfg(CONFIG_PCI)]
use super::bar_tables::{
    BarTables,
    Region,
    TableUser, //
};
use super::dma::DmaDevice;
use crate::kernel::{
    reentry::ReentryGuard,
    shrinker::owner::ReclaimOwner, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        Arc, //
    }, //
};

mod units;

pub use units::TableUnit;
pub(crate) use units::TableUnits;

/// Number of table pages, and their bytes.
static PAGES: Atomic<i64> = Atomic::new(0);
static BYTES: Atomic<i64> = Atomic::new(0);

/// Adds `pages` table pages and `bytes`, which include their metadata, to the totals of all tables,
/// whether in use or cached. Negative values subtract.
///
/// # Context
///
/// Any.
// Not inlined, so that all modules use the same counters.
#[inline(never)]
pub(crate) fn account(pages: i64, bytes: i64) {
    PAGES.add(pages, Relaxed);
    BYTES.add(bytes, Relaxed);
}

/// Returns the number of table pages of all tables, and their bytes.
pub(crate) fn totals() -> (i64, i64) {
    (PAGES.load(Relaxed), BYTES.load(Relaxed))
}

/// Location of the page tables of a hardware walker, and the address at which the walker finds the
/// device's own memory.
///
/// # Examples
///
/// ```
/// use kernel::sync::Arc;
/// use rust_hmm::mm::dma::DmaDevice;
/// use rust_hmm::mm::table_memory::TableMemory;
///
/// /// Returned by `Device::table_memory()` of a device that walks its tables by DMA, and finds its
/// /// own memory at 1 TiB.
/// fn table_memory(device: &Arc<DmaDevice>) -> TableMemory {
///     TableMemory::coherent(device).with_device_pages_at(1 << 40)
/// }
/// ```
pub struct TableMemory {
    kind: TableMemoryKind,
    device_pages: u64,
    writes: Option<Arc<dyn TableWrites>>,
}

/// Registration of a page table; see [`TableMemory::join`].
#[derive(Default)]
pub(crate) struct TableRegistration {
    #[cfg(CONFIG_PCI)]
    _member: Option<TableUser>,
}

/// Type of the memory of the tables.
#[derive(Clone)]
enum TableMemoryKind {
    None,
    Plain,
    Coherent(Arc<DmaDevice>),
    #[cfg(CONFIG_PCI)]
    Bar(Arc<BarTables>),
}

/// Callbacks of a driver after writes to its tables: to clean a cache, or to have an engine copy
/// the entries to the memory that the walker reads.
///
/// A table is written before the entry that links it. An operation that a call starts must become
/// visible to the device before the operation of a later call.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::sync::Arc;
/// use kernel::sync::atomic::Atomic;
/// use kernel::sync::atomic::ordering::Relaxed;
/// use rust_hmm::mm::table_memory::TableMemory;
/// use rust_hmm::mm::table_memory::TableWrites;
///
/// /// Counts the bytes that the device has to fetch again.
/// struct Written(Atomic<u64>);
///
/// impl TableWrites for Written {
///     fn written(&self, _address: u64, bytes: usize) {
///         self.0.fetch_add(bytes as u64, Relaxed);
///     }
/// }
///
/// let writes = Arc::new(Written(Atomic::new(0)), GFP_KERNEL)?;
/// let memory = TableMemory::plain().with_writes(writes);
/// # Ok::<(), Error>(())
/// ```
pub trait TableWrites: Send + Sync {
    /// Called after `bytes` bytes at the device address `address` were written. They are
    /// consecutive entries of one table.
    ///
    /// # Context
    ///
    /// The table lock may be held. Must not sleep, or allocate with reclaim.
    fn written(&self, address: u64, bytes: usize);

    /// Called before a flush is started. All earlier writes must be visible to the device before it
    /// looks up the flushed translations again.
    ///
    /// # Context
    ///
    /// As [`Self::written`].
    fn publish(&self) {}
}

impl TableMemory {
    const fn of(kind: TableMemoryKind) -> Self {
        Self {
            kind,
            device_pages: 0,
            writes: None,
        }
    }

    /// Returns table memory for a device without a hardware walker; no tables are allocated.
    ///
    /// # Context
    ///
    /// Any.
    pub const fn none() -> Self {
        Self::of(TableMemoryKind::None)
    }

    /// Returns the default for a device whose system memory is mapped for `dma`: coherent memory of
    /// a [bound](DmaDevice::bound) device, otherwise none. Code on the CPU performs the accesses of
    /// a software device, and walks the library's tree.
    pub(crate) fn default_of(dma: Option<&Arc<DmaDevice>>) -> Self {
        match dma {
            Some(device) if device.is_bound() => Self::coherent(device),
            _ => Self::none(),
        }
    }

    /// Returns table memory in kernel pages, with physical addresses.
    ///
    /// # Context
    ///
    /// Any.
    pub const fn plain() -> Self {
        Self::of(TableMemoryKind::Plain)
    }

    /// Returns table memory in coherent DMA memory of `device`, with DMA addresses.
    ///
    /// The memory is freed when the device is closed, for example because its driver is unbound.
    /// After that, changes of the page table are not visible to the device. The driver must stop
    /// the walker before.
    ///
    /// # Context
    ///
    /// Any.
    pub fn coherent(device: &Arc<DmaDevice>) -> Self {
        Self::of(TableMemoryKind::Coherent(device.clone()))
    }

    /// Returns table memory in a part of the device's own memory that the CPU writes through a BAR.
    ///
    /// The memory is unmapped when it is released, for example because the driver is unbound. After
    /// that, changes of the page table are not visible to the device. The driver must stop the
    /// walker before.
    ///
    /// # Context
    ///
    /// Any.
    #[cfg(CONFIG_PCI)]
    pub fn in_bar(tables: &Arc<BarTables>) -> Self {
        Self::of(TableMemoryKind::Bar(tables.clone()))
    }

    /// Registers the page table of `owner` until the returned object is dropped. Its free table
    /// pages are reclaimed when the device's own memory has no room for tables left.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn join(&self, owner: &Arc<ReclaimOwner>) -> Result<TableRegistration> {
        match &self.kind {
            #[cfg(CONFIG_PCI)]
            TableMemoryKind::Bar(tables) => Ok(TableRegistration {
                _member: Some(Region::join(tables.region(), owner)?),
            }),
            _ => Ok(TableRegistration::default()),
        }
    }

    /// Sets the callbacks to be called after each write and before each flush.
    ///
    /// # Context
    ///
    /// Any.
    pub fn with_writes(mut self, writes: Arc<dyn TableWrites>) -> Self {
        self.writes = Some(writes);
        self
    }

    /// Sets the address at which the walker finds the device's own memory, a multiple of 2 MiB and
    /// of the size of a leaf. The default is 0: entries then contain device page numbers.
    ///
    /// # Context
    ///
    /// Any.
    pub fn with_device_pages_at(mut self, address: u64) -> Self {
        self.device_pages = address;
        self
    }

    /// Returns whether the device has a hardware walker.
    pub(crate) fn is_some(&self) -> bool {
        !matches!(self.kind, TableMemoryKind::None)
    }

    /// Returns the address at which the walker finds the device's own memory.
    pub(crate) fn device_pages(&self) -> u64 {
        self.device_pages
    }

    /// Reports that consecutive entries were written. Context: see [`TableWrites::written`].
    #[inline]
    pub(crate) fn written(&self, address: u64, bytes: usize) {
        if let Some(writes) = &self.writes {
            let _within = ReentryGuard::enter();
            writes.written(address, bytes);
        }
    }

    /// Makes all earlier writes visible to the device. Called before a flush is started. Context:
    /// as [`Self::written`].
    #[inline]
    pub(crate) fn publish(&self) {
        #[cfg(CONFIG_PCI)]
        if let TableMemoryKind::Bar(tables) = &self.kind {
            tables.region().publish();
        }
        if let Some(writes) = &self.writes {
            let _within = ReentryGuard::enter();
            writes.publish();
        }
    }
}

/// Write barrier for tables: a device that observes a later write observes the earlier writes, too.
/// Context: any.
#[inline(always)]
pub(crate) fn order_writes() {
    // On x86-64 stores are not reordered, and the stores to tables are release stores for the
    // compiler.
    #[cfg(not(CONFIG_X86_64))]
    // SAFETY: `dma_wmb()` has no requirements.
    unsafe {
        crate::bindings::rust_hmm_table_wmb()
    };
}
