// SPDX-License-Identifier: GPL-2.0

//! Attributes of ranges as the device of a mirror sees them. They are set and queried here, and
//! follow VMAs that are moved.

use super::{
    Device,
    Mirror,
    MirrorShared, //
};
#[cfg(CONFIG_RUST_HMM_MANAGED)]
use crate::attributes::managed::Flags;
use crate::{
    attributes::{
        AttributeUpdate,
        Attributes,
        CommonAttributes,
        Relocated,
        VmaAnchor, //
    },
    kernel::{
        identity::{
            DeviceId,
            MemoryId, //
        },
        reentry, //
    },
    mm::{
        addr::PageRange,
        range_fault::AddressSpace,
        vma::{
            MmapGuard,
            Vma, //
        }, //
    },
    space::Space, //
};
use kernel::{
    mm::virt::flags,
    page::PAGE_SHIFT,
    prelude::*, //
};

/// Returns the identity by which attributes follow the pages of a VMA. Attributes of a VMA that is
/// not anonymous do not follow it.
fn anchor(vma: &Vma<'_>) -> VmaAnchor {
    let anon = if vma.is_anonymous() { vma.anon() } else { 0 };
    VmaAnchor::new(vma.start() >> PAGE_SHIFT, vma.offset(), anon)
}

/// Attributes and other properties of the memory at an address.
pub(crate) struct AttributesAt {
    /// Attributes that were set, or the defaults of [managed memory](crate::managed).
    pub(crate) attributes: Attributes,
    /// Part of the VMA in which the attributes are the same.
    pub(crate) limits: PageRange,
    /// Whether all of `limits` moves at once.
    pub(crate) whole: bool,
    /// Whether pages of the VMA can move at all.
    pub(crate) movable: bool,
}

/// Maximum number of rounds in which attributes follow VMAs. Each round watches one more VMA, so
/// that there is a round for each range that can be set aside. Ranges that are left then lose their
/// attributes.
const ORPHAN_MAX_ROUNDS: usize = 64;

impl<D: Device> MirrorShared<D> {
    /// Calls `each` with the index and number of pages of `range` that are in the mirror's own
    /// memory. Only pages with a device entry count.
    ///
    /// # Context
    ///
    /// Any but NMI.
    pub(crate) fn each_resident(&self, range: PageRange, mut each: impl FnMut(usize, usize)) {
        let mut index = 0;
        while index < range.pages() {
            let addr = range.address(index);
            let leaf = self.reader.walk(addr);
            let order = leaf.as_ref().map_or(0, |leaf| leaf.order);
            let in_leaf = (addr >> PAGE_SHIFT) & ((1 << order) - 1);
            let pages = ((1 << order) - in_leaf).min(range.pages() - index);
            let entry = leaf.map(|leaf| leaf.entry).filter(|entry| entry.is_valid());
            if entry.is_some_and(|entry| entry.is_device() && self.is_in_own_memory(entry.number()))
            {
                each(index, pages);
            }
            index += pages;
        }
    }

    /// Returns the identity of the device in attributes, see
    /// [`MirrorOps::device_name`](crate::space::MirrorOps::device_name).
    pub(crate) fn device_name(&self) -> DeviceId {
        self.shared_name
            .unwrap_or_else(|| DeviceId::of(&self.trace))
    }

    /// Takes the mmap lock after attributes have followed all VMAs that were moved.
    ///
    /// # Errors
    ///
    /// - `EINTR` if a fatal signal is pending.
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    fn settled<'s>(&self, space: &'s AddressSpace) -> Result<MmapGuard<'s>> {
        let mmap = space.mmap_lock_here()?;
        if !self.space.attributes().is_unsettled() {
            return Ok(mmap);
        }
        drop(mmap);
        self.resolve_orphans(space)
    }

    #[cold]
    fn resolve_orphans<'s>(&self, space: &'s AddressSpace) -> Result<MmapGuard<'s>> {
        let attributes = self.space.attributes();
        for _ in 0..ORPHAN_MAX_ROUNDS {
            // Load this before the mmap lock is taken, because the mmap lock may be taken under the
            // mutex that is taken here. The watched ranges only grow.
            let watched = self.space.watched();
            let mmap = space.mmap_lock_here()?;
            let settled = attributes.resolve_orphans(watched, |offset, from| {
                let vma = mmap.vma_of_offset(from << PAGE_SHIFT, offset)?;
                Some(Relocated {
                    first: vma.start() >> PAGE_SHIFT,
                    pages: (vma.end() - vma.start()) >> PAGE_SHIFT,
                    offset: vma.offset(),
                    anchor: anchor(&vma),
                })
            });
            let Err(unwatched) = settled else {
                return Ok(mmap);
            };
            drop(mmap);
            match Space::watch_attributes(&self.space, space, unwatched) {
                Ok(()) => {}
                Err(error) if error == EINTR => return Err(error),
                Err(_) => break,
            }
        }
        let mmap = space.mmap_lock_here()?;
        attributes.forget_aside();
        Ok(mmap)
    }
}

