// SPDX-License-Identifier: GPL-2.0

//! Memory that a device uses for the time of a copy, and memory that it shares with the CPU.

use super::{address::DmaAddress, DmaDevice, Maps};
use crate::{
    bindings,
    deferred::{
        Deferred,
        DropWaits, //
    },
    inject::{fails, Point}, //
};
use core::ptr::NonNull;
use kernel::{
    error::to_result,
    page::{PAGE_SHIFT, PAGE_SIZE},
    prelude::*,
    revocable::Revocable,
    sync::{Arc, Completion}, //
};

/// Which way it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Direction {
    /// The device reads and writes.
    Both = 0,
    /// The device reads.
    ToDevice = 1,
    /// The device writes.
    FromDevice = 2,
}

/// Pages in a row that are mapped for a device. Dropping it unmaps them: the device must have finished.
///
/// # Invariants
///
/// `pages` are mapped at `address`. The device is not closed.
pub(crate) struct DmaRun {
    device: Arc<DmaDevice>,
    address: DmaAddress,
    pages: usize,
    direction: Direction,
}

impl DmaRun {
    /// Maps `pages` page frames from `pfn` on. `ENOMEM`; `ENODEV` if the device is gone. Context: any.
    ///
    /// # Safety
    ///
    /// They must be alive, and nobody may write them, nor with [`Direction::FromDevice`] read them, until this is
    /// dropped.
    pub(crate) unsafe fn new(
        device: &Arc<DmaDevice>,
        pfn: usize,
        pages: usize,
        direction: Direction,
    ) -> Result<Self> {
        let open = device.begin()?;
        let mut address = 0;
        // SAFETY: The device is open; the rest by the function's requirements.
        to_result(unsafe {
            bindings::rust_hmm_dma_map_run(
                device.as_raw(),
                pfn,
                pages,
                direction as i32,
                device.is_coherent(),
                fails(Point::Dma),
                &mut address,
            )
        })?;
        device.count_mapped(pages);
        // Ended by the drop of the run.
        core::mem::forget(open);
        // INVARIANT: Just mapped, and the device stays open.
        Ok(Self {
            device: device.clone(),
            address: DmaAddress::new(address),
            pages,
            direction,
        })
    }

    /// Where the device finds page `index`.
    pub(crate) fn address(&self, index: usize) -> Option<DmaAddress> {
        // CAST: Both have 64 bits.
        (index < self.pages).then(|| self.address.plus((index << PAGE_SHIFT) as u64))
    }
}

impl Drop for DmaRun {
    fn drop(&mut self) {
        // SAFETY: Mapped by the type invariant.
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
        drop(super::Open(&self.device));
    }
}

/// Memory of a [`DmaBuffer`]. Dropping it frees the memory.
///
/// # Invariants
///
/// `cpu` has `bytes`, which the device finds at `address`. The device is not closed before this is dropped.
struct Memory {
    device: Arc<DmaDevice>,
    cpu: NonNull<u8>,
    address: DmaAddress,
    bytes: usize,
}

