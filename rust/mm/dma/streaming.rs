// SPDX-License-Identifier: GPL-2.0

//! DMA mappings for the duration of a copy, and coherent DMA buffers.

use super::{
    address::DmaAddress,
    DmaDevice,
    DmaUser, //
};
use crate::{
    bindings,
    inject::{
        fails,
        FailPoint, //
    },
    kernel::deferred::{
        Deferred,
        DropWaits, //
    }, //
};
use core::ptr::NonNull;
use kernel::{
    error::to_result,
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    revocable::Revocable,
    sync::{
        Arc,
        Completion, //
    }, //
};

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum DmaDirection {
    /// The device reads and writes the memory.
    Both = 0,
    /// The device reads the memory.
    ToDevice = 1,
    /// The device writes the memory.
    FromDevice = 2,
}

/// Consecutive page frames that are mapped for a device. They are unmapped when this is dropped,
/// which must not happen before the device has finished.
///
/// # Invariants
///
/// `pages` are mapped at `address`. The device is not closed.
pub(crate) struct DmaRun {
    device: Arc<DmaDevice>,
    address: DmaAddress,
    pages: usize,
    direction: DmaDirection,
}

impl DmaRun {
    /// Maps `pages` page frames from `pfn` on. Callable from any context.
    ///
    /// # Safety
    ///
    /// The pages must remain allocated until this is dropped. Until then, the CPU must not write
    /// them, and with [`DmaDirection::FromDevice`] not read them either.
    ///
    /// # Errors
    ///
    /// * `ENOMEM`: the pages could not be mapped.
    /// * `ENODEV`: the device is closed.
    pub(crate) unsafe fn new(
        device: &Arc<DmaDevice>,
        pfn: usize,
        pages: usize,
        direction: DmaDirection,
    ) -> Result<Self> {
        let open = device.begin()?;
        let mut address = 0;
        // SAFETY: `open` keeps the device registered. The pages meet the function's requirements.
        to_result(unsafe {
            bindings::rust_hmm_dma_map_run(
                device.as_raw(),
                pfn,
                pages,
                direction as i32,
                device.is_coherent(),
                fails(FailPoint::Dma),
                &mut address,
            )
        })?;
        device.count_mapped(pages);
        // The call counts as in progress until the run is dropped.
        core::mem::forget(open);
        // INVARIANT: The pages were mapped above, and the count of calls was not decremented, which
        // keeps the device open.
        Ok(Self {
            device: device.clone(),
            address: DmaAddress::new(address),
            pages,
            direction,
        })
    }

    /// Returns the DMA address of page `index`; `None` if there is no such page.
    pub(crate) fn address(&self, index: usize) -> Option<DmaAddress> {
        // CAST: Both have 64 bits.
        (index < self.pages).then(|| self.address.plus((index << PAGE_SHIFT) as u64))
    }
}

impl Drop for DmaRun {
    fn drop(&mut self) {
        // SAFETY: The pages are mapped by the type invariant, and this is the last use of the
        // mapping.
        unsafe {
            bindings::rust_hmm_dma_unmap_run(
                self.device.as_raw(),
                self.address.raw(),
                self.pages,
                self.direction as i32,
                self.device.is_coherent(),
            )
        };
        self.device.count_unmapped(self.pages);
        drop(super::OpenDevice(&self.device));
    }
}

/// Memory of a [`DmaBuffer`], freed when dropped.
///
/// # Invariants
///
/// `cpu` has `bytes`, which the device finds at `address`. The device is not closed before this is
/// dropped.
struct CoherentMemory {
    device: Arc<DmaDevice>,
    cpu: NonNull<u8>,
    address: DmaAddress,
    bytes: usize,
}

// SAFETY: The memory may be accessed and freed by any task.
unsafe impl Send for CoherentMemory {}
// SAFETY: All accesses use a helper that allows concurrent writes.
unsafe impl Sync for CoherentMemory {}

impl CoherentMemory {
    fn new(device: &Arc<DmaDevice>, bytes: usize) -> Result<Self> {
        let _open = device.begin()?;
        let mut address = 0;
        // SAFETY: `_open` keeps the device registered.
        let cpu = unsafe { bindings::rust_hmm_dma_buffer(device.as_raw(), bytes, &mut address) };
        // INVARIANT: The memory was allocated above; a null pointer is refused.
        Ok(Self {
            device: device.clone(),
            cpu: NonNull::new(cpu.cast::<u8>()).ok_or(ENOMEM)?,
            address: DmaAddress::new(address),
            bytes,
        })
    }

