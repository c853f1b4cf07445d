// SPDX-License-Identifier: GPL-2.0

//! Memories of a device that has several (tiles), as a mirror at home on one of them uses the
//! others.
//!
//! For a device with one memory all of this is a look at [`Memory::shares_owner`].

use super::{Device, Inner, Mirror};
use crate::{
    connection::Connection,
    memory::Memory,
    migrate::Outcome,
    mm::{addr::PageRange, notifier::Cookie, range_fault::HmmPfn},
    pgtable::Entry,
};
use kernel::prelude::*;

/// Most tiles that a device can list.
const MOST: usize = 64;

/// The tiles of which a device uses pages in place. Bit `index` is that of `Device::tile(index)`.
#[derive(Clone, Copy, Default)]
pub(super) struct Reach(u64);

impl Reach {
    fn has(self, index: usize) -> bool {
        self.0 >> index & 1 != 0
    }
}

/// Consecutive pages in private memory that the device does not reach, and the name of the tile.
#[derive(Clone, Copy)]
pub(super) struct Unreached {
    range: PageRange,
    tile: Option<Cookie>,
}

impl Unreached {
    /// Their addresses.
    pub(super) fn range(self) -> PageRange {
        self.range
    }

    /// The tile, if it is one of the device.
    pub(super) fn tile(self) -> Option<Cookie> {
        self.tile
    }

    /// Adds the page at `addr` to `found`, if it continues it.
    fn note(found: &mut Option<Self>, addr: usize, tile: Option<Cookie>) {
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
    /// The other memories of the device, with their numbers. Those of another owner are left out,
    /// because their numbers of pages would name other pages, too. Context: any.
    fn numbered_tiles(&self) -> impl Iterator<Item = (usize, &Memory<D::Memory>)> + '_ {
        let home = self.device.memory().filter(|home| home.shares_owner());
        let listed = (0..MOST).map_while(move |index| {
            let tile = home.and(self.device.tile(index))?;
            Some((index, tile))
        });
        listed.filter(move |(_, tile)| {
            home.is_some_and(|home| tile.owner() == home.owner() && tile.tile() != home.tile())
        })
    }

    /// The other memories of the device. Context: any.
    pub(super) fn tiles(&self) -> impl Iterator<Item = &Memory<D::Memory>> + '_ {
        self.numbered_tiles().map(|(_, tile)| tile)
    }

    /// The tiles that the device reaches from its home: asks the drivers. Not under the table lock,
    /// where each page would have to take the lock of the answers. Context: may sleep; no lock may
    /// be held.
    #[inline]
    pub(super) fn reach(&self) -> Reach {
        match self.device.memory().filter(|home| home.shares_owner()) {
            Some(home) => self.reach_from(home),
            None => Reach::default(),
        }
    }

    #[inline(never)]
    fn reach_from(&self, home: &Memory<D::Memory>) -> Reach {
        let mut reach = Reach::default();
        for (index, tile) in self.numbered_tiles() {
            if home.connection(tile) == Connection::Unified {
                reach.0 |= 1 << index;
            }
        }
        reach
    }

    /// The entry for the page of `pfn` at `addr`, which is not in the memory at home. `None` if it is
    /// in private memory that the device does not reach, which is noted in `unreached`.
    ///
    /// A tile that was unplugged has closed its arrivals before it removes the entries of its
    /// mirrors, so that under the table lock none comes after. Context: may sleep; the table lock is
    /// held.
    // Not inlined: a device with one memory never has it.
    #[inline(never)]
    pub(super) fn elsewhere(
        &self,
        addr: usize,
        pfn: HmmPfn,
        reach: Reach,
        unreached: &mut Option<Unreached>,
    ) -> Option<Entry> {
        let found = self
            .numbered_tiles()
            .find_map(|(index, tile)| Some((index, tile, tile.lookup(pfn.pfn())?)));
        match found {
            Some((index, tile, local)) if reach.has(index) && !tile.is_gone() => {
                tile.touch_page(local);
                let number = tile.first_number() + local;
                return Some(Entry::device(number, pfn.is_writable()));
            }
            Some((_, tile, _)) if tile.is_private() => {
                Unreached::note(unreached, addr, Some(tile.tile()));
            }
            None if pfn.is_device_private() => Unreached::note(unreached, addr, None),
            _ => return Some(Entry::system(pfn.pfn(), pfn.is_writable())),
        }
        None
    }

    /// The tile that has page frame `pfn`, if the device is known to reach it. It may have been
    /// unplugged. Context: may sleep.
    pub(super) fn reached(&self, pfn: usize) -> Option<&Memory<D::Memory>> {
        let home = self.device.memory()?;
        let tile = self.tiles().find(|tile| tile.lookup(pfn).is_some())?;
        (home.known().peek(tile.tile()) == Some(Connection::Unified)).then_some(tile)
    }

    /// See [`MirrorOps::home_name`](crate::space::MirrorOps::home_name).
    pub(super) fn home_name(&self) -> Cookie {
        let home = self.device.memory().map(Memory::tile);
        home.unwrap_or_else(|| self.device_name())
    }

    /// Whether page `number` of an entry is in the memory at home. Context: any.
    #[inline]
    pub(super) fn is_at_home(&self, number: usize) -> bool {
        let home = self.device.memory();
        home.is_some_and(|home| !home.shares_owner() || home.local(number).is_some())
    }

    /// The memory of page `number` of an entry, and its number there. Context: any.
    #[inline]
    pub(super) fn page_of(&self, number: usize) -> Option<(&Memory<D::Memory>, usize)> {
        let home = self.device.memory()?;
        match home.shares_owner() {
            true => self.page_of_tile(home, number),
            false => Some((home, number)),
        }
    }

    #[inline(never)]
    fn page_of_tile<'a>(
        &'a self,
        home: &'a Memory<D::Memory>,
        number: usize,
    ) -> Option<(&'a Memory<D::Memory>, usize)> {
        let local = |tile: &'a Memory<D::Memory>| Some((tile, tile.local(number)?));
        local(home).or_else(|| self.tiles().find_map(local))
    }
}

