// SPDX-License-Identifier: GPL-2.0

//! Connection of two device memories, as their drivers report it.

use super::{
    connection_cache::{
        self,
        ConnectionCache, //
    },
    Connection,
    Memory,
    MemoryOps, //
};
use crate::kernel::reentry;

impl<M: MemoryOps> Memory<M> {
    /// Returns the connection between this memory and `other`, from the cache or from the drivers.
    /// Context: may sleep.
    pub(crate) fn connection(&self, other: &Self) -> Connection {
        if core::ptr::eq(self, other) {
            return Connection::Unified;
        }
        // Cached at both ends, so that each returns the result without a query of the other.
        let ask = || {
            let _within = reentry::ReentryGuard::enter();
            let there = self.driver().connection(other.driver(), other.kind());
            let back = other.driver().connection(self.driver(), self.kind());
            // Only pages that the CPU can address, and those of memories of the same owner, can be
            // used in place. A device PTE cannot name a page of any other memory.
            let addressable = !self.is_private() && !other.is_private();
            match there.min(back) {
                Connection::Unified if !addressable && self.owner() != other.owner() => {
                    Connection::Migratable
                }
                connection => connection,
            }
        };
        self.connections()
            .get(other.tile(), || other.connections().get(self.tile(), ask))
    }

    /// Returns the cached connections to other memories.
    pub(crate) fn connections(&self) -> &ConnectionCache {
        &self.pages().data().connections
    }

    /// Invalidates all cached connections, so that drivers are queried again. A driver calls this
    /// after a change of the hardware.
    ///
    /// # Context
    ///
    /// Any.
    pub fn invalidate_connections(&self) {
        connection_cache::invalidate();
    }
}
