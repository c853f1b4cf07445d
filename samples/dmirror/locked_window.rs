// SPDX-License-Identifier: GPL-2.0

//! Access of engines to locked memory, by the device address that the lock returned.
//!
//! Engines access fine-grained memory directly. Coarse-grained memory is accessed through a
//! write-back cache: a command reads the contents at its start, and its writes become visible when
//! it ends.

use crate::hardware::bus::Action;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use rust_hmm::{
    host_lock::{
        Coherence,
        PinnedRange,
        APERTURE, //
    },
    mirror::Mirror,
    mm::dma::DmaDevice, //
};

use crate::device::View;

const WORD_BYTES: usize = size_of::<u64>();

/// Maximum number of cached pages. A full cache is written back before the end of the command.
const MAX_CACHED_PAGES: usize = 256;

/// A page of coarse-grained memory.
struct CachedPage {
    region: Arc<PinnedRange>,
    /// Device address of the page.
    address: usize,
    bytes: KBox<[u8; PAGE_SIZE]>,
    /// Dirty bits, one for each 64-bit word.
    dirty: [u64; PAGE_SIZE / WORD_BYTES / 64],
}

impl CachedPage {
    fn new(region: &Arc<PinnedRange>, address: usize, device: &DmaDevice) -> Result<Self> {
        let mut bytes = KBox::new([0; PAGE_SIZE], GFP_KERNEL)?;
        region.sync(device, address, true);
        region.page(address).ok_or(EFAULT)?.read(0, &mut *bytes)?;
        Ok(Self {
            region: region.clone(),
            address,
            bytes,
            dirty: [0; PAGE_SIZE / WORD_BYTES / 64],
        })
    }

    fn is_dirty(&self) -> bool {
        self.dirty.iter().any(|word| *word != 0)
    }

    /// Writes back the dirty words only, so that concurrent writes of the host to other words are
    /// not lost.
    fn write_back(&mut self, device: &DmaDevice) -> Result {
        let page = self.region.page(self.address).ok_or(EFAULT)?;
        for (index, word) in self.bytes.chunks_exact(WORD_BYTES).enumerate() {
            let dirty = self.dirty.get(index / 64).copied().unwrap_or(0);
            if dirty & (1 << (index % 64)) != 0 {
                page.write(index * WORD_BYTES, word)?;
            }
        }
        self.dirty.fill(0);
        self.region.sync(device, self.address, false);
        Ok(())
    }

    /// Performs `action` on the cached page, `at` bytes from its start.
    fn access(&mut self, at: usize, action: Action<'_>) -> Result {
        let len = match &action {
            Action::Read(buffer) => buffer.len(),
            Action::Write(buffer) => buffer.len(),
            Action::Add(_) => WORD_BYTES,
        };
        let part = self.bytes.get_mut(at..at + len).ok_or(EINVAL)?;
        let writes = action.writes();
        match action {
            Action::Read(buffer) => buffer.copy_from_slice(part),
            Action::Write(buffer) => part.copy_from_slice(buffer),
            Action::Add(value) => {
                let mut word = [0; WORD_BYTES];
                word.copy_from_slice(part);
                let before = u64::from_ne_bytes(word);
                part.copy_from_slice(&before.wrapping_add(*value).to_ne_bytes());
                *value = before;
            }
        }
        if writes {
            for index in at / WORD_BYTES..(at + len).div_ceil(WORD_BYTES) {
                if let Some(word) = self.dirty.get_mut(index / 64) {
                    *word |= 1 << (index % 64);
                }
            }
        }
        Ok(())
    }
}

/// Cache of locked memory, shared by the commands of an open file.
#[pin_data]
pub(crate) struct LockedWindow {
    /// The device that the engines belong to, for DMA synchronisation.
    device: Arc<DmaDevice>,
    #[pin]
    lines: Mutex<KVec<CachedPage>>,
}

impl LockedWindow {
    pub(crate) fn new(device: Arc<DmaDevice>) -> impl PinInit<Self> {
        pin_init!(Self {
            device,
            lines <- kernel::new_mutex!(KVec::new(), "dmirror::lines"),
        })
    }

    /// Whether `addr` is a device address of locked memory.
    pub(crate) fn holds(addr: usize) -> bool {
        addr & APERTURE != 0
    }

    /// Drops the clean lines when a command starts, so that it reads the current contents of host
    /// memory.
    pub(crate) fn begin(&self) {
        self.lines.lock().retain(|line| line.is_dirty());
    }

    /// Writes all lines back when a command has ended, so that the host reads the command's writes.
    pub(crate) fn end(&self) {
        let mut lines = core::mem::take(&mut *self.lines.lock());
        for line in &mut lines {
            // The range may have been unlocked concurrently. The line holds a reference to the
            // region, so its pages remain pinned.
            let _gone = line.write_back(&self.device);
        }
    }

    /// Performs `action` at `addr`. `EFAULT` if it is not locked for this device.
    pub(crate) fn access(&self, mirror: &Mirror<View>, addr: usize, action: Action<'_>) -> Result {
        let address = addr & !(PAGE_SIZE - 1);
        let at = addr % PAGE_SIZE;
        let region = mirror.locked(address).ok_or(EFAULT)?;
        region.dma(&self.device, address).ok_or(EFAULT)?;
        if region.grain() == Coherence::Fine {
            let page = region.page(address).ok_or(EFAULT)?;
            match action {
                Action::Read(buffer) => page.read(at, buffer)?,
                Action::Write(buffer) => page.write(at, buffer)?,
                Action::Add(value) => *value = page.fetch_add_u64(at, *value)?,
            }
            return Ok(());
        }
        let mut lines = self.lines.lock();
        let found = lines.iter().position(|line: &CachedPage| {
            line.address == address && Arc::ptr_eq(&line.region, &region)
        });
        let index = match found {
            Some(index) => index,
            None => {
                if lines.len() >= MAX_CACHED_PAGES {
                    for line in lines.iter_mut() {
                        line.write_back(&self.device)?;
                    }
                    lines.clear();
                }
                let line = CachedPage::new(&region, address, &self.device)?;
                lines.push(line, GFP_KERNEL)?;
                lines.len() - 1
            }
        };
        lines.get_mut(index).ok_or(EINVAL)?.access(at, action)?;
        Ok(())
    }
}