impl<D: Device> Mirror<D> {
    /// Returns whether attributes were ever set in the process, for any device. If not, policies
    /// alone decide.
    ///
    /// # Context
    ///
    /// Any.
    pub fn has_attributes(&self) -> bool {
        self.inner().space.attributes().was_used()
    }

    /// Changes attributes of `range` for all mirrors of the process. All of `range` must be mapped.
    /// The parts of `change` that concern a device (the preferred location, and access) apply to
    /// the device of this mirror.
    ///
    /// An anonymous VMA that has never been written gets one page, so that its attributes can
    /// follow it when it is moved.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if a value is invalid.
    /// - `EFAULT` if a part is not mapped, or the address space was torn down. The range before
    ///   that part has changed.
    /// - `ENOSPC` if the process has more than 1023 different sets of attributes, or if more than
    ///   64 devices are preferred or access memory. A part may have changed.
    /// - `ENOMEM`
    /// - `EINTR` if a fatal signal is pending.
    /// - `EDEADLK` within a callback.
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    pub fn set_attributes(&self, range: PageRange, change: &AttributeUpdate) -> Result {
        reentry::may_wait()?;
        change.apply(Attributes::DEFAULT)?;
        let space = self.space()?;
        Space::watch_attributes(&self.inner().space, &space, range)?;
        let mut rest = Some(range);
        while let Some(range) = rest {
            let (end, untouched) = self.set_in_mapping(&space, range, change)?;
            if untouched {
                // Retry once. If there is still no page, the attributes do not follow the VMA.
                match space.fault_in_writable(range.start()) {
                    Err(error) if error == EINTR => return Err(error),
                    _ => {}
                }
                self.set_in_mapping(&space, PageRange::new(range.start(), end)?, change)?;
            }
            rest = range.from_address(end);
        }
        if change.accessed_by == Some(true) {
            self.map_present(&space, range)?;
            // Map the range in the other mirrors that the device has of the process.
            let inner = self.inner();
            let device = Some(inner.device_name());
            let here = self.place_in_space();
            let others = inner.space.mirrors().entered_of(device, here);
            others.for_each(|mirror| mirror.restore(Some(range)));
        }
        Ok(())
    }

    /// Sets the attributes of the part of `range` that lies in the VMA at its start. Returns its
    /// end, and whether the VMA is writable and anonymous but has never been written.
    fn set_in_mapping(
        &self,
        space: &AddressSpace,
        range: PageRange,
        change: &AttributeUpdate,
    ) -> Result<(usize, bool)> {
        let inner = self.inner();
        let mmap = inner.settled(space)?;
        let vma = mmap.vma_lookup(range.start()).ok_or(EFAULT)?;
        let part = PageRange::new(range.start(), range.end().min(vma.end()))?;
        let anchor = anchor(&vma);
        let writable = vma.flags() & flags::WRITE != 0;
        let _charge = space.charge();
        let device = inner.device_name();
        inner
            .space
            .attributes()
            .change(part, anchor, change, device)?;
        inner.lock().immovable.remove(part);
        Ok((
            part.end(),
            vma.is_anonymous() && writable && vma.anon() == 0,
        ))
    }

    /// Returns the attributes that all of `range` has, as the device of this mirror sees them. An
    /// attribute that differs within `range` is `None`. Unmapped parts have the defaults.
    ///
    /// # Errors
    ///
    /// - `EFAULT` if the address space was torn down.
    /// - `EINTR` if a fatal signal is pending.
    /// - `EDEADLK` within a callback.
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    ///
    /// # Examples
    ///
    /// ```
    /// # use kernel::prelude::*;
    /// use rust_hmm::attributes::PreferredLocation;
    /// use rust_hmm::mirror::Device;
    /// use rust_hmm::mirror::Mirror;
    /// use rust_hmm::mm::addr::PageRange;
    ///
    /// /// Returns whether all pages of a range should be on the device.
    /// fn belongs_here<D: Device>(mirror: &Mirror<D>, range: PageRange) -> Result<bool> {
    ///     Ok(mirror.attributes(range)?.preferred == Some(PreferredLocation::Device))
    /// }
    /// ```
    pub fn attributes(&self, range: PageRange) -> Result<CommonAttributes> {
        reentry::may_wait()?;
        let space = self.space()?;
        let inner = self.inner();
        let _mmap = inner.settled(&space)?;
        let attributes = inner.space.attributes();
        Ok(attributes.common(range, inner.device_name()))
    }

