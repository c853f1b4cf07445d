// SPDX-License-Identifier: GPL-2.0

//! Memories of a device that has several (tiles), as a mirror at home on one of them uses the
//! others.
//!
//! For a device with one memory all of this is a look at [`Memory::has_siblings`].

use super::{
    fault::What,
    Device,
    Inner,
    Mirror, //
};
use crate::{
    connection::Connection,
    memory::Memory,
    migrate::Outcome,
    mm::{
        addr::PageRange,
        notifier::Cookie,
        range_fault::{Access, AddressSpace, HmmPfn, PfnBuffer},
    },
    pgtable::Spares,
};
use kernel::prelude::*;

/// Most tiles that a device can list.
const MOST: usize = 64;

/// Where a page is that is not in the memory at home.
pub(super) enum Elsewhere<'a, D: Device> {
    /// In memory that the CPU can address.
    System,
    /// In a tile that the device reaches, with the number of its entry.
    Reached(&'a Memory<D::Memory>, usize),
    /// In private memory that the device does not reach: that of a tile, or one that is not listed.
    Unreached(Option<Cookie>),
}

/// Consecutive pages in private memory that the device does not reach, and the name of the tile.
#[derive(Clone, Copy)]
pub(super) struct Unreached {
    range: PageRange,
    tile: Option<Cookie>,
}

impl Unreached {
    /// Adds the page at `addr` to `found`, if it continues it.
    pub(super) fn note(found: &mut Option<Self>, addr: usize, tile: Option<Cookie>) {
        let Ok(page) = PageRange::from_pages(addr, 1) else {
            return;
        };
        match found {
            None => *found = Some(Self { range: page, tile }),
            Some(run) if run.tile == tile && run.range.end() == addr => {
                run.range = run.range.hull(&page);
            }
            Some(_) => {}
        }
    }
}

impl<D: Device> Inner<D> {
    /// The other memories of the device. Those of another owner are left out, because their numbers
    /// would name other pages, too. Context: any.
    pub(super) fn tiles(&self) -> impl Iterator<Item = &Memory<D::Memory>> + '_ {
        let home = self.device.memory().filter(|home| home.has_siblings());
        let listed = (0..MOST).map_while(move |index| home.and(self.device.tile(index)));
        listed.filter(move |tile| {
            home.is_some_and(|home| tile.owner() == home.owner() && tile.tile() != home.tile())
        })
    }

    /// Asks the drivers how the memory at home reaches the others, so that [`Self::elsewhere`] has
    /// the answers. Context: may sleep; no lock may be held.
    #[inline]
    pub(super) fn ask_tiles(&self) {
        if let Some(home) = self.device.memory().filter(|home| home.has_siblings()) {
            for tile in self.tiles() {
                home.connection(tile);
            }
        }
    }

    /// Whether pages of `tile` are used in place. A tile that was unplugged has closed its arrivals
    /// before it removes the entries of its mirrors, so that under the table lock none comes after.
    fn reaches(&self, tile: &Memory<D::Memory>) -> bool {
        let home = self.device.memory();
        !tile.is_gone()
            && home.and_then(|home| home.known().peek(tile.tile())) == Some(Connection::Unified)
    }

    /// Where the page of `pfn` is, which is not in the memory at home. Context: may sleep; the
    /// table lock may be held.
    // Not inlined: a device with one memory never has it.
    #[inline(never)]
    pub(super) fn elsewhere(&self, pfn: HmmPfn) -> Elsewhere<'_, D> {
        let found = self
            .tiles()
            .find_map(|tile| Some((tile, tile.entry_number(pfn.pfn())?)));
        match found {
            Some((tile, number)) if self.reaches(tile) => Elsewhere::Reached(tile, number),
            Some((tile, _)) if tile.is_private() => Elsewhere::Unreached(Some(tile.tile())),
            None if pfn.is_device_private() => Elsewhere::Unreached(None),
            _ => Elsewhere::System,
        }
    }

    /// The tile that has page frame `pfn`, if the device reaches it. Context: as
    /// [`Self::elsewhere`].
    pub(super) fn reached(&self, pfn: usize) -> Option<&Memory<D::Memory>> {
        self.tiles()
            .find(|tile| tile.entry_number(pfn).is_some() && self.reaches(tile))
    }

    /// The memory of page `number` of an entry. Context: any.
    #[inline]
    pub(super) fn memory_of(&self, number: usize) -> Option<&Memory<D::Memory>> {
        let home = self.device.memory()?;
        match home.has(number) {
            true => Some(home),
            false => self.tiles().find(|tile| tile.has(number)),
        }
    }
}

impl<D: Device> Mirror<D> {
    /// The tile of this name, if pages can be pulled from it to the memory at home. Context: may
    /// sleep.
    fn connected_tile(&self, name: Option<Cookie>) -> Option<&Memory<D::Memory>> {
        let home = self.device().memory()?;
        let tile = self
            .inner()
            .tiles()
            .find(|tile| Some(tile.tile()) == name)?;
        (!tile.is_gone() && home.connection(tile) != Connection::None).then_some(tile)
    }

    /// Moves pages of a tile that the device does not reach: to its own memory, or to system memory
    /// if that is not possible.
    // Its variables need not be on the stacks of devices with one memory.
    #[inline(never)]
    pub(super) fn fetch(
        &self,
        space: &AddressSpace,
        unreached: Unreached,
        access: Access,
        buffer: &mut PfnBuffer,
        spares: &mut Spares<D::Format>,
    ) -> Result {
        let Unreached { range, tile } = unreached;
        if let Some(tile) = self.connected_tile(tile) {
            let mut outcome = Outcome::default();
            match self.pull_directly(range, tile, &mut outcome) {
                Err(error) if error == EINTR => return Err(error),
                _ if outcome.moved != 0 => return Ok(()),
                _ => {}
            }
        }
        let brought = What::Brought(access);
        self.inner()
            .fault_piece(space, range, brought, buffer, spares)
            .map(drop)
    }
}
