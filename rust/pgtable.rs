// SPDX-License-Identifier: GPL-2.0

//! Device page table: a radix tree whose geometry and entry format the driver chooses.
//!
//! - [`Format`]: geometry and encoding of a device's table. [`Radix4`] is the reference, and
//!   [`Radix5`] the same with one more level. [`formats`] has the formats of real MMUs, and
//!   [`FormatOf`] creates a format from a [`Layout`].
//! - [`Table`]: the interface for updates, used under the table lock.
//! - [`TableReader`]: the interface for walks, which take no lock and run concurrently with
//!   updates.
//! - [`FlushBatch`] → [`Flushing`] → [`Flushed`]: the flush that an update requires, and the proof
//!   that it has completed.
//!
//! The library reads and updates a tree with one encoding for all formats (`tree`). For a device
//! with a hardware walker, each table page has an image in the device's format (`image`), which
//! only the device reads.
//!
//! Table pages are allocated from a pool and identified by their index in it. A table page that is
//! removed from the tree is reused only after a flush has completed, which waits for concurrent
//! walkers.
//!
//! Table pages exist only for ranges that have entries. An update reserves the table pages that it
//! may need before it takes the lock ([`Prealloc`]). Removal never allocates: free table pages,
//! some for each mirror, are kept in the pool to split huge entries that are partially removed. If
//! no free table page is left, the whole huge entry is removed, and the device faults.

mod chunk;
mod cold;
mod directory;
mod dma;
mod entry;
mod flush;
mod format;
pub mod formats;
mod grow;
mod image;
mod install;
mod layout;
mod list;
mod pool;
mod prealloc;
mod reader;
mod scan;
mod sizes;
mod table;
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
mod tests;
mod tree;
mod update;
mod walk;

pub use crate::mm::flush::{
    Flushed,
    Flusher, //
};
pub use dma::DmaFormat;
pub use entry::{
    DevicePte,
    Leaf, //
};
pub use flush::{
    FlushBatch,
    Flushing, //
};
pub(crate) use format::{
    has_leaves,
    reaches, //
};
pub use format::{
    Format,
    Word, //
};
pub use formats::{
    Radix,
    Radix4,
    Radix5, //
};
pub use layout::{
    Bits,
    FormatOf,
    Layout, //
};
pub use prealloc::Prealloc;
pub use reader::TableReader;
pub use sizes::BreakBeforeMake;
pub(crate) use sizes::Unwritten;
pub use table::Table;
