// SPDX-License-Identifier: GPL-2.0

//! Pulls of pages from the other tiles of a device, see [`Device::tile`].

use super::Connection;
use crate::{
    kernel::identity::MemoryId,
    memory::Memory,
    mirror::{
        Device,
        Mirror,
        Outcome, //
    },
    mm::addr::PageRange, //
};
use kernel::prelude::*;

impl<D: Device> Mirror<D> {
    /// Returns the tiles whose pages can be pulled to the mirror's own memory.
    ///
    /// # Context
    ///
    /// May sleep.
    fn connected_tiles(&self) -> impl Iterator<Item = &Memory<D::Memory>> + '_ {
        let own = self.device().memory();
        self.inner().tiles().filter(move |tile| {
            !tile.is_gone() && own.is_some_and(|own| own.connection(tile) != Connection::None)
        })
    }

    /// Migrates pages of `range` from other tiles to the mirror's own memory, best effort. Adds the
    /// result to `moved`. The caller handles pages that have not moved.
    ///
    /// # Errors
    ///
    /// - `EINTR` if a fatal signal is pending.
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    #[inline]
    pub(crate) fn gather(&self, range: PageRange, evict: bool, moved: &mut Outcome) -> Result {
        if self.device().memory().is_some_and(Memory::shares_owner) {
            self.gather_tiles(range, evict, moved)
        } else {
            Ok(())
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

    /// Migrates pages of `range` from the tile `tile` to the mirror's own memory, if these are
    /// connected. Returns the number of pages that moved.
    ///
    /// # Errors
    ///
    /// - `EINTR` if a fatal signal is pending.
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    // Not inlined, so that devices with one memory do not need its stack frame.
    #[inline(never)]
    pub(crate) fn pull_from(&self, range: PageRange, tile: MemoryId) -> Result<usize> {
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
