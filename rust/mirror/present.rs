// SPDX-License-Identifier: GPL-2.0

//! Entries for pages that are present in the CPU page table: nothing is faulted in.

use super::{
    install::{
        FaultRequest,
        InstallFilter, //
    },
    Device,
    MirrorShared, //
};
use crate::{
    mm::{
        addr::PageRange,
        range_fault::{
            AddressSpace,
            PfnBuffer, //
        }, //
    },
    pgtable::Prealloc, //
};
use kernel::prelude::*;

// These are methods of `MirrorShared`, because an eviction has no [`Mirror`](super::Mirror).
impl<D: Device> MirrorShared<D> {
    /// Installs entries for the present pages of `piece` that `which` selects. Does not fault in
    /// any page.
    ///
    /// # Errors
    ///
    /// As for [`Mirror::fault`].
    ///
    /// # Context
    ///
    /// May sleep. No lock may be held.
    // Not inlined, so that its variables do not enlarge the stack frames of the callers.
    #[inline(never)]
    pub(crate) fn install_present(
        &self,
        space: &AddressSpace,
        piece: PageRange,
        which: InstallFilter,
        prealloc: &mut Prealloc<D::Format>,
    ) -> Result {
        let mut buffer = PfnBuffer::new()?;
        self.fault_piece(
            space,
            piece,
            FaultRequest::Present(which),
            &mut buffer,
            prealloc,
        )
        .map(drop)
    }

    /// As [`Self::install_present`], for pages that were migrated and whose entries were not
    /// replaced. Failures are ignored, because the device can fault the pages later.
    ///
    /// # Errors
    ///
    /// - `EINTR` if a fatal signal is pending.
    pub(crate) fn try_install_present(
        &self,
        space: &AddressSpace,
        piece: PageRange,
        which: InstallFilter,
        prealloc: &mut Prealloc<D::Format>,
    ) -> Result {
        match self.install_present(space, piece, which, prealloc) {
            Err(error) if error == EINTR => Err(error),
            _ => Ok(()),
        }
    }

    /// Installs entries for the present pages of `range`, without faulting in others. Best effort,
    /// except for `EINTR`.
    pub(super) fn map_present(&self, space: &AddressSpace, range: PageRange) -> Result {
        let mut prealloc = self.reader.prealloc();
        for piece in range.pmd_pieces() {
            self.try_install_present(space, piece, InstallFilter::All, &mut prealloc)?;
        }
        Ok(())
    }
}
