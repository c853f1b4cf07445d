// SPDX-License-Identifier: GPL-2.0

//! Connections that the drivers were asked for.

use crate::{connection::Connection, locks, mm::notifier::Cookie};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Release},
            Atomic, //
        },
        Mutex, //
    },
};

/// Answers that are kept. With more devices, drivers are asked again.
const KEPT: usize = 16;

/// Counts the changes after which no answer counts.
static CHANGES: Atomic<usize> = Atomic::new(0);

#[inline(never)]
fn changes() -> usize {
    // Acquire: a driver that is asked after this has made the changes that were counted.
    CHANGES.load(Acquire)
}

/// What the drivers say has changed; or a device has gone, the name of whose memory may be given to
/// another.
#[inline(never)]
pub(crate) fn forget() {
    // Release: what the driver has changed is visible to those who load the new count.
    CHANGES.fetch_add(1, Release);
}

#[derive(Clone, Copy)]
struct Answer {
    other: Cookie,
    connection: Connection,
    /// Changes before it.
    since: usize,
}

struct Answers {
    list: [Option<Answer>; KEPT],
    next: usize,
}

impl Answers {
    fn find(&self, other: Cookie) -> Option<Connection> {
        let now = changes();
        let mut answers = self.list.iter().flatten();
        let answer = answers.find(|answer| answer.other == other && answer.since == now);
        answer.map(|answer| answer.connection)
    }
}

/// A cache of answers, by the name of the other memory.
#[pin_data]
pub(crate) struct Known {
    #[pin]
    answers: Mutex<Answers>,
}

impl Known {
    pub(super) fn new() -> impl PinInit<Self> {
        let (name, key) = locks::connections();
        pin_init!(Self {
            answers <- Mutex::new(
                Answers {
                    list: [None; KEPT],
                    next: 0,
                },
                name,
                key,
            ),
        })
    }

    /// The answer for `other`, if the drivers were asked. Context: may sleep.
    pub(crate) fn peek(&self, other: Cookie) -> Option<Connection> {
        self.answers.lock().find(other)
    }

    /// The answer for `other`; `ask` is called if there is none.
    pub(crate) fn get(&self, other: Cookie, ask: impl FnOnce() -> Connection) -> Connection {
        if let Some(answer) = self.peek(other) {
            return answer;
        }
        // Without the lock: drivers may ask back.
        let since = changes();
        let connection = ask();
        let answers = &mut *self.answers.lock();
        if answers.find(other).is_none() {
            if let Some(place) = answers.list.get_mut(answers.next % KEPT) {
                *place = Some(Answer {
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

#[kunit_tests(rust_hmm_connection)]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_asked_once() -> Result {
        let known = KBox::pin_init(Known::new(), GFP_KERNEL)?;
        let others = [0u8; KEPT + 1];
        let mut asked = 0;
        for _ in 0..3 {
            let answer = known.get(Cookie::of(&others[0]), || {
                asked += 1;
                Connection::Migratable
            });
            assert_eq!(answer, Connection::Migratable);
        }
        assert_eq!(asked, 1);
        for other in others.iter().skip(1) {
            known.get(Cookie::of(other), || Connection::Unified);
        }
        // The oldest was forgotten, and so is all.
        assert_eq!(
            known.get(Cookie::of(&others[0]), || Connection::None),
            Connection::None
        );
        forget();
        assert_eq!(
            known.get(Cookie::of(&others[3]), || Connection::None),
            Connection::None
        );
        Ok(())
    }

    #[test]
    fn the_lesser_is_less() {
        assert_eq!(Connection::Unified.min(Connection::None), Connection::None);
        assert_eq!(
            Connection::Migratable.min(Connection::Unified),
            Connection::Migratable
        );
    }
}
