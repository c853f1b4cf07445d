// SPDX-License-Identifier: GPL-2.0

//! Registry of all mirrors and device memories, shown by the files `rust_hmm/mirrors`,
//! `rust_hmm/devices` and `rust_hmm/map` in debugfs.
//!
//! Each mirror and each device memory is registered by a [`DebugEntry`]. A reader of a file holds
//! the mutex of a registration while it shows a part of the object, so that the object is not
//! dropped meanwhile. Readers take no lock that faults or callbacks take, and walk page tables
//! locklessly.

use crate::{
    mm::addr::PageRange,
    pgtable::DevicePte, //
};
use kernel::{
    fmt,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

mod list;
mod map;
mod report;

pub(crate) use list::{
    exit,
    init,
    DebugEntry, //
};
pub(crate) use map::MapFile;
pub(crate) use report::ObjectReport;

/// An object that is shown in debugfs.
pub(crate) trait DebugObject: Send + Sync {
    /// Writes the columns of the object, which follow those that the registry writes: the rest of
    /// [`MIRROR_COLUMNS`] or [`DEVICE_COLUMNS`].
    fn columns(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// Calls `f` for the device PTEs from address `from` on; see
    /// [`TableReader::scan`](crate::pgtable::TableReader::scan). Returns `None` for objects without
    /// device PTEs.
    ///
    /// # Context
    ///
    /// May sleep, but `f` must not.
    fn translations(
        &self,
        from: usize,
        f: &mut dyn FnMut(PageRange, DevicePte, bool) -> bool,
    ) -> Option<usize> {
        let _ = (from, f);
        None
    }
}

/// Type of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ObjectKind {
    Mirror,
    Device,
}

#[pin_data]
struct RegistryEntry {
    kind: ObjectKind,
    number: u32,
    /// For a mirror, the pid of the process whose memory it mirrors.
    pid: i32,
    #[pin]
    subject: Mutex<Option<Arc<dyn DebugObject>>>,
}
