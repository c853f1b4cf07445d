// SPDX-License-Identifier: GPL-2.0

//! Descriptor of a migration, as the mirrors of its pages see it.

use crate::{
    kernel::identity::{
        MemoryId,
        MigrationId,
        PgmapOwner, //
    },
    mm::{
        addr::PageRange,
        notifier::{
            NotifierEvent,
            NotifierRange, //
        }, //
    }, //
};
use kernel::{
    prelude::*,
    task::Pid, //
};

/// Criterion by which a migration recognises the notifier events that it causes itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventMatch {
    /// By name: its events carry the name of the migration, which is unique.
    Name,
    /// By task and range. Its events carry the owner of the device memory, as do events of other
    /// migrations. The migration's own are sent by this task, and lie within its range.
    Task {
        /// The task.
        pid: Pid,
        /// Owner of the device's memory.
        owner: PgmapOwner,
    },
}

impl EventMatch {
    /// Matches events of the current task with pages of `owner`.
    pub(crate) fn current(owner: PgmapOwner) -> Self {
        Self::Task {
            pid: current!().pid(),
            owner,
        }
    }
}

/// Memory into which pages migrate.
#[derive(Clone, Copy)]
pub(crate) enum Destination {
    /// Every mirror joins. Used for system memory, and for migrations from device to device, which
    /// the mirror of the source must join.
    Any,
    /// System memory, for a CPU that has accessed it. Every mirror joins.
    CpuFault,
    /// Private memory with this identity. Its device can address it. Other devices of the same
    /// owner can if their connection allows it.
    Private(MemoryId),
    /// Coherent memory with this identity. A device that has memory of its own uses it in place
    /// only if its connection allows it.
    Coherent(MemoryId),
}

/// Description of a migration.
#[derive(Clone, Copy)]
pub(crate) struct MigrationDesc {
    pub(crate) name: MigrationId,
    pub(crate) identity: EventMatch,
    /// Must not exceed [`PMD_SIZE`](crate::mm::addr::PMD_SIZE).
    pub(crate) range: PageRange,
    /// Whether devices keep reading: own events leave marked entries alone.
    pub(crate) faultless: bool,
    /// Destination of the pages. A device that cannot use them there does not join. It loses its
    /// entries by the notifier events of the migration.
    pub(crate) destination: Destination,
}

impl MigrationDesc {
    /// Returns whether the migration caused `event`.
    pub(crate) fn has_caused(&self, event: &NotifierRange<'_>) -> bool {
        match self.identity {
            EventMatch::Name => event.is_from(self.name),
            EventMatch::Task { pid, owner } => {
                event.is_from(owner)
                    && event.reason == NotifierEvent::Migrate
                    && current!().pid() == pid
                    && self.range.intersect(&event.range) == Some(event.range)
            }
        }
    }
}
