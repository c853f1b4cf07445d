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
use super::dma::{
    DmaDevice,
    DmaUser, //
};
use crate::{
    bindings,
    kernel::{
        lock_classes,
        rcu_slot::{
            RcuSlot,
            Retired, //
        },
        reentry::ReentryGuard,
        shrinker::owner::ReclaimOwner,
        word, //
    }, //
};
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    ffi::c_void,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        rcu::Guard,
        Arc,
        Mutex, //
    }, //
};

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
        bindings::rust_hmm_table_wmb()
    };
}

/// One table.
#[derive(Clone, Copy)]
struct TableArea {
    /// Dangling if the table is behind a BAR.
    memory: NonNull<c_void>,
    address: u64,
}

/// Tables that are allocated together. Several tables that are smaller than a CPU page share one.
///
/// # Invariants
///
/// Each piece is `bytes` bytes of zeroed memory that is ours, aligned to `bytes`, of that `kind`.
/// The first of every `step()` pieces is the start of an allocation of `allocation()` bytes, which
/// has these pieces in order. A device of which it is coherent memory is not unbound before this is
/// dropped.
struct TableAreas {
    list: KVVec<TableArea>,
    bytes: usize,
    kind: TableMemoryKind,
}

// SAFETY: The object owns the memory by the type invariant, and any thread may free it.
unsafe impl Send for TableAreas {}
// SAFETY: A shared reference gives access to the memory as atomics only, through `TableUnit`.
unsafe impl Sync for TableAreas {}

impl TableAreas {
    /// Allocates at least `count` tables of `bytes` bytes, a power of two. Context: may sleep.
    ///
    /// # Safety
    ///
    /// A device of `kind` is open, and is not unbound before the returned object is dropped.
    unsafe fn new(kind: TableMemoryKind, count: usize, bytes: usize) -> Result<Self> {
        // INVARIANT: There are no pieces yet. By the function's requirements the device stays
        // bound.
        let mut this = Self {
            list: KVVec::new(),
            bytes,
            kind,
        };
        let size = this.allocation();
        let allocations = count.div_ceil(this.step());
        this.list
            .reserve(allocations * this.step(), GFP_KERNEL_ACCOUNT)?;
        for _ in 0..allocations {
            let mut address = 0;
            let memory = match &this.kind {
                TableMemoryKind::None => return Err(EINVAL),
                // SAFETY: `size` is a power of two and at least a page.
                TableMemoryKind::Plain => unsafe {
                    bindings::rust_hmm_table_alloc(size, &mut address)
                },
                // SAFETY: The device is bound during this call by the function's requirements.
                TableMemoryKind::Coherent(device) => unsafe {
                    bindings::rust_hmm_dma_buffer(device.as_raw(), size, &mut address)
                },
                #[cfg(CONFIG_PCI)]
                TableMemoryKind::Bar(tables) => {
                    address = tables.region().alloc(size)?;
                    NonNull::dangling().as_ptr()
                }
            };
            let memory = NonNull::new(memory).ok_or(ENOMEM)?;
            for at in (0..size).step_by(bytes) {
                let piece = TableArea {
                    // `NonNull::byte_add()` would require memory of the kernel.
                    memory: NonNull::new(memory.as_ptr().wrapping_byte_add(at)).ok_or(EINVAL)?,
                    // CAST: From `usize` to 64 bits.
                    address: address + at as u64,
                };
                // INVARIANT: Just allocated. There is room.
                this.list.push(piece, GFP_KERNEL_ACCOUNT)?;
            }
        }
        Ok(this)
    }

    /// Returns the number of bytes that are allocated at once.
    fn allocation(&self) -> usize {
        self.bytes.max(PAGE_SIZE)
    }

    /// Returns the number of pieces of an allocation.
    fn step(&self) -> usize {
        self.allocation() / self.bytes
    }
}

impl Drop for TableAreas {
    fn drop(&mut self) {
        let bytes = self.allocation();
        for piece in self.list.iter().step_by(self.step()) {
            let memory = piece.memory.as_ptr();
            match &self.kind {
                TableMemoryKind::None => {}
                // SAFETY: `rust_hmm_dma_buffer` allocated the memory for this device with this
                // size. The device is bound by the type invariant. `drop` has exclusive access, so
                // the memory is not borrowed.
                TableMemoryKind::Coherent(device) => unsafe {
                    bindings::rust_hmm_dma_buffer_free(
                        device.as_raw(),
                        bytes,
                        memory,
                        piece.address,
                    )
                },
                // SAFETY: `rust_hmm_table_alloc` allocated the memory with this size. `drop` has
                // exclusive access, so it is not borrowed.
                TableMemoryKind::Plain => unsafe { bindings::rust_hmm_table_free(memory, bytes) },
                #[cfg(CONFIG_PCI)]
                TableMemoryKind::Bar(tables) => tables.region().free(piece.address, bytes),
            }
        }
    }
}

/// Slot of tables that are freed by their owner or when the device is closed, whichever is first.
#[pin_data]
struct TableSlot {
    pieces: RcuSlot<TableAreas>,
    // Held while the tables are freed, so that `DmaDevice::close` waits for an owner that frees
    // them.
    #[pin]
    freeing: Mutex<()>,
}

impl DmaUser for TableSlot {
    fn close(&self) -> usize {
        let _freeing = self.freeing.lock();
        let mut gone = Retired::<_, 1>::empty();
        gone.take(&self.pieces);
        // Waits for concurrent writers, and frees the memory. The driver has stopped the walker.
        drop(gone);
        0
    }
}

