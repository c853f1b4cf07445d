// SPDX-License-Identifier: GPL-2.0

//! A device page table: a radix tree whose geometry and entries the driver chooses.
//!
//! - [`Format`]: geometry and encoding of a device's table. [`Radix4`] is the reference, [`Radix5`]
//!   the same with another level, [`formats`] has those of real MMUs, [`FormatOf`] makes one of a [`Layout`].
//! - [`Table`]: the side that changes it, under the owner's lock.
//! - [`Reader`]: the side of the device, which walks without a lock while it changes.
//! - [`FlushBatch`] → [`Flushing`] → [`Flushed`]: what a change makes necessary, and the proof that
//!   it was done.
//!
//! The tree that the library reads and changes has one encoding for all formats (`tree`). For a
//! device that walks by itself, each table page has an image in the device's format (`image`),
//! which only the device reads.
//!
//! Table pages live in a pool and are named by their index in it. A table page that leaves the tree
//! is not used again before a flush is over, which waits for everybody who walks.
//!
//! Only parts that hold entries exist. Whatever an update needs is reserved before the lock is
//! taken ([`Spares`]). Removing never allocates: free tables are kept, some for each mirror, to
//! split huge entries that are covered in part. When they are used up, all of an entry goes, and
//! the device faults.

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
mod pass;
mod pool;
mod scan;
mod sizes;
mod table;
#[cfg(CONFIG_KUNIT = "y")]
mod tests;
mod tree;
mod walk;

pub use crate::mm::flush::{Flushed, Flusher};
pub use dma::OfDma;
pub use entry::{Entry, Leaf};
pub use flush::{FlushBatch, Flushing};
pub(crate) use format::{has_leaves, reaches};
pub use format::{Format, Radix, Radix4, Radix5, Word};
pub use layout::{Bits, FormatOf, Layout};
pub use sizes::BreakBeforeMake;
pub(crate) use sizes::Unwritten;
pub use table::{Reader, Spares, Table};
pub(crate) use walk::Near;
