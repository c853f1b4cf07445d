// SPDX-License-Identifier: GPL-2.0

//! Devices with several memories (tiles). A mirror has a memory of its own, [`Device::memory`],
//! and uses the other tiles by the functions here.
//!
//! For a device with one memory, each of them only checks [`Memory::shares_owner`].

use super::{
    Device,
    MirrorShared, //
};
use crate::{
    kernel::identity::MemoryId,
    memory::{
        Connection,
        Memory, //
    },
    mm::{
        addr::PageRange,
        range_fault::HmmPfn, //
    },
    pgtable::DevicePte,
    space::OwnMemory, //
};

/// Maximum number of tiles that a device can list.
const MAX_TILES: usize = 64;

/// Tiles whose pages a device can use in place. Bit `index` stands for `Device::tile(index)`.
#[derive(Clone, Copy, Default)]
pub(super) struct ReachableTiles(u64);

impl ReachableTiles {
    fn has(self, index: usize) -> bool {
        self.0 >> index & 1 != 0
    }
}

/// Consecutive pages in private memory that the device cannot reach, and the identity of the tile.
#[derive(Clone, Copy)]
pub(crate) struct Unreached {
    range: PageRange,
    tile: Option<MemoryId>,
}

impl Unreached {
    /// Returns the addresses of the pages.
    pub(crate) fn range(self) -> PageRange {
        self.range
    }

    /// Returns the identity of the tile, if it is one of the device's.
    pub(crate) fn tile(self) -> Option<MemoryId> {
        self.tile
    }

    /// Extends `found` by the page at `addr`, if the page continues it.
    fn extend(found: &mut Option<Self>, addr: usize, tile: Option<MemoryId>) {
        let Ok(page) = PageRange::from_pages(addr, 1) else {
            return;
        };
        match found {
            None => *found = Some(Self { range: page, tile }),
            Some(run) if run.tile == tile && run.range.end() == addr => {
                run.range = run.range.union(&page);
            }
            Some(_) => {}
        }
    }
}

impl<D: Device> MirrorShared<D> {
    /// Returns the other memories of the device and their indices. Memories of another owner are
    /// left out, because their device page numbers would be ambiguous.
    ///
    /// # Context
    ///
    /// Any.
    fn numbered_tiles(&self) -> impl Iterator<Item = (usize, &Memory<D::Memory>)> + '_ {
        let own = self.device.memory().filter(|own| own.shares_owner());
        let listed = (0..MAX_TILES).map_while(move |index| {
            let tile = own.and(self.device.tile(index))?;
            Some((index, tile))
        });
        listed.filter(move |(_, tile)| {
            own.is_some_and(|own| tile.owner() == own.owner() && tile.tile() != own.tile())
        })
    }

    /// Returns the other memories of the device.
    ///
    /// # Context
    ///
    /// Any.
    pub(crate) fn tiles(&self) -> impl Iterator<Item = &Memory<D::Memory>> + '_ {
        self.numbered_tiles().map(|(_, tile)| tile)
    }

    /// Returns the tiles that the device can reach from its own memory, as the drivers report
    /// them. Called before the table lock is taken; otherwise each page would have to take the lock
    /// of the connection cache.
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    #[inline]
    pub(super) fn reach(&self) -> ReachableTiles {
        match self.device.memory().filter(|own| own.shares_owner()) {
            Some(own) => self.reach_from(own),
            None => ReachableTiles::default(),
        }
    }

    #[inline(never)]
    fn reach_from(&self, own: &Memory<D::Memory>) -> ReachableTiles {
        let mut reach = ReachableTiles::default();
        for (index, tile) in self.numbered_tiles() {
            if own.connection(tile) == Connection::Unified {
                reach.0 |= 1 << index;
            }
        }
        reach
    }

    /// Returns the entry for the page of `pfn` at `addr`, which is not in the mirror's own memory.
    /// Returns `None` if the page is in private memory that the device cannot reach, and adds the
    /// page to `unreached`.
    ///
    /// Unplug closes a tile's arrivals before it removes the entries of its mirrors. Therefore the
    /// check under the table lock ensures that no entry is installed after that.
    ///
    /// # Context
    ///
    /// May sleep. The table lock is held.
    // Not inlined, because devices with one memory never call it.
    #[inline(never)]
    pub(super) fn elsewhere(
        &self,
        addr: usize,
        pfn: HmmPfn,
        reach: ReachableTiles,
        unreached: &mut Option<Unreached>,
    ) -> Option<DevicePte> {
        let found = self
            .numbered_tiles()
            .find_map(|(index, tile)| Some((index, tile, tile.lookup(pfn.pfn())?)));
        match found {
            Some((index, tile, local)) if reach.has(index) && !tile.is_gone() => {
                tile.touch_page(local);
                let number = tile.first_number() + local;
                return Some(DevicePte::device(number, pfn.is_writable()));
            }
            Some((_, tile, _)) if tile.is_private() => {
                Unreached::extend(unreached, addr, Some(tile.tile()));
            }
            None if pfn.is_device_private() => Unreached::extend(unreached, addr, None),
            _ => return Some(DevicePte::system(pfn.pfn(), pfn.is_writable())),
        }
        None
    }

    /// Returns the tile that contains page frame `pfn`, if the connection cache says that the
    /// device can reach it. The tile may have been unplugged.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn reached(&self, pfn: usize) -> Option<&Memory<D::Memory>> {
        let own = self.device.memory()?;
        let tile = self.tiles().find(|tile| tile.lookup(pfn).is_some())?;
        (own.connections().peek(tile.tile()) == Some(Connection::Unified)).then_some(tile)
    }

    /// See [`MirrorOps::own_memory`](crate::space::MirrorOps::own_memory).
    pub(crate) fn own_memory(&self) -> OwnMemory {
        match self.device.memory() {
            Some(memory) => OwnMemory::Memory(memory.tile()),
            None => OwnMemory::Device(self.device_name()),
        }
    }

    /// Returns whether page `number` of an entry is in the mirror's own memory.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub(super) fn is_in_own_memory(&self, number: usize) -> bool {
        let own = self.device.memory();
        own.is_some_and(|own| !own.shares_owner() || own.local(number).is_some())
    }

    /// Returns the memory of page `number` of an entry, and the page's number in that memory.
    ///
    /// # Context
    ///
    /// Any.
    #[inline]
    pub(super) fn page_of(&self, number: usize) -> Option<(&Memory<D::Memory>, usize)> {
        let own = self.device.memory()?;
        if own.shares_owner() {
            self.page_of_tile(own, number)
        } else {
            Some((own, number))
        }
    }

    #[inline(never)]
    fn page_of_tile<'a>(
        &'a self,
        own: &'a Memory<D::Memory>,
        number: usize,
    ) -> Option<(&'a Memory<D::Memory>, usize)> {
        let page_in = |tile: &'a Memory<D::Memory>| Some((tile, tile.local(number)?));
        page_in(own).or_else(|| self.tiles().find_map(page_in))
    }
}
