// SPDX-License-Identifier: GPL-2.0
//! Errors that the model expects. Any other error fails the run.

use super::{
    fail,
    Fail,
    Lane, //
};
use crate::torture::op::{
    Rights,
    Span, //
};
use hmm::Errno;

/// Errors that any operation may return: no memory for its own data or for destination pages
/// (ENOMEM); pages that kept changing, or that have other references (EBUSY).
const NO_ROOM: [Errno; 2] = [Errno::ENOMEM, Errno::EBUSY];

impl Lane<'_> {
    /// The error of a device access to the range, if the model denies access to a part of it.
    pub(super) fn denied(&self, at: Span, write: bool) -> Option<Errno> {
        let page = self.allowed(at, write).err()?;
        let page = &self.regions[at.r].pages[page];
        if page.mapped && page.rights == Rights::Read {
            Some(Errno::EPERM)
        } else {
            Some(Errno::EFAULT)
        }
    }

    /// Counts the error of a device access if the model expects it; fails otherwise.
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

    /// Whether a migration of the range must fail: a part is unmapped, unreadable or hugetlb
    /// memory.
    pub(super) fn refuses_to_move(&self, at: Span) -> bool {
        self.allowed(at, false).is_err() || self.regions[at.r].is_hugetlb
    }

    /// Counts the error of a migration if the model expects it; fails otherwise.
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

    /// Fails if a migration of the range succeeded although a part of it is unmapped or unreadable.
    /// In hugetlb memory it may succeed if there was no page to migrate.
    pub(super) fn moved_rightly(&mut self, what: &str, at: Span) -> Result<(), Fail> {
        match self.allowed(at, false) {
            Ok(()) => Ok(()),
            Err(page) => {
                fail(what, format!("succeeded although memory cannot migrate: page {page}"))
            }
        }
    }

    /// Counts the error of an operation on managed memory if it is a lack of memory or an injected
    /// failure; fails otherwise.
    pub(super) fn expect_room(&mut self, what: &str, error: Errno) -> Result<(), Fail> {
        if !NO_ROOM.contains(&error) && self.excused() {
            self.note(format!("  {what}: {error}, injected"));
            return Ok(());
        }
        self.expect(what, error, &NO_ROOM)
    }
}