// SAFETY: Memory may be used anywhere.
unsafe impl Send for Memory {}
// SAFETY: It is read and written as memory that others write meanwhile.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(device: &Arc<DmaDevice>, bytes: usize) -> Result<Self> {
        let _open = device.begin()?;
        let mut address = 0;
        // SAFETY: The device is open.
        let cpu = unsafe { bindings::rust_hmm_dma_buffer(device.as_raw(), bytes, &mut address) };
        // INVARIANT: Just allocated.
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
        // SAFETY: Within the memory.
        Ok(unsafe { self.cpu.add(at) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: By the type invariant, and not used any more.
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

/// Memory that its owner or the device frees, whichever is first.
#[pin_data]
struct Shared {
    #[pin]
    memory: Revocable<Memory>,
    #[pin]
    freed: Completion,
}

impl Maps for Shared {
    fn close(&self) -> usize {
        match self.memory.revoke() {
            true => self.freed.complete_all(),
            // Freed concurrently: the device must not be unbound before that has ended.
            false => self.freed.wait_for_completion(),
        }
        0
    }
}

/// Memory that a device and the CPU see alike, of zeros at first. It is freed when this is dropped or the device is
/// closed, whichever is first; the device must not use it any more then.
///
/// # Context
///
/// The drop may sleep. In a callback and in atomic context a worker frees the memory.
pub struct DmaBuffer {
    owned: Deferred<Owned>,
    address: DmaAddress,
    bytes: usize,
}

/// Memory of a buffer, which dropping this frees.
struct Owned {
    device: Arc<DmaDevice>,
    shared: Arc<Shared>,
}

impl DropWaits for Owned {}

impl DmaBuffer {
    /// Allocates `pages`. Context: may sleep.
    ///
    /// # Errors
    ///
    /// * `ENOMEM`.
    /// * `ENODEV`: the device is closed.
    /// * `EINVAL`: `pages` is 0, or too many.
    pub fn new(device: &Arc<DmaDevice>, pages: usize) -> Result<Self> {
        let bytes = pages.checked_mul(PAGE_SIZE).filter(|bytes| *bytes != 0);
        let bytes = bytes.ok_or(EINVAL)?;
        let _open = device.begin()?;
        let memory = Memory::new(device, bytes)?;
        let address = memory.address;
        let shared = Arc::pin_init(
            try_pin_init!(Shared {
                memory <- Revocable::new(memory),
                freed <- Completion::new(),
            }? Error),
            GFP_KERNEL,
        )?;
        let own = || {
            device.add(shared.clone())?;
            Ok(Owned {
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

    /// Where the device finds byte `at`. Context: any.
    pub fn address(&self, at: usize) -> Option<DmaAddress> {
        // CAST: Both have 64 bits.
        (at < self.bytes).then(|| self.address.plus(at as u64))
    }

    /// Reads from byte `at` on. `EINVAL` beyond the end; `ENODEV` if the device is closed. Context: any.
    pub fn read(&self, at: usize, to: &mut [u8]) -> Result {
        let memory = self.owned.shared.memory.try_access().ok_or(ENODEV)?;
        let from = memory.at(at, to.len())?;
        // SAFETY: So many bytes are there; the device may write them meanwhile, which the function is for.
        unsafe {
            bindings::rust_hmm_copy_bytes(
                to.as_mut_ptr().cast(),
                from.as_ptr().cast_const().cast(),
                to.len(),
            )
        };
        Ok(())
    }

    /// Writes from byte `at` on. `EINVAL` beyond the end; `ENODEV` if the device is closed. Context: any.
    pub fn write(&self, at: usize, from: &[u8]) -> Result {
        let memory = self.owned.shared.memory.try_access().ok_or(ENODEV)?;
        let to = memory.at(at, from.len())?;
        // SAFETY: As in `read`.
        unsafe {
            bindings::rust_hmm_copy_bytes(to.as_ptr().cast(), from.as_ptr().cast(), from.len())
        };
        Ok(())
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.shared.close();
        let this: Arc<dyn Maps> = self.shared.clone();
        self.device.remove(&this);
    }
}

#[kunit_tests(rust_hmm_dma_buffer)]
mod tests {
    use super::*;
    use crate::thread::Thread;
    use core::mem::ManuallyDrop;
    use kernel::{
        page::Page,
        sync::atomic::{
            ordering::{Acquire, Release},
            Atomic,
        },
        time::{delay::fsleep, Delta},
    };

    #[test]
    fn a_buffer_has_bounds() -> Result {
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
    fn closing_waits_for_a_copy_and_refuses_new_ones() -> Result {
        let device = DmaDevice::software(c"hmm-kunit")?;
        let page = Page::alloc_page(GFP_KERNEL)?;
        // SAFETY: The page is alive.
        let pfn = unsafe { bindings::rust_hmm_page_to_pfn(page.as_ptr()) };
        // SAFETY: The page outlives the run, and nothing else uses it.
        let run = unsafe { DmaRun::new(&device, pfn, 1, Direction::Both)? };
        let ended = Arc::new(Atomic::new(0u32), GFP_KERNEL)?;
        let end = ended.clone();
        let thread = Thread::spawn(c"hmm-test", move || {
            // Within this the device is closed.
            fsleep(Delta::from_millis(20));
            end.store(1, Release);
            drop(run);
        })?;
        assert_eq!(device.close(), 0);
        assert_eq!(ended.load(Acquire), 1);
        drop(thread);
        // SAFETY: It is refused before anything is mapped.
        let run = unsafe { DmaRun::new(&device, 0, 1, Direction::Both) };
        assert_eq!(run.err(), Some(ENODEV));
        assert_eq!(device.live(), 0);
        Ok(())
    }

    #[test]
    fn closing_frees_buffers_that_were_not_dropped() -> Result {
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
