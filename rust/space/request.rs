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

/// What a migration wants.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) name: Cookie,
    pub(crate) identity: Identity,
    /// At most 2 MiB.
    pub(crate) range: PageRange,
    /// The device keeps reading: the own events leave marked entries alone.
    pub(crate) faultless: bool,
    /// Owner of the memory in which the pages will be, if only its devices can use that. Other devices lose their entries
    /// the ordinary way.
    pub(crate) only_for: Option<Cookie>,
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
