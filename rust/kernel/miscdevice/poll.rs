// SPDX-License-Identifier: GPL-2.0

//! Arguments and results of [`OpenFile::poll`](super::OpenFile::poll).
//!
//! C header: [`include/linux/poll.h`](srctree/include/linux/poll.h)

use kernel::{
    fs::File,
    sync::poll::{
        PollCondVar,
        PollTable, //
    }, //
};

/// Events that `poll` reports.
///
/// # Examples
///
/// ```
/// use kernel::sync::atomic::{
///     ordering::Acquire,
///     Atomic, //
/// };
/// use kernel::sync::poll::PollCondVar;
/// use rust_hmm::kernel::miscdevice::PollFlags;
/// use rust_hmm::kernel::miscdevice::Poller;
///
/// /// Answers for a file that has `unread` events. Each new event notifies `changed`.
/// fn poll(unread: &Atomic<u32>, changed: &PollCondVar, waiter: &Poller<'_>) -> PollFlags {
///     waiter.add(changed);
///     match unread.load(Acquire) {
///         0 => PollFlags::NOTHING,
///         _ => PollFlags::READ,
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollFlags(pub(super) u32);

impl PollFlags {
    // Copied from include/uapi/linux/eventpoll.h, because the bindings lack these macros.
    const EPOLLIN: u32 = 0x1;
    const EPOLLPRI: u32 = 0x2;
    const EPOLLOUT: u32 = 0x4;
    const EPOLLERR: u32 = 0x8;
    const EPOLLRDNORM: u32 = 0x40;
    const EPOLLWRNORM: u32 = 0x100;

    /// Every operation would block.
    pub const NOTHING: Self = Self(0);
    /// A read does not block.
    pub const READ: Self = Self(Self::EPOLLIN | Self::EPOLLRDNORM);
    /// A condition other than data, which the driver defines.
    pub const PRIORITY: Self = Self(Self::EPOLLPRI);
    /// Neither reads nor writes block.
    pub const EVERYTHING: Self = Self(Self::READ.0 | Self::EPOLLOUT | Self::EPOLLWRNORM);
    /// An error: no notification will ever follow.
    pub const ERROR: Self = Self(Self::EPOLLERR);
}

impl core::ops::BitOr for PollFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A caller of `poll`, which can be added to wait queues.
pub struct Poller<'p> {
    pub(super) file: &'p File,
    pub(super) table: PollTable<'p>,
}

impl Poller<'_> {
    /// Adds the caller to the wait queue of `changed`.
    ///
    /// # Context
    ///
    /// Within [`OpenFile::poll`](super::OpenFile::poll).
    pub fn add(&self, changed: &PollCondVar) {
        self.table.register_wait(self.file, changed);
    }
}
