// SPDX-License-Identifier: GPL-2.0

//! The contents of device memory.

use super::bus::Action;
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        SetOnce, //
    }, //
};
use rust_hmm::mm::{
    addr::PMD_SIZE,
    folio::SharedBytes, //
};

/// Number of blocks in a group, whose slots are allocated together: 8 GiB with blocks of 2 MiB.
const GROUP_BLOCKS: usize = 4096;

/// Contents of device memory. Blocks, each the memory that one PMD maps, and the groups of their
/// slots are allocated when they are first written, so that device memory may exceed the memory of
/// the machine. Not used for coherent memory, which the CPU addresses directly.
pub(crate) struct Store {
    /// Bus address of the first byte, as the engines of the device find it.
    base: u64,
    bytes: usize,
    groups: KVVec<SetOnce<KVVec<SetOnce<SharedBytes>>>>,
    /// Page numbers plus one of pages whose contents are lost.
    lost: KVVec<Atomic<usize>>,
}

/// Maximum number of pages that tests can mark as lost.
const MAX_LOST_PAGES: usize = 1024;

impl Store {
    /// Creates a store of `bytes` bytes at bus address `base`.
    pub(crate) fn new(base: u64, bytes: usize) -> Result<Self> {
        let groups = places(bytes.div_ceil(PMD_SIZE * GROUP_BLOCKS))?;
        let mut lost = KVVec::with_capacity(MAX_LOST_PAGES, GFP_KERNEL)?;
        for _ in 0..MAX_LOST_PAGES {
            lost.push(Atomic::new(0), GFP_KERNEL)?;
        }
        Ok(Self {
            base,
            bytes,
            groups,
            lost,
        })
    }

    /// Decodes a bus address. Returns the offset in this memory; `None` if it is elsewhere.
    #[inline]
    pub(crate) fn offset(&self, address: u64) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.base)?).ok()?;
        (offset < self.bytes).then_some(offset)
    }

    /// Marks the page at `offset` as lost: copies from it fail. `ENOMEM` if too many pages are
    /// lost.
    pub(crate) fn lose(&self, offset: usize) -> Result {
        let free = self.lost.iter().find(|place| place.load(Relaxed) == 0);
        free.ok_or(ENOMEM)?.store(offset / PAGE_SIZE + 1, Relaxed);
        Ok(())
    }

    /// Whether a page of the `bytes` bytes at `offset` is lost.
    pub(crate) fn is_lost(&self, offset: usize, bytes: usize) -> bool {
        let first = offset / PAGE_SIZE + 1;
        let pages = first..first + bytes.div_ceil(PAGE_SIZE);
        let mut lost = self.lost.iter().map(|place| place.load(Relaxed));
        // Elements are set from the first one on and never cleared.
        lost.by_ref()
            .take_while(|number| *number != 0)
            .any(|number| pages.contains(&number))
    }

    /// Returns the block that has the byte at `offset`, and its offset there. `EIO` if the block
    /// was never written.
    pub(crate) fn find(&self, offset: usize) -> Result<(&SharedBytes, usize)> {
        let block = offset / PMD_SIZE;
        let group = self.groups.get(block / GROUP_BLOCKS).ok_or(EINVAL)?;
        let blocks = group.as_ref().ok_or(EIO)?;
        let bytes = blocks.get(block % GROUP_BLOCKS).ok_or(EINVAL)?.as_ref();
        Ok((bytes.ok_or(EIO)?, offset % PMD_SIZE))
    }

    /// Returns the block that has the byte at `offset`, and its offset there. Allocates the block
    /// if necessary.
    #[inline]
    pub(crate) fn find_or_make(&self, offset: usize) -> Result<(&SharedBytes, usize)> {
        // Most blocks exist.
        self.find(offset).or_else(|_| self.make(offset))
    }

    #[inline(never)]
    fn make(&self, offset: usize) -> Result<(&SharedBytes, usize)> {
        let block = offset / PMD_SIZE;
        let group = self.groups.get(block / GROUP_BLOCKS).ok_or(EINVAL)?;
        let blocks = made(group, || places(GROUP_BLOCKS))?;
        let block = blocks.get(block % GROUP_BLOCKS).ok_or(EINVAL)?;
        Ok((
            made(block, || SharedBytes::new(PMD_SIZE))?,
            offset % PMD_SIZE,
        ))
    }

    /// Performs an engine's `action` at `offset`. `EIO` if the memory was never written there.
    pub(crate) fn access(&self, offset: usize, action: &mut Action<'_>) -> Result {
        let (bytes, at) = self.find(offset)?;
        match action {
            Action::Read(buffer) => bytes.read(at, buffer),
            Action::Write(buffer) => bytes.write(at, buffer),
            Action::Add(value) => {
                **value = bytes.fetch_add_u64(at, **value)?;
                Ok(())
            }
        }
    }
}

/// Allocates empty slots.
fn places<T>(count: usize) -> Result<KVVec<SetOnce<T>>> {
    let mut places = KVVec::with_capacity(count, GFP_KERNEL)?;
    for _ in 0..count {
        places.push(SetOnce::new(), GFP_KERNEL)?;
    }
    Ok(places)
}

/// Returns the contents of `place`, and populates it first if it is empty.
fn made<T>(place: &SetOnce<T>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
    if let Some(made) = place.as_ref() {
        return Ok(made);
    }
    // If a concurrent task has populated it first, its value is used.
    place.populate(make()?);
    // A concurrent task may still be populating it: wait briefly.
    for _ in 0..1000 {
        if let Some(made) = place.as_ref() {
            return Ok(made);
        }
        core::hint::spin_loop();
    }
    Err(ENOMEM)
}