    fn at(&self, at: usize, len: usize) -> Result<NonNull<u8>> {
        if at.checked_add(len).is_none_or(|end| end > self.bytes) {
            return Err(EINVAL);
        }
        // SAFETY: `at + len` is at most `bytes`, as checked above.
        Ok(unsafe { self.cpu.add(at) })
    }
}

impl Drop for CoherentMemory {
    fn drop(&mut self) {
        // SAFETY: The memory was allocated with these arguments, by the type invariant, and this is
        // its last use.
        unsafe {
            bindings::rust_hmm_dma_buffer_free(
                self.device.as_raw(),
                self.bytes,
                self.cpu.as_ptr().cast(),
                self.address.raw(),
            )
        };
    }
}

/// Memory that is freed by its owner or when the device is closed, whichever happens first.
#[pin_data]
struct SharedBuffer {
    #[pin]
    memory: Revocable<CoherentMemory>,
    #[pin]
    freed: Completion,
}

impl DmaUser for SharedBuffer {
    fn close(&self) -> usize {
        if self.memory.revoke() {
            self.freed.complete_all();
        } else {
            // The owner frees it concurrently. The device must not be unbound before that is
            // complete.
            self.freed.wait_for_completion();
        }
        0
    }
}

/// Coherent DMA memory, initially zeroed. It is freed when this is dropped or the device is closed,
/// whichever happens first. The device must not access it after that.
///
/// # Context
///
/// The drop may sleep. In a callback and in atomic context a worker frees the memory.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use kernel::sync::Arc;
/// use rust_hmm::mm::dma::DmaBuffer;
/// use rust_hmm::mm::dma::DmaDevice;
///
/// /// Allocates a page in which the device reports its progress in the first word.
/// fn status_page(device: &Arc<DmaDevice>) -> Result<DmaBuffer> {
///     let page = DmaBuffer::new(device, 1)?;
///     page.write(0, &0u32.to_le_bytes())?;
///     Ok(page)
/// }
///
/// /// May be called by an interrupt handler.
/// fn progress(page: &DmaBuffer) -> Result<u32> {
///     let mut word = [0; 4];
///     page.read(0, &mut word)?;
///     Ok(u32::from_le_bytes(word))
/// }
/// ```
pub struct DmaBuffer {
    owned: Deferred<BufferOwner>,
    address: DmaAddress,
    bytes: usize,
}

/// Owner of a buffer's memory, which is freed when this is dropped.
struct BufferOwner {
    device: Arc<DmaDevice>,
    shared: Arc<SharedBuffer>,
}

impl DropWaits for BufferOwner {}

impl DmaBuffer {
    /// Allocates `pages` pages.
    ///
    /// # Errors
    ///
    /// * `ENOMEM`: memory allocation failed.
    /// * `ENODEV`: the device is closed.
    /// * `EINVAL`: `pages` is 0, or too large.
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new(device: &Arc<DmaDevice>, pages: usize) -> Result<Self> {
        let bytes = pages.checked_mul(PAGE_SIZE).filter(|bytes| *bytes != 0);
        let bytes = bytes.ok_or(EINVAL)?;
        let _open = device.begin()?;
        let memory = CoherentMemory::new(device, bytes)?;
        let address = memory.address;
        let shared = Arc::pin_init(
            try_pin_init!(SharedBuffer {
                memory <- Revocable::new(memory),
                freed <- Completion::new(),
            }? Error),
            GFP_KERNEL,
        )?;
        let own = || {
            device.add(shared.clone())?;
            Ok(BufferOwner {
                device: device.clone(),
                shared,
            })
        };
        Ok(Self {
            owned: Deferred::new(own, GFP_KERNEL)?,
            address,
            bytes,
        })
    }

    /// Returns the DMA address of byte `at`; `None` beyond the end.
    ///
    /// # Context
    ///
    /// Any.
    pub fn address(&self, at: usize) -> Option<DmaAddress> {
        // CAST: Both have 64 bits.
        (at < self.bytes).then(|| self.address.plus(at as u64))
    }

    /// Reads from byte `at` on.
    ///
    /// # Errors
    ///
    /// * `EINVAL`: the range exceeds the buffer.
    /// * `ENODEV`: the device is closed.
    ///
    /// # Context
    ///
    /// Any.
    pub fn read(&self, at: usize, to: &mut [u8]) -> Result {
        let memory = self.owned.shared.memory.try_access().ok_or(ENODEV)?;
        let from = memory.at(at, to.len())?;
        // SAFETY: `at()` checked the range, and the access guard keeps the memory allocated. The
        // helper allows concurrent writes of the device.
        unsafe {
            bindings::rust_hmm_copy_bytes(
                to.as_mut_ptr().cast(),
                from.as_ptr().cast_const().cast(),
                to.len(),
            )
        };
        Ok(())
    }

