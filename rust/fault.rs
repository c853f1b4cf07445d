// SPDX-License-Identifier: GPL-2.0

//! Device faults.
//!
//! [`Mirror::fault`] makes memory accessible where it is: it installs entries for the pages that
//! the CPU page table maps, and faults in missing ones. [`Mirror::fault_with_policy`] first
//! migrates memory to the device, if attributes or a policy require it.
//!
//! The entries themselves are installed by `mirror::install`. `migrate` and `connection` do not
//! call faults, because a fault migrates memory and pulls pages from other tiles.

use crate::{
    debug::{
        events::Event,
        stats::Counter, //
    },
    kernel::reentry,
    mirror::{
        Device,
        FaultRequest,
        Mirror, //
    },
    mm::{
        addr::{
            PageRange,
            PMD_PAGES, //
        },
        range_fault::{
            Access,
            AddressSpace,
            PfnBuffer, //
        }, //
    },
    pgtable::Prealloc, //
};
use kernel::prelude::*;

mod place;
mod policy;

pub use policy::FaultOutcome;

/// Maximum number of pulls from other tiles for one fault on a block. A block has at most half as
/// many runs of pages.
const FAULT_MAX_PULLS: usize = 2 * PMD_PAGES;

/// Handling of pages of another tile that the device cannot reach but can pull.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TilePages {
    /// The fault pulls them to the mirror's own memory.
    Pull,
    /// The fault migrates them to system memory, which both tiles can reach. Used for pages that
    /// bounce between tiles.
    ToSystem,
}

impl<D: Device> Mirror<D> {
    /// Makes `range` accessible to the device, and faults in missing pages as a CPU access would.
    ///
    /// Each page is mapped with the access rights of its CPU PTE. A read fault does not break COW.
    ///
    /// # Errors
    ///
    /// Entries that were installed before the error stay.
    ///
    /// - `EFAULT` if memory is not mapped, not readable, or special (`VM_IO`, `VM_PFNMAP`), if the
    ///   device lost its contents, or if the address space was torn down.
    /// - `ERANGE` if memory is mapped beyond the addresses that the device page table supports.
    ///   Nothing is faulted in there.
    /// - `EPERM` if memory is not writable and `access` is a write.
    /// - `EBUSY` if the range was invalidated repeatedly, for a second and 100 attempts.
    /// - `EINTR` if a fatal signal is pending.
    /// - `ENOMEM`
    /// - `ENODEV` if the device memory was unplugged, or the DMA device was closed.
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
    /// use rust_hmm::mirror::Device;
    /// use rust_hmm::mirror::Mirror;
    /// use rust_hmm::mm::addr::PageRange;
    /// use rust_hmm::mm::range_fault::Access;
    ///
    /// /// Handles a fault, and reports to the device whether it may replay the access.
    /// fn replay<D: Device>(mirror: &Mirror<D>, range: PageRange) -> Result<bool> {
    ///     match mirror.fault(range, Access::Read) {
    ///         Ok(()) => Ok(true),
    ///         // The range changes too often: the access faults again.
    ///         Err(error) if error == EBUSY => Ok(true),
    ///         Err(error) if error == EFAULT => Ok(false),
    ///         Err(error) => Err(error),
    ///     }
    /// }
    /// ```
    pub fn fault(&self, range: PageRange, access: Access) -> Result {
        self.fault_from(range, access, TilePages::Pull, &mut 0)
    }

    /// As [`Self::fault`]. Adds the number of pages that were pulled from other tiles to `pulled`,
    /// also if an error is returned.
    fn fault_from(
        &self,
        range: PageRange,
        access: Access,
        tiles: TilePages,
        pulled: &mut usize,
    ) -> Result {
        // Before the first event: `Device::event` may be the caller, and would be called
        // recursively.
        reentry::may_wait()?;
        let write = access == Access::Write;
        let inner = self.inner();
        inner.emit(&Event::FaultBegin { range, write });
        let result = self.fault_all(range, access, tiles, pulled);
        self.stats().add(Counter::Faults, 1);
        inner.emit(&Event::FaultEnd {
            range,
            write,
            result,
        });
        result
    }

    fn fault_all(
        &self,
        range: PageRange,
        access: Access,
        tiles: TilePages,
        pulled: &mut usize,
    ) -> Result {
        let mut buffer = PfnBuffer::new()?;
        let mut prealloc = self.prealloc();
        let space = self.space()?;
        let _charge = space.charge();
        for piece in range.pmd_pieces() {
            self.check_reach(&space, piece)?;
            let buffers = (&mut buffer, &mut prealloc);
            self.fault_block(&space, piece, access, (tiles, &mut *pulled), buffers)?;
        }
        Ok(())
    }

    fn fault_block(
        &self,
        space: &AddressSpace,
        piece: PageRange,
        access: Access,
        (tiles, pulled): (TilePages, &mut usize),
        (buffer, prealloc): (&mut PfnBuffer, &mut Prealloc<D::Format>),
    ) -> Result {
        let inner = self.inner();
        for _ in 0..FAULT_MAX_PULLS {
            let asked = FaultRequest::FaultIn(access);
            let Some(unreached) = inner.fault_piece(space, piece, asked, buffer, prealloc)? else {
                return Ok(());
            };
            let tile = unreached.tile().filter(|_| tiles == TilePages::Pull);
            let moved = tile.map_or(Ok(0), |tile| self.pull_from(unreached.range(), tile))?;
            *pulled += moved;
            if moved == 0 {
                let brought = FaultRequest::FaultInSystem(access);
                inner
                    .fault_piece(space, unreached.range(), brought, buffer, prealloc)
                    .map(drop)?;
            }
        }
        Err(EBUSY)
    }
}
