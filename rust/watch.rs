// SPDX-License-Identifier: GPL-2.0

//! Who there is to watch: all mirrors and all device memory, as the files `rust_hmm/mirrors`, `rust_hmm/devices` and
//! `rust_hmm/map` in debugfs show them.
//!
//! A mirror or memory has a [`Seat`] in one list. Who reads holds a lock of the place meanwhile, for a part of
//! the work at a time, so that what he looks at stays. Nothing is taken that a fault or a callback needs, and the page
//! tables are read without a lock.

use crate::{mm::addr::PageRange, pgtable::Entry};
use kernel::{
    fmt,
    prelude::*,
    sync::{Arc, Mutex}, //
};

mod list;
mod map;
mod report;

pub(crate) use list::{exit, init, Seat};
pub(crate) use map::Map;
pub(crate) use report::Report;

/// What is watched.
pub(crate) trait Watched: Send + Sync {
    /// Writes its columns, those of [`MIRROR_COLUMNS`] or [`DEVICE_COLUMNS`] behind the ones that are known here.
    fn columns(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// The device's translations from `from` on; see [`Reader::scan`](crate::pgtable::Reader::scan). `None` for
    /// what has none. Context: may sleep, but for `f`.
    fn translations(
        &self,
        from: usize,
        f: &mut dyn FnMut(PageRange, Entry, bool) -> bool,
    ) -> Option<usize> {
        let _ = (from, f);
        None
    }
}

/// What kind of thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Mirror,
    Device,
}

#[pin_data]
struct Place {
    kind: Kind,
    number: u32,
    /// Of a mirror: the process whose memory it shows.
    pid: i32,
    #[pin]
    subject: Mutex<Option<Arc<dyn Watched>>>,
}