    /// Returns the attributes and properties of the memory at `addr`.
    ///
    /// # Errors
    ///
    /// - `EFAULT` if nothing is mapped at `addr`.
    pub(crate) fn attributes_at(&self, space: &AddressSpace, addr: usize) -> Result<AttributesAt> {
        let inner = self.inner();
        let mmap = inner.settled(space)?;
        let vma = mmap.vma_lookup(addr).ok_or(EFAULT)?;
        let mapping = PageRange::new(vma.start(), vma.end())?;
        let all = inner.space.attributes();
        let (attributes, limits) = if all.was_used() {
            all.at(addr, mapping, inner.device_name())
        } else {
            (Attributes::DEFAULT, mapping)
        };
        let found = AttributesAt {
            attributes,
            limits,
            movable: vma.may_migrate(),
            whole: false,
        };
        #[cfg(CONFIG_RUST_HMM_MANAGED)]
        let found = match Flags::of(vma.anonymous_offset()) {
            Some(flags) if attributes == Attributes::DEFAULT => AttributesAt {
                attributes: flags.attributes(),
                whole: flags.populate && !flags.host_shared,
                ..found
            },
            _ => found,
        };
        Ok(found)
    }

    /// Returns the first part of `piece` that has the same attributes, and whether its pages may
    /// move to the device. If they may not, the part lies within one VMA.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the pages may not move, and a migration would refuse the VMA.
    /// - `EINTR` if a fatal signal is pending.
    pub(crate) fn movable(
        &self,
        space: &AddressSpace,
        piece: PageRange,
    ) -> Result<(PageRange, bool)> {
        let inner = self.inner();
        let attributes = inner.space.attributes();
        if !attributes.was_used() || !attributes.any(piece) {
            return Ok((piece, true));
        }
        let mmap = inner.settled(space)?;
        let (first, part) = attributes.at(piece.start(), piece, inner.device_name());
        if !first.never_migrate() {
            return Ok((part, true));
        }
        let (vma, part) = mmap.readable(part)?;
        // Refuses special VMAs. One page suffices, because that is a property of the VMA.
        vma.uniform_prefix(PageRange::from_pages(part.start(), 1)?, MemoryId::NONE)?;
        Ok((part, false))
    }

    /// Returns whether the device has an entry for the page at `addr` that refers to its own
    /// memory.
    pub(crate) fn has_device_entry(&self, addr: usize) -> bool {
        let leaf = self.inner().reader.walk(addr);
        leaf.is_some_and(|leaf| leaf.entry.is_valid() && leaf.entry.is_device())
    }

    /// Returns the number of pages of `piece` in the mirror's own memory. Only pages with a device
    /// entry count.
    pub(crate) fn on_device(&self, piece: PageRange) -> usize {
        let mut count = 0;
        let inner = self.inner();
        inner.each_resident(piece, |_, pages| count += pages);
        count
    }

    /// See [`MirrorShared::map_present`].
    pub(crate) fn map_present(&self, space: &AddressSpace, range: PageRange) -> Result {
        self.inner().map_present(space, range)
    }
}

impl<D: Device> MirrorShared<D> {
    /// Maps memory that attributes say the device accesses: in the ranges where it has lost entries
    /// since the last call, and in `range`. Best effort.
    pub(super) fn restore(&self, range: Option<PageRange>) -> Result {
        let mut all = core::mem::take(&mut *self.lock().lost);
        if let Some(range) = range {
            all.add(range);
        }
        let mut lost = all.take().peekable();
        if lost.peek().is_none() {
            return Ok(());
        }
        let space = AddressSpace::new(self.space.mm())?;
        let _charge = space.charge();
        drop(self.settled(&space)?);
        let all = self.space.attributes();
        for range in lost {
            let mut rest = Some(range);
            while let Some(range) = rest {
                let (attributes, part) = all.at(range.start(), range, self.device_name());
                if attributes.accessed_by() {
                    self.map_present(&space, part)?;
                }
                rest = range.from_address(part.end());
            }
        }
        Ok(())
    }
}
