// SPDX-License-Identifier: GPL-2.0

//! Access of a device to the memory of another one.

/// Connection of two (device, mirror) pairs: the way in which pages in the memory of one are moved
/// to, or used by, the other.
///
/// # Examples
///
/// ```
/// use rust_hmm::connection::Connection;
///
/// // The weaker of the two directions counts.
/// assert_eq!(Connection::Unified.min(Connection::Migratable), Connection::Migratable);
/// assert_eq!(Connection::Migratable.min(Connection::None), Connection::None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Connection {
    /// There is no connection: pages are copied through system memory.
    None,
    /// The copy engine of the source copies pages directly to the other memory.
    Migratable,
    /// The other device uses the pages in place. No page is copied.
    Unified,
}
