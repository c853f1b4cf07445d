// SPDX-License-Identifier: GPL-2.0

//! Migration from another device, requested by the driver. Pages move directly, or through system
//! memory if the devices have no connection.

use crate::{
    connection::{
        first_of_tile,
        Connection, //
    },
    debug::events::{
        Event,
        MigrateReason, //
    },
    kernel::reentry,
    mirror::{
        Device,
        InstallFilter,
        Mirror,
        Outcome, //
    },
    mm::addr::PageRange, //
};
use kernel::{
    mm::virt::flags,
    prelude::*, //
};

impl<D: Device> Mirror<D> {
    /// Migrates pages of `range` from the memory of `source`'s device to this device. Depending on
    /// their [connection](Self::connection), pages are copied through system memory or directly. If
    /// pages are used in place, they do not move, and this device gets PTEs for them.
    ///
    /// Both devices can read the pages during a direct copy: the device of `source` reads the old
    /// pages until they have moved.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the mirrors belong to different address spaces.
    /// - Those of [`Migrate::to_device`](crate::migrate::Migrate::to_device).
    ///
    /// # Context
    ///
    /// As [`Migrate::to_device`](crate::migrate::Migrate::to_device).
    ///
    /// # Examples
    ///
    /// ```
    /// # use kernel::prelude::*;
    /// use rust_hmm::connection::Connection;
    /// use rust_hmm::mirror::Device;
    /// use rust_hmm::mirror::Mirror;
    /// use rust_hmm::mm::addr::PageRange;
    ///
    /// /// Moves pages to a device from the one that wrote them, unless it can use them in place.
    /// fn hand_over<D: Device>(range: PageRange, from: &Mirror<D>, to: &Mirror<D>) -> Result {
    ///     if to.connection(from) != Connection::Unified {
    ///         to.pull(range, from)?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn pull(&self, range: PageRange, source: &Self) -> Result<Outcome> {
        reentry::may_wait()?;
        if self.mm_id() != source.mm_id() {
            return Err(EINVAL);
        }
        match self.connection(source) {
            Connection::None => self.pull_through_system(range, source),
            Connection::Migratable => {
                let inner = self.inner();
                let to_device = true;
                let trigger = MigrateReason::Pull;
                inner.emit(&Event::MigrateBegin {
                    range,
                    to_device,
                    trigger,
                });
                let mut outcome = Outcome::default();
                let theirs = source.device().memory().ok_or(ENODEV)?;
                let result = self.pull_directly(range, theirs, true, &mut outcome);
                let stayed = outcome.no_memory + outcome.copy_failed;
                inner.emit(&Event::MigrateEnd {
                    to_device,
                    trigger,
                    moved: outcome.moved,
                    switched: outcome.switched,
                    stayed,
                    result,
                });
                result.map(|()| outcome)
            }
            Connection::Unified => {
                let space = self.space()?;
                let mut prealloc = self.prealloc();
                let mut rest = Some(range);
                while let Some(left) = rest {
                    let piece = left.pmd_pieces().next().ok_or(EINVAL)?;
                    // The first hole in the range ends the call with an error, as in all functions
                    // that migrate memory.
                    let end = {
                        let mmap = space.mmap_lock_here()?;
                        let vma = mmap.vma_lookup(piece.start());
                        let vma = vma.filter(|vma| vma.flags() & flags::READ != 0);
                        vma.ok_or(EINVAL)?.end().min(piece.end())
                    };
                    let piece = PageRange::new(piece.start(), end)?;
                    self.inner().install_present(
                        &space,
                        piece,
                        InstallFilter::All,
                        &mut prealloc,
                    )?;
                    rest = left.from_address(end);
                }
                Ok(Outcome::default())
            }
        }
    }

    /// Pulls as [`Self::pull`], for devices whose memories have no connection.
    fn pull_through_system(&self, range: PageRange, source: &Self) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        // A device without memory has no pages to migrate.
        let Some(memory) = source.device().memory() else {
            return Ok(outcome);
        };
        let tile = memory.tile();
        let space = self.space()?;
        let mut rest = Some(range);
        while let Some(left) = rest {
            let piece = left.pmd_pieces().next().ok_or(EINVAL)?;
            let (end, run) = first_of_tile(&space.mmap_lock_here()?, piece, tile)?;
            // Pages in system memory are not migrated.
            if let Some(run) = run {
                source
                    .migrate(run)
                    .reason(MigrateReason::Pull)
                    .to_system()?;
                outcome += self.migrate(run).reason(MigrateReason::Pull).to_device()?;
            }
            rest = left.from_address(end);
        }
        Ok(outcome)
    }
}
