// SPDX-License-Identifier: GPL-2.0

//! Cache of the connections between device memories, as their drivers reported them.
//!
//! Drivers are queried without the lock of the cache, because they may call the library. A result
//! is stored with the generation in which the query began. [`invalidate`] increments the
//! generation, so that the result of a concurrent query is not used afterwards.

use super::Connection;
use crate::kernel::{
    identity::MemoryId,
    lock_classes, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::{
                Acquire,
                Release, //
            },
            Atomic, //
        },
        Mutex, //
    }, //
};

/// Number of cached connections. With more devices, drivers are queried again.
const MAX_CACHED_CONNECTIONS: usize = 16;

/// Generation of the connections. A cached connection of an older generation is stale.
static CONNECTION_GENERATION: Atomic<usize> = Atomic::new(0);

#[inline(never)]
fn generation() -> usize {
    // Acquire: the driver's changes that led to this generation are visible to the next query.
    // Pairs with the release in `invalidate()`.
    CONNECTION_GENERATION.load(Acquire)
}

/// Invalidates all cached connections. Called when drivers report a change, and when a device is
/// removed, because the address that identifies its memory may be reused.
#[inline(never)]
pub(crate) fn invalidate() {
    // Release: the driver's changes are visible to a task that loads the new generation.
    CONNECTION_GENERATION.fetch_add(1, Release);
}

#[derive(Clone, Copy)]
struct CachedConnection {
    other: MemoryId,
    connection: Connection,
    /// Generation in which the query of the driver began.
    since: usize,
}

struct CacheState {
    list: [Option<CachedConnection>; MAX_CACHED_CONNECTIONS],
    next: usize,
}

impl CacheState {
    fn find(&self, other: MemoryId) -> Option<Connection> {
        let now = generation();
        let mut answers = self.list.iter().flatten();
        let answer = answers.find(|answer| answer.other == other && answer.since == now);
        answer.map(|answer| answer.connection)
    }
}

/// Cache of connections, by the identity of the other memory.
#[pin_data]
pub(crate) struct ConnectionCache {
    #[pin]
    answers: Mutex<CacheState>,
}

impl ConnectionCache {
    pub(super) fn new() -> impl PinInit<Self> {
        let (name, key) = lock_classes::connections();
        pin_init!(Self {
            answers <- Mutex::new(
                CacheState {
                    list: [None; MAX_CACHED_CONNECTIONS],
                    next: 0,
                },
                name,
                key,
            ),
        })
    }

    /// Returns the cached connection to `other`.
    ///
    /// # Context
    ///
    /// May sleep.
    pub(crate) fn peek(&self, other: MemoryId) -> Option<Connection> {
        self.answers.lock().find(other)
    }

    /// Returns the cached connection to `other`; if there is none, calls `ask` and caches its
    /// result.
    pub(crate) fn get(&self, other: MemoryId, ask: impl FnOnce() -> Connection) -> Connection {
        if let Some(answer) = self.peek(other) {
            return answer;
        }
        // Call the driver without the lock, because it may call back into the library.
        let since = generation();
        let connection = ask();
        let answers = &mut *self.answers.lock();
        if answers.find(other).is_none() {
            if let Some(place) = answers.list.get_mut(answers.next % MAX_CACHED_CONNECTIONS) {
                *place = Some(CachedConnection {
                    other,
                    connection,
                    since,
                });
            }
            answers.next += 1;
        }
        connection
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_connection)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_queried_once() -> Result {
        let cache = KBox::pin_init(ConnectionCache::new(), GFP_KERNEL)?;
        let others = [0u8; MAX_CACHED_CONNECTIONS + 1];
        let mut asked = 0;
        for _ in 0..3 {
            let answer = cache.get(MemoryId::of(&others[0]), || {
                asked += 1;
                Connection::Migratable
            });
            assert_eq!(answer, Connection::Migratable);
        }
        assert_eq!(asked, 1);
        for other in others.iter().skip(1) {
            cache.get(MemoryId::of(other), || Connection::Unified);
        }
        // The oldest entry was replaced, and `invalidate()` invalidates all of them.
        assert_eq!(
            cache.get(MemoryId::of(&others[0]), || Connection::None),
            Connection::None
        );
        invalidate();
        assert_eq!(
            cache.get(MemoryId::of(&others[3]), || Connection::None),
            Connection::None
        );
        Ok(())
    }

    #[test]
    fn weaker_connections_compare_less() {
        assert_eq!(Connection::Unified.min(Connection::None), Connection::None);
        assert_eq!(
            Connection::Migratable.min(Connection::Unified),
            Connection::Migratable
        );
    }
}
