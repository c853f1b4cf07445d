// SPDX-License-Identifier: GPL-2.0

//! Contents of device memory. Engines and the copy engine address it by device page number.

use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        SetOnce, //
    },
};
use rust_hmm::mm::{addr::PMD_SIZE, device_pages::DeviceRange, page::SharedBytes};

/// Blocks whose places are allocated at once: 8 GiB.
const GROUP: usize = 4096;

/// Contents of device memory, in blocks of 2 MiB that are allocated when they are first written, as
/// are their places. So the memory may be far larger than what there is to back it. Coherent memory
/// has its own.
pub(crate) struct Store {
    groups: KVVec<SetOnce<KVVec<SetOnce<SharedBytes>>>>,
    /// Device page numbers plus one of pages whose contents are lost.
    lost: KVVec<Atomic<usize>>,
}

/// Most pages that a test can lose.
const LOST: usize = 1024;

impl Store {
    /// Room for `bytes`.
    pub(crate) fn new(bytes: usize) -> Result<Self> {
        let groups = places(bytes.div_ceil(PMD_SIZE * GROUP))?;
        let mut lost = KVVec::with_capacity(LOST, GFP_KERNEL)?;
        for _ in 0..LOST {
            lost.push(Atomic::new(0), GFP_KERNEL)?;
        }
        Ok(Self { groups, lost })
    }

    /// The contents of page `number` are lost: it cannot be copied any more. `ENOMEM` if there are too many.
    pub(crate) fn lose(&self, number: usize) -> Result {
        let free = self.lost.iter().find(|place| place.load(Relaxed) == 0);
        free.ok_or(ENOMEM)?.store(number + 1, Relaxed);
        Ok(())
    }

    /// Whether contents of `range` are lost.
    pub(crate) fn is_lost(&self, range: DeviceRange) -> bool {
        let pages = range.first + 1..range.first + 1 + range.count;
        let mut lost = self.lost.iter().map(|place| place.load(Relaxed));
        // They are filled from the first one on.
        lost.by_ref()
            .take_while(|number| *number != 0)
            .any(|number| pages.contains(&number))
    }

    /// Number and offset of the block of `range`, which lies in one block.
    fn locate(range: DeviceRange) -> Result<(usize, usize)> {
        let start = range.first.checked_mul(PAGE_SIZE).ok_or(EINVAL)?;
        Ok((start / PMD_SIZE, start % PMD_SIZE))
    }

    /// The block and offset, if something was ever written to it.
    pub(crate) fn find(&self, range: DeviceRange) -> Result<(&SharedBytes, usize)> {
        let (block, offset) = Self::locate(range)?;
        let group = self.groups.get(block / GROUP).ok_or(EINVAL)?;
        let blocks = group.as_ref().ok_or(EIO)?;
        let bytes = blocks.get(block % GROUP).ok_or(EINVAL)?.as_ref();
        Ok((bytes.ok_or(EIO)?, offset))
    }

    /// The block and offset; the block is made if need be.
    pub(crate) fn find_or_make(&self, range: DeviceRange) -> Result<(&SharedBytes, usize)> {
        let (block, offset) = Self::locate(range)?;
        let group = self.groups.get(block / GROUP).ok_or(EINVAL)?;
        let blocks = made(group, || places(GROUP))?;
        let block = blocks.get(block % GROUP).ok_or(EINVAL)?;
        Ok((made(block, || SharedBytes::new(PMD_SIZE))?, offset))
    }
}

/// Empty places.
fn places<T>(count: usize) -> Result<KVVec<SetOnce<T>>> {
    let mut places = KVVec::with_capacity(count, GFP_KERNEL)?;
    for _ in 0..count {
        places.push(SetOnce::new(), GFP_KERNEL)?;
    }
    Ok(places)
}

/// What is in `place`, which is made if need be.
fn made<T>(place: &SetOnce<T>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
    if let Some(made) = place.as_ref() {
        return Ok(made);
    }
    // If somebody else was faster, theirs is as good.
    place.populate(make()?);
    // Another thread may be about to finish.
    for _ in 0..1000 {
        if let Some(made) = place.as_ref() {
            return Ok(made);
        }
        core::hint::spin_loop();
    }
    Err(ENOMEM)
}
