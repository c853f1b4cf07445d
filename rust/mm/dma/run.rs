// SPDX-License-Identifier: GPL-2.0

//! Memory that a device uses for the time of a copy, and memory that it shares with the CPU.

use super::{address::DmaAddress, DmaDevice};
use crate::{
    bindings,
    inject::{fails, Point}, //
};
use core::ptr::NonNull;
use kernel::{error::to_result, page::PAGE_SHIFT, page::PAGE_SIZE, prelude::*, sync::Arc};

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
            )
        };
        self.device.count_unmapped(self.pages);
        drop(super::Open(&self.device));
    }
}

/// Memory that a device and the CPU see alike, of zeros at first. It must be gone before the device is closed, which
/// waits for it.
///
/// # Invariants
///
/// `cpu` has `bytes`, which the device finds at `address`.
pub struct DmaBuffer {
    device: Arc<DmaDevice>,
    cpu: NonNull<u8>,
    address: DmaAddress,
    bytes: usize,
}

// SAFETY: Memory may be used anywhere.
unsafe impl Send for DmaBuffer {}
// SAFETY: It is read and written as memory that others write meanwhile.
unsafe impl Sync for DmaBuffer {}

impl DmaBuffer {
    /// Allocates `pages`. Context: may sleep. `ENOMEM`; `ENODEV` if the device is gone; `EINVAL` for none.
    pub fn new(device: &Arc<DmaDevice>, pages: usize) -> Result<Self> {
        let bytes = pages.checked_mul(PAGE_SIZE).filter(|bytes| *bytes != 0);
        let bytes = bytes.ok_or(EINVAL)?;
        let open = device.begin()?;
        let mut address = 0;
        // SAFETY: The device is open.
        let cpu = unsafe { bindings::rust_hmm_dma_buffer(device.as_raw(), bytes, &mut address) };
        let cpu = NonNull::new(cpu.cast::<u8>()).ok_or(ENOMEM)?;
        core::mem::forget(open);
        // INVARIANT: Just allocated.
        Ok(Self {
            device: device.clone(),
            cpu,
            address: DmaAddress::new(address),
            bytes,
        })
    }

    /// Where the device finds byte `at`.
    pub fn address(&self, at: usize) -> Option<DmaAddress> {
        // CAST: Both have 64 bits.
        (at < self.bytes).then(|| self.address.plus(at as u64))
    }

    fn at(&self, at: usize, len: usize) -> Result<NonNull<u8>> {
        if at.checked_add(len).is_none_or(|end| end > self.bytes) {
            return Err(EINVAL);
        }
        // SAFETY: Within the memory.
        Ok(unsafe { self.cpu.add(at) })
    }

    /// Reads from byte `at` on. `EINVAL` beyond the end.
    pub fn read(&self, at: usize, to: &mut [u8]) -> Result {
        let from = self.at(at, to.len())?;
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

    /// Writes from byte `at` on. `EINVAL` beyond the end.
    pub fn write(&self, at: usize, from: &[u8]) -> Result {
        let to = self.at(at, from.len())?;
        // SAFETY: As in `read`.
        unsafe {
            bindings::rust_hmm_copy_bytes(to.as_ptr().cast(), from.as_ptr().cast(), from.len())
        };
        Ok(())
    }
}

impl Drop for DmaBuffer {
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
        drop(super::Open(&self.device));
    }
}

#[kunit_tests(rust_hmm_dma_buffer)]
mod tests {
    use super::*;
    use crate::thread::Thread;
    use kernel::{
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
    fn a_device_that_goes_waits_for_who_uses_it_and_takes_nobody_any_more() -> Result {
        let device = DmaDevice::software(c"hmm-kunit")?;
        let buffer = DmaBuffer::new(&device, 1)?;
        let gone = Arc::new(Atomic::new(0u32), GFP_KERNEL)?;
        let told = gone.clone();
        let thread = Thread::spawn(c"hmm-test", move || {
            // Within this the device is asked to go.
            fsleep(Delta::from_millis(20));
            told.store(1, Release);
            drop(buffer);
        })?;
        assert_eq!(device.close(), 0);
        assert_eq!(gone.load(Acquire), 1);
        drop(thread);
        assert_eq!(DmaBuffer::new(&device, 1).err(), Some(ENODEV));
        // SAFETY: It is refused before anything is mapped.
        let run = unsafe { DmaRun::new(&device, 0, 1, Direction::Both) };
        assert_eq!(run.err(), Some(ENODEV));
        assert_eq!(device.live(), 0);
        Ok(())
    }
}
