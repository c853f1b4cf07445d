// SPDX-License-Identifier: GPL-2.0
//! The errors that the model calls for. Every other one fails the run.

use super::{fail, Fail, Lane};
use crate::op::{Rights, Span};
use hmm::Errno;

/// What any operation may meet: no memory for its own data, or for pages at their destination; pages
/// that kept changing or that others hold.
const NO_ROOM: [Errno; 2] = [Errno::ENOMEM, Errno::EBUSY];

impl Lane<'_> {
    /// The error of a device access to the range, if the model does not let the device access all of it.
    pub(super) fn denied(&self, at: Span, write: bool) -> Option<Errno> {
        let page = self.allowed(at, write).err()?;
        let page = &self.regions[at.r].pages[page];
        match page.mapped && page.rights == Rights::Read {
            true => Some(Errno::EPERM),
            false => Some(Errno::EFAULT),
        }
    }

    /// Counts the error of a device access that the model denies, or fails.
    pub(super) fn expect_denied(
        &mut self,
        what: &str,
        error: Errno,
        at: Span,
        write: bool,
    ) -> Result<(), Fail> {
        let denied = self.denied(at, write);
        self.expect(what, error, denied.as_slice())
    }

    /// Whether a migration of the range has to fail: a part is not mapped, cannot be read, or is of hugetlb.
    pub(super) fn refuses_to_move(&self, at: Span) -> bool {
        self.allowed(at, false).is_err() || self.regions[at.r].is_hugetlb
    }

    /// Counts an error of a migration that the model calls for, or fails.
    pub(super) fn expect_move(&mut self, what: &str, error: Errno, at: Span) -> Result<(), Fail> {
        match error {
            Errno::EINVAL if self.refuses_to_move(at) => self.expect(what, error, &[error]),
            Errno::EFAULT | Errno::EIO if self.excused() => {
                self.note(format!("  {what}: {error}, injected"));
                Ok(())
            }
            _ => self.expect(what, error, &NO_ROOM),
        }
    }

    /// Fails if a migration of the range went through, of which a part is not mapped or cannot be read. In hugetlb
    /// memory there may have been nothing to move.
    pub(super) fn moved_rightly(&mut self, what: &str, at: Span) -> Result<(), Fail> {
        match self.allowed(at, false) {
            Ok(()) => Ok(()),
            Err(page) => fail(what, format!("went through where memory cannot move: page {page}")),
        }
    }

    /// Counts an error of work on managed memory, which may meet a lack of memory or a failure that was
    /// injected, or fails.
    pub(super) fn expect_room(&mut self, what: &str, error: Errno) -> Result<(), Fail> {
        if !NO_ROOM.contains(&error) && self.excused() {
            self.note(format!("  {what}: {error}, injected"));
            return Ok(());
        }
        self.expect(what, error, &NO_ROOM)
    }
}
