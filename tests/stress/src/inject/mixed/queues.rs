// SPDX-License-Identifier: GPL-2.0
//! Queues and fences: a few operations in order, and the notification of their end.

use super::{
    board,
    model::Model,
    Worker,
    LIMIT, //
};
use hmm::{
    engine::EngineOp,
    queue::Checked,
    Device,
    Errno,
    Fence,
    QueueOp,
    State,
    PAGE_SIZE, //
};

/// Maximal number of pages of an operation.
const MOST: usize = 12;

/// Kind of a queued operation.
enum What {
    /// Migrates or maps pages.
    Moves,
    /// Computes the checksum of pages, which must be this one.
    Reads(u64),
    /// Copies pages: first destination page, first source page, number of pages.
    Copies(usize, usize, usize),
}

/// Waits for `fence`, whose operation began when the sources were as in `before`. Fails if the
/// fence is not signalled in time. Returns the state of the fence, or `None` if the operation has
/// failed.
pub fn end(
    model: &mut Model,
    what: &'static str,
    before: &board::State,
    fence: &Fence<'_>,
) -> Result<Option<Checked>, String> {
    let checked = model.insist("fence sync", |_| fence.sync(Some(LIMIT)))?;
    match checked.state {
        State::NotDone => Err(format!("{what}: it has not ended")),
        State::Done => model.outcome(what, before, Ok(checked)),
        State::Failed(error) => model.outcome(what, before, Err(error)),
    }
}

/// The notification that was requested for the end of the last operation.
enum Notification {
    Check,
    Event(hmm::Event),
    Poll,
}

fn request_notification(model: &mut Model, fence: &Fence<'_>) -> Result<Notification, String> {
    match model.random.below(3) {
        0 => {
            let event = model.attempt("fence notify", |_| fence.event())?;
            Ok(event.map_or(Notification::Check, Notification::Event))
        }
        1 => model.insist("fence by poll", |_| fence.by_poll()).map(|()| Notification::Poll),
        _ => Ok(Notification::Check),
    }
}

fn is_notified(device: &Device, notification: &Notification) -> Result<(), String> {
    let (what, notified) = match notification {
        Notification::Check => return Ok(()),
        Notification::Event(event) => {
            ("eventfd", event.poll(LIMIT).and_then(|_| event.take()) == Ok(1))
        }
        Notification::Poll => ("poll", device.poll_fences(LIMIT) == Ok(true)),
    };
    if notified {
        Ok(())
    } else {
        Err(format!("the end of a fence is not reported by {what}"))
    }
}

fn operation(model: &mut Model, may_copy: bool) -> Result<(QueueOp, What), String> {
    let (first, pages) = model.part(MOST);
    let addr = model.map.page_addr(first);
    let bytes = pages * PAGE_SIZE;
    Ok(match model.random.below(if may_copy { 6 } else { 4 }) {
        0 => (QueueOp::migrate(addr, bytes), What::Moves),
        1 => (QueueOp::prefetch(addr, bytes), What::Moves),
        2 => (QueueOp::evict(addr, bytes), What::Moves),
        3 => {
            model.settle(first, pages)?;
            let sum = model.checksum(first, pages);
            (QueueOp::engine(EngineOp::Checksum, addr, bytes), What::Reads(sum))
        }
        _ => {
            let ([to, from], pages) = model.two_parts(MOST);
            model.settle(to, pages)?;
            model.settle(from, pages)?;
            let at = model.map.page_addr(to);
            let source = model.map.page_addr(from);
            (QueueOp::copy(at, source, pages * PAGE_SIZE), What::Copies(to, from, pages))
        }
    })
}

/// Submits up to three operations to a queue, of which only the last may be a copy. Sometimes they
/// wait for a host fence.
fn in_a_queue(device: &Device, model: &mut Model) -> Result<(), String> {
    let Some(queue) = model.attempt("queue", |_| device.queue())? else { return Ok(()) };
    let gate = if model.random.one_in(2) {
        model.attempt("host fence", |_| device.host_fence())?
    } else {
        None
    };
    // The queue as a whole waits for the fence, or each operation depends on it.
    let waits = match (&gate, model.random.one_in(2)) {
        (Some(gate), true) => model.attempt("queue wait", |_| queue.wait(gate))?.is_some(),
        _ => false,
    };
    let before = model.state();
    let count = 1 + model.random.below(3);
    let mut queued = Vec::new();
    for number in 0..count {
        let (op, what) = operation(model, number + 1 == count)?;
        let after: Vec<&Fence<'_>> = gate.iter().filter(|_| !waits).collect();
        let fence = model.attempt("queue submit", |_| queue.submit(op, &after))?;
        queued.push((fence, what));
    }
    // A submission that returned an error may have queued its operation all the same.
    let all = model.insist("queue record", |_| queue.record())?;
    let notification = request_notification(model, &all)?;
    if let Some(gate) = &gate {
        model.insist("fence signal", |_| gate.signal(Ok(())))?;
    }
    is_notified(device, &notification)?;
    // Errors of earlier operations do not change the state of the record, only the time of its end.
    let checked = model.insist("fence sync", |_| all.sync(Some(LIMIT)))?;
    if checked.state == State::NotDone {
        return Err("queue record: it has not ended".into());
    }
    model.attempt("queue waits", |_| queue.waits())?;
    for (fence, what) in queued {
        let checked = match fence {
            None => None,
            Some(fence) => {
                let state = model.insist("fence check", |_| fence.check())?.state;
                if state == State::NotDone {
                    return Err("an operation runs after the end of a record behind it".into());
                }
                end(model, "end of a queued operation", &before, &fence)?
            }
        };
        match (what, checked) {
            (What::Reads(sum), Some(checked)) if checked.result != sum => {
                return Err(format!("an engine found {:#x} instead of {sum:#x}", checked.result));
            }
            (What::Copies(to, from, pages), checked) => {
                model.copied(to, from, pages, checked.is_some());
            }
            _ => {}
        }
    }
    drop(all);
    drop(gate);
    model.attempt("queue destroy", |_| queue.destroy()).map(|_| ())
}

/// Executes one step of the process.
pub fn step(worker: &mut Worker<'_>) -> Result<(), String> {
    // A destroy call whose argument cannot be read leaves its queue behind, and a file has at most
    // 16 queues. So reopen the file now and then.
    if worker.steps % 64 == 63 {
        let index = worker.index;
        if let Some(device) = worker.model.attempt("open", |_| Device::open(index))? {
            worker.replace(device);
        }
    }
    in_a_queue(&worker.device, &mut worker.model)
}

/// Signals a host fence, with or without an error, and checks its state and its eventfd.
pub fn host_fence(worker: &mut Worker<'_>) -> Result<(), String> {
    let device = &worker.device;
    let model = &mut worker.model;
    let Some(fence) = model.attempt("host fence", |_| device.host_fence())? else { return Ok(()) };
    let event = model.attempt("fence notify", |_| fence.event())?;
    let error = model.random.one_in(2).then_some(Errno::EILSEQ);
    model.insist("fence signal", |_| fence.signal(error.map_or(Ok(()), Err)))?;
    let state = model.insist("fence check", |_| fence.check())?.state;
    if state != error.map_or(State::Done, State::Failed) {
        return Err(format!("a fence was signalled with {error:?}, and is {state:?}"));
    }
    match event {
        Some(event) => is_notified(device, &Notification::Event(event)),
        None => Ok(()),
    }
}