    /// Writes from byte `at` on.
    ///
    /// # Errors
    ///
    /// * `EINVAL`: the range exceeds the buffer.
    /// * `ENODEV`: the device is closed.
    ///
    /// # Context
    ///
    /// Any.
    pub fn write(&self, at: usize, from: &[u8]) -> Result {
        let memory = self.owned.shared.memory.try_access().ok_or(ENODEV)?;
        let to = memory.at(at, from.len())?;
        // SAFETY: `at()` checked the range, and the access guard keeps the memory allocated. The
        // helper allows concurrent accesses of the device.
        unsafe {
            bindings::rust_hmm_copy_bytes(to.as_ptr().cast(), from.as_ptr().cast(), from.len())
        };
        Ok(())
    }
}

impl Drop for BufferOwner {
    fn drop(&mut self) {
        self.shared.close();
        let this: Arc<dyn DmaUser> = self.shared.clone();
        self.device.remove(&this);
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_dma_buffer)]
mod tests {
    use super::*;
    use crate::kernel::kthread::Thread;
    use core::mem::ManuallyDrop;
    use kernel::{
        page::Page,
        sync::atomic::{
            ordering::{
                Acquire,
                Release, //
            },
            Atomic, //
        },
        time::{
            delay::fsleep,
            Delta, //
        }, //
    };

    #[test]
    fn buffer_accesses_are_bounded() -> Result {
        let device = DmaDevice::software(c"hmm-kunit")?;
        assert_eq!(DmaBuffer::new(&device, 0).err(), Some(EINVAL));
        let buffer = DmaBuffer::new(&device, 2)?;
        let mut bytes = [0xaa; 8];
        buffer.read(PAGE_SIZE - 4, &mut bytes)?;
        assert_eq!(bytes, [0; 8]);
        buffer.write(2 * PAGE_SIZE - 8, &[7; 8])?;
        buffer.read(2 * PAGE_SIZE - 8, &mut bytes)?;
        assert_eq!(bytes, [7; 8]);
        for at in [2 * PAGE_SIZE - 7, 2 * PAGE_SIZE, usize::MAX] {
            assert_eq!(buffer.read(at, &mut bytes), Err(EINVAL));
            assert_eq!(buffer.write(at, &bytes), Err(EINVAL));
        }
        let distance = |at| Some(buffer.address(at)?.raw() - buffer.address(0)?.raw());
        assert_eq!(distance(2 * PAGE_SIZE - 1), Some(2 * PAGE_SIZE as u64 - 1));
        assert!(buffer.address(2 * PAGE_SIZE).is_none());
        Ok(())
    }

    #[test]
    fn close_waits_for_a_copy_and_refuses_new_ones() -> Result {
        let device = DmaDevice::software(c"hmm-kunit")?;
        let page = Page::alloc_page(GFP_KERNEL)?;
        // SAFETY: The page is allocated.
        let pfn = unsafe { bindings::rust_hmm_page_to_pfn(page.as_ptr()) };
        // SAFETY: The page outlives the run, and nothing else uses it.
        let run = unsafe { DmaRun::new(&device, pfn, 1, DmaDirection::Both)? };
        let ended = Arc::new(Atomic::new(0u32), GFP_KERNEL)?;
        let end = ended.clone();
        let thread = Thread::spawn(c"hmm-test", move || {
            // The device is closed meanwhile.
            fsleep(Delta::from_millis(20));
            end.store(1, Release);
            drop(run);
        })?;
        assert_eq!(device.close(), 0);
        assert_eq!(ended.load(Acquire), 1);
        drop(thread);
        // SAFETY: The device is closed, so that the call fails before it maps a page.
        let run = unsafe { DmaRun::new(&device, 0, 1, DmaDirection::Both) };
        assert_eq!(run.err(), Some(ENODEV));
        assert_eq!(device.live(), 0);
        Ok(())
    }

    #[test]
    fn close_frees_leaked_buffers() -> Result {
        let device = DmaDevice::software(c"hmm-kunit")?;
        let kept = DmaBuffer::new(&device, 1)?;
        let forgotten = ManuallyDrop::new(DmaBuffer::new(&device, 1)?);
        assert_eq!(device.close(), 0);
        assert!(forgotten.owned.shared.memory.try_access().is_none());
        assert_eq!(kept.read(0, &mut [0; 8]), Err(ENODEV));
        assert_eq!(kept.write(0, &[0; 8]), Err(ENODEV));
        assert_eq!(DmaBuffer::new(&device, 1).err(), Some(ENODEV));
        drop(ManuallyDrop::into_inner(forgotten));
        Ok(())
    }
}
