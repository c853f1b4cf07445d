// SPDX-License-Identifier: GPL-2.0

//! Allocation of the tables of a [`TableMemory`], and access to their entries.
//!
//! The tables of a closed device are freed although their owner still exists. Therefore each access
//! takes an RCU read lock, under which they stay.

use super::{
    TableMemory,
    TableMemoryKind, //
};
use crate::{
    bindings,
    kernel::{
        lock_classes,
        rcu_slot::{
            RcuSlot,
            Retired, //
        },
        word, //
    },
    mm::dma::{
        DmaDevice,
        DmaUser, //
    }, //
};
use core::{
    marker::PhantomData,
    ops::Range,
    ptr::NonNull, //
};
use kernel::{
    ffi::c_void,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::Atomic,
        rcu::Guard,
        Arc,
        Mutex, //
    }, //
};

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
        /// Writes the entry `slot` with release ordering; see also
        /// [`order_writes`](super::order_writes). Does nothing if `slot` is beyond the end.
        /// Context: any.
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

    /// Writes 0 to the entries `slots`, one after the other. Context: any.
    pub(crate) fn clear_u32(&self, slots: Range<usize>) {
        for slot in slots {
            self.write_u32(slot, 0);
        }
    }

    /// Writes 0 to the entries `slots`, whole words in any order. Does nothing if they extend
    /// beyond the end. Context: any.
    pub(crate) fn clear_u64(&self, slots: Range<usize>) {
        if self.in_bar {
            for slot in slots {
                self.write_u64(slot, 0);
            }
            return;
        }
        if slots.is_empty() || slots.end > self.bytes / size_of::<u64>() {
            return;
        }
        let bytes = slots.len() * size_of::<u64>();
        // SAFETY: Within the memory, by the type invariant and the check.
        let first = unsafe { self.memory.as_ptr().cast::<u64>().add(slots.start) };
        // SAFETY: These are `bytes` bytes of the memory. The function writes whole words, with
        // which a device may race by the type invariant.
        unsafe { bindings::rust_hmm_clear_bytes(first.cast(), bytes) };
    }

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