/// Tables that are allocated together. Dropping the object frees them.
///
/// # Context
///
/// The drop may sleep, and may be called from reclaim.
pub(crate) struct TableUnits {
    place: Arc<TableSlot>,
    device: Option<Arc<DmaDevice>>,
    allocated: usize,
}

impl TableUnits {
    /// Allocates `count` tables of `bytes` bytes, a power of two. Returns `None` for
    /// [`TableMemory::none`].
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: no memory is available.
    /// - `ENODEV`: the device is closed.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn new(memory: &TableMemory, count: usize, bytes: usize) -> Result<Option<Self>> {
        let device = match &memory.kind {
            TableMemoryKind::None => return Ok(None),
            TableMemoryKind::Coherent(device) => Some(device.clone()),
            _ => None,
        };
        let opened = device.clone();
        let _open = match &opened {
            Some(device) => Some(device.begin()?),
            None => None,
        };
        // SAFETY: `_open` keeps the device open in this function. When it closes afterwards it
        // drops the pieces of `place`, which is added below; where that fails, they are dropped
        // before `_open`.
        let pieces = unsafe { TableAreas::new(memory.kind.clone(), count, bytes) }?;
        // OVERFLOW: All of it was allocated.
        let allocated = pieces.list.len() * bytes;
        let (name, key) = lock_classes::table_memory();
        let place = Arc::pin_init(
            pin_init!(TableSlot {
                pieces: RcuSlot::empty(),
                freeing <- Mutex::new((), name, key),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        if place
            .pieces
            .put(KBox::new(pieces, GFP_KERNEL_ACCOUNT)?)
            .is_err()
        {
            return Err(EBUSY);
        }
        if let Some(device) = &device {
            device.add(place.clone())?;
        }
        Ok(Some(Self {
            place,
            device,
            allocated,
        }))
    }

    /// Returns the number of allocated bytes. Tables that are smaller than a CPU page may leave a
    /// part of it unused. Context: any.
    pub(crate) fn allocated(&self) -> usize {
        self.allocated
    }

    /// Returns table `index`, or `None` if the device is closed. Context: any.
    #[inline]
    pub(crate) fn get<'g>(&'g self, guard: &'g Guard, index: usize) -> Option<TableUnit<'g>> {
        let pieces = self.place.pieces.get(guard)?;
        let piece = pieces.list.get(index)?;
        let (memory, in_bar) = match &pieces.kind {
            #[cfg(CONFIG_PCI)]
            TableMemoryKind::Bar(tables) => {
                let region = tables.region();
                (region.table(guard, piece.address, pieces.bytes)?.0, true)
            }
            _ => (piece.memory, false),
        };
        // INVARIANT: The piece stays for as long as the guard, by the invariant of `TableAreas`, or
        // of `BarTable`.
        Some(TableUnit {
            memory,
            bytes: pieces.bytes,
            address: piece.address,
            in_bar,
            _pieces: PhantomData,
        })
    }
}

impl Drop for TableUnits {
    fn drop(&mut self) {
        {
            let _freeing = self.place.freeing.lock();
            // SAFETY: `new` has put the pieces there, and `get` borrows this object, which is
            // borrowed exclusively now.
            drop(unsafe { self.place.pieces.take_unread() });
        }
        if let Some(device) = &self.device {
            let place: Arc<dyn DmaUser> = self.place.clone();
            device.remove(&place);
        }
    }
}

/// A table that a device may read concurrently.
///
/// # Invariants
///
/// `memory` is `bytes` bytes that stay there for `'g`, aligned to words, which the kernel accesses
/// by whole words only: as atomics, or if it is `in_bar`, as memory of a device.
pub struct TableUnit<'g> {
    memory: NonNull<c_void>,
    bytes: usize,
    address: u64,
    in_bar: bool,
    _pieces: PhantomData<&'g TableAreas>,
}

macro_rules! accesses {
    ($type:ty, $write:ident, $store:ident, $write_bar:ident) => {
        /// Writes the entry `slot` with release ordering; see also [`order_writes`]. Does nothing
        /// if `slot` is beyond the end. Context: any.
        #[inline]
        pub(crate) fn $write(&self, slot: usize, value: $type) {
            if slot >= self.bytes / size_of::<$type>() {
                return;
            }
            // SAFETY: Within the memory, by the type invariant and the check.
            let place = unsafe { self.memory.as_ptr().cast::<$type>().add(slot) };
            if self.in_bar {
                // SAFETY: Memory of a device by the type invariant.
                unsafe { bindings::$write_bar(place.cast(), value) };
                return;
            }
            // SAFETY: Valid and aligned by the type invariant. A device accesses the memory
            // concurrently, but by whole words only.
            word::$store(unsafe { Atomic::<$type>::from_ptr(place) }, value);
        }
    };
}

impl TableUnit<'_> {
    accesses!(u32, write_u32, store_u32, rust_hmm_bar_write32);
    accesses!(u64, write_u64, store_u64, rust_hmm_bar_write64);

    /// Reads the word `slot` with acquire ordering, for software that emulates a device. Returns 0
    /// if `slot` is beyond the end. Context: any.
    pub(crate) fn read_u64(&self, slot: usize) -> u64 {
        if slot >= self.bytes / size_of::<u64>() {
            return 0;
        }
        // SAFETY: Within the memory, by the type invariant and the check.
        let place = unsafe { self.memory.as_ptr().cast::<u64>().add(slot) };
        if self.in_bar {
            // SAFETY: Memory of a device by the type invariant.
            return unsafe { bindings::rust_hmm_bar_read64(place.cast()) };
        }
        // SAFETY: Valid and aligned by the type invariant.
        word::load_u64(unsafe { Atomic::<u64>::from_ptr(place) })
    }

    /// Returns the address of the table for the device.
    #[inline]
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}
