// SPDX-License-Identifier: GPL-2.0
//! Notification of the end of a queued operation: an eventfd, `poll`, and a queue of another
//! device.

use super::{
    fail,
    Effect,
    Fail,
    Lane, //
};
use crate::torture::op::Span;
use hmm::{
    Device,
    Errno,
    QueueOp,
    State,
    PAGE_SIZE, //
};
use std::time::Duration;

/// Timeout for a notification.
const LONG: Duration = Duration::from_secs(100);

fn text(error: Errno) -> Fail {
    format!("fences: {error}")
}

/// Final states of a migration, and of the operation of another device that depends on it.
struct Ended {
    first: State,
    second: State,
}

/// Queues a migration behind a host fence, and behind it an eviction on another device.
fn observe(
    here: &Device,
    there: &Device,
    addr: usize,
    len: usize,
    fails: bool,
) -> Result<Ended, Fail> {
    let one = here.queue().map_err(text)?;
    let two = there.queue().map_err(text)?;
    let host = here.host_fence().map_err(text)?;
    let first = one.submit(QueueOp::migrate(addr, len), &[&host]).map_err(text)?;
    match first.export() {
        Err(Errno::EOPNOTSUPP) => {}
        other => return fail("export of a migration", format!("{other:?}")),
    }
    let event = first.event().map_err(text)?;
    first.by_poll().map_err(text)?;
    let known = there.share(&first).map_err(text)?;
    two.wait(&known).map_err(text)?;
    let second = two.submit(QueueOp::evict(addr, len), &[]).map_err(text)?;
    // Check that no operation ends before the host fence.
    let early = event.poll(Duration::ZERO).map_err(text)?
        || here.poll_fences(Duration::ZERO).map_err(text)?
        || [&first, &known, &second]
            .iter()
            .any(|fence| fence.check().is_ok_and(|found| found.state != State::NotDone));
    if early {
        return fail("fences", "an end was reported before the beginning");
    }
    host.signal(if fails { Err(Errno::ECANCELED) } else { Ok(()) }).map_err(text)?;
    if !here.poll_fences(LONG).map_err(text)? || !event.poll(LONG).map_err(text)? {
        return fail("fences", "an end was not reported");
    }
    if event.take().map_err(text)? != 1 {
        return fail("fences", "an eventfd was not signalled once");
    }
    let ended = first.check().map_err(text)?;
    if ended.state == State::NotDone || here.poll_fences(Duration::ZERO).map_err(text)? {
        return fail("fences", format!("{ended:?} after its end, or reported once more"));
    }
    let last = second.sync(None).map_err(text)?;
    if last.state == State::Done && last.began_ns < ended.ended_ns {
        return fail("fences", format!("{last:?} began before {ended:?} ended"));
    }
    // Each queue waits at most once: on the device if the fence is of its own type, else by
    // polling.
    let host_side = one.waits().map_err(text)?;
    let device_side = two.waits().map_err(text)?;
    let right = host_side.on_device == 0
        && host_side.on_host <= 1
        && host_side.sleeps <= host_side.looks
        && (device_side.on_host, device_side.looks, device_side.sleeps) == (0, 0, 0)
        && device_side.on_device <= 1;
    if right {
        Ok(Ended { first: ended.state, second: last.state })
    } else {
        fail("waits of queues", format!("{host_side:?} and {device_side:?}"))
    }
}

impl Lane<'_> {
    pub(super) fn notify(
        &mut self,
        dev: usize,
        other: usize,
        at: Span,
        fails: bool,
    ) -> Result<(), Fail> {
        self.quiesce(at, Effect::Looks)?;
        let addr = self.addr(at);
        let len = at.n * PAGE_SIZE;
        let Ended { first, second } =
            observe(&self.devices[dev], &self.devices[other], addr, len, fails)?;
        let error = match (first, second) {
            (State::Failed(error), second) if second != State::Failed(error) => {
                return fail("fences", format!("{second:?} after a failure: {error}"))
            }
            (State::Failed(Errno::ECANCELED), _) if fails => return Ok(()),
            (first, _) if fails => {
                return fail("fences", format!("{first:?} after a fence that failed"))
            }
            (State::Failed(error), _) | (_, State::Failed(error)) => error,
            _ => return self.moved_rightly("queued migration", at),
        };
        self.expect_move("queued migration", error, at)
    }
}
