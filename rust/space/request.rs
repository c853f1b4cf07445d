// SPDX-License-Identifier: GPL-2.0

//! What a migration tells the mirrors whose pages it moves.

use crate::mm::{
    addr::PageRange,
    notifier::{Cookie, Event, Reason},
};
use kernel::{prelude::*, task::Pid};

/// How a migration recognises the events that it causes itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Identity {
    /// They carry its name: nothing else does.
    Name,
    /// They carry the owner of the device's memory, as others' may; but they are sent by this task,
    /// within the range.
    Task {
        /// The task.
        pid: Pid,
        /// Owner of the device's memory.
        owner: Cookie,
    },
}

impl Identity {
    /// The current task, with pages of `owner`.
    pub(crate) fn current(owner: Cookie) -> Self {
        Self::Task {
            pid: current!().pid(),
            owner,
        }
    }
}

/// The memory into which pages migrate.
#[derive(Clone, Copy)]
pub(crate) enum Destination {
    /// System memory, or any at all for a migration from device to device, which the source has to
    /// join: every device does.
    Any,
    /// Private memory of this name. Its own device can address it, and others of the same owner of
    /// which the connection says so.
    Private(Cookie),
    /// Coherent memory of this name. A device with memory of its own uses it in place only if its
    /// connection says so.
    Coherent(Cookie),
}

/// What a migration wants.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) name: Cookie,
    pub(crate) identity: Identity,
    /// At most 2 MiB.
    pub(crate) range: PageRange,
    /// The device keeps reading: the own events leave marked entries alone.
    pub(crate) faultless: bool,
    /// Where the pages will be. A device that cannot use them there does not join: it loses its
    /// entries by the events of the migration.
    pub(crate) destination: Destination,
}

impl Request {
    /// Whether the migration has caused `event`.
    pub(crate) fn has_caused(&self, event: &Event<'_>) -> bool {
        match self.identity {
            Identity::Name => event.is_from(self.name),
            Identity::Task { pid, owner } => {
                event.is_from(owner)
                    && event.reason == Reason::Migrate
                    && current!().pid() == pid
                    && self.range.intersect(&event.range) == Some(event.range)
            }
        }
    }
}
