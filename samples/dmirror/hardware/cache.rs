// SPDX-License-Identifier: GPL-2.0

//! Access of engines to memory of the host that is mapped for the device, by its bus address, and
//! the write-back cache for the part of it that is not coherent.
//!
//! A command reads the contents at its start, and its writes become visible when it ends.

use super::bus::Action;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Mutex, //
};

const WORD_BYTES: usize = size_of::<u64>();

/// Maximum number of cached pages. A full cache is written back before the end of the command.
const MAX_CACHED_PAGES: usize = 256;

/// A page of the host, as the bus decodes its address.
pub(crate) trait HostPage {
    /// Bus address of the page.
    fn address(&self) -> usize;

    /// Whether both are of the same mapping: an address may be mapped again for other memory.
    fn is_of_mapping(&self, other: &Self) -> bool;

    /// Whether the device and the CPU see each other's writes at once.
    fn is_coherent(&self) -> bool;

    /// Orders accesses of the CPU and the device to memory that is not coherent: before the device
    /// reads, or after it has written.
    fn sync(&self, reads: bool);

    /// Reads from byte `at` on.
    fn read(&self, at: usize, to: &mut [u8]) -> Result;

    /// Writes from byte `at` on.
    fn write(&self, at: usize, from: &[u8]) -> Result;

    /// Atomically adds `value` to the word at byte `at`. Returns the previous value.
    fn fetch_add(&self, at: usize, value: u64) -> Result<u64>;
}

/// A cached page.
struct Line<P> {
    page: P,
    bytes: KBox<[u8; PAGE_SIZE]>,
    /// Dirty bits, one for each 64-bit word.
    dirty: [u64; PAGE_SIZE / WORD_BYTES / 64],
}

impl<P: HostPage> Line<P> {
    fn new(page: P) -> Result<Self> {
        let mut bytes = KBox::new([0; PAGE_SIZE], GFP_KERNEL)?;
        page.sync(true);
        page.read(0, &mut *bytes)?;
        Ok(Self {
            page,
            bytes,
            dirty: [0; PAGE_SIZE / WORD_BYTES / 64],
        })
    }

    fn is_dirty(&self) -> bool {
        self.dirty.iter().any(|word| *word != 0)
    }

    /// Writes back the dirty words only, so that concurrent writes of the host to other words are
    /// not lost.
    fn write_back(&mut self) -> Result {
        for (index, word) in self.bytes.chunks_exact(WORD_BYTES).enumerate() {
            let dirty = self.dirty.get(index / 64).copied().unwrap_or(0);
            if dirty & (1 << (index % 64)) != 0 {
                self.page.write(index * WORD_BYTES, word)?;
            }
        }
        self.dirty.fill(0);
        self.page.sync(false);
        Ok(())
    }

    /// Performs `action` on the cached page, `at` bytes from its start.
    fn access(&mut self, at: usize, action: Action<'_>) -> Result {
        let len = action.bytes();
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

/// The cache of an address space, shared by its commands.
#[pin_data]
pub(crate) struct Cache<P> {
    #[pin]
    lines: Mutex<KVec<Line<P>>>,
}

impl<P: HostPage> Cache<P> {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            lines <- kernel::new_mutex!(KVec::new(), "dmirror::lines"),
        })
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
            // The page may have been unmapped concurrently. It stays valid for the line.
            let _gone = line.write_back();
        }
    }

    /// Performs `action` on `page`, `at` bytes from its start.
    pub(crate) fn access(&self, page: P, at: usize, action: Action<'_>) -> Result {
        if page.is_coherent() {
            match action {
                Action::Read(buffer) => page.read(at, buffer)?,
                Action::Write(buffer) => page.write(at, buffer)?,
                Action::Add(value) => *value = page.fetch_add(at, *value)?,
            }
            return Ok(());
        }
        let mut lines = self.lines.lock();
        let found = lines.iter().position(|line: &Line<P>| {
            line.page.address() == page.address() && line.page.is_of_mapping(&page)
        });
        let index = match found {
            Some(index) => index,
            None => {
                if lines.len() >= MAX_CACHED_PAGES {
                    for line in lines.iter_mut() {
                        line.write_back()?;
                    }
                    lines.clear();
                }
                lines.push(Line::new(page)?, GFP_KERNEL)?;
                lines.len() - 1
            }
        };
        lines.get_mut(index).ok_or(EINVAL)?.access(at, action)
    }
}