impl<D: Device> Mirror<D> {
    /// The tiles from which pages can be pulled to the memory at home. Context: may sleep.
    fn connected_tiles(&self) -> impl Iterator<Item = &Memory<D::Memory>> + '_ {
        let home = self.device().memory();
        self.inner().tiles().filter(move |tile| {
            !tile.is_gone() && home.is_some_and(|home| home.connection(tile) != Connection::None)
        })
    }

    /// Moves pages of `range` that are in other tiles to the memory at home, best effort. Adds what
    /// has moved to `moved`; what has not is left to the caller.
    ///
    /// # Errors
    ///
    /// `EINTR`: the task was killed. Context: may sleep; no lock may be held.
    #[inline]
    pub(crate) fn gather(&self, range: PageRange, evict: bool, moved: &mut Outcome) -> Result {
        match self.device().memory().is_some_and(Memory::shares_owner) {
            true => self.gather_tiles(range, evict, moved),
            false => Ok(()),
        }
    }

    #[inline(never)]
    fn gather_tiles(&self, range: PageRange, evict: bool, moved: &mut Outcome) -> Result {
        for tile in self.connected_tiles() {
            let mut outcome = Outcome::default();
            let result = self.pull_directly(range, tile, evict, &mut outcome);
            moved.moved += outcome.moved;
            moved.switched += outcome.switched;
            moved.entries += outcome.entries;
            match result {
                Err(error) if error == EINTR => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Moves pages of `range` in the tile of name `tile` to the memory at home, if they are
    /// connected. Returns how many.
    ///
    /// # Errors
    ///
    /// `EINTR`: the task was killed. Context: may sleep; no lock may be held.
    // Its variables need not be on the stacks of devices with one memory.
    #[inline(never)]
    pub(super) fn pull_from(&self, range: PageRange, tile: Cookie) -> Result<usize> {
        let mut outcome = Outcome::default();
        let mut connected = self.connected_tiles();
        if let Some(tile) = connected.find(|connected| connected.tile() == tile) {
            match self.pull_directly(range, tile, true, &mut outcome) {
                Err(error) if error == EINTR => return Err(error),
                _ => {}
            }
        }
        Ok(outcome.moved)
    }
}
