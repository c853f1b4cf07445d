// SPDX-License-Identifier: GPL-2.0
//! Blits: copies between locked ranges, whose fences are exported as sync files.

use super::{
    fail,
    Effect,
    Fail,
    Lane, //
};
use crate::torture::op::Span;
use hmm::engine::checksum;
use hmm::{
    Device,
    EngineOp,
    Errno,
    Event,
    Fence,
    Locked,
    Queue,
    QueueOp,
    Setting,
    State,
    SyncFile,
    PAGE_SIZE, //
};
use std::time::Duration;

/// Maximum number of pages of a blit.
const PAGES: usize = 16;
/// Duration of a slow blit, in ns.
const SLOW: u64 = 2_000_000;
/// Polling interval for fences.
const LOOK: Duration = Duration::from_micros(200);
/// Timeout for the notification of a completion.
const LONG: Duration = Duration::from_secs(100);

fn text(error: Errno) -> Fail {
    format!("blit: {error}")
}

/// Final states of a blit and of the operation that depends on it, and the result of the latter.
struct Ended {
    blit: State,
    after: State,
    result: u64,
}

/// Polls until the dependent operation has ended. Fails if it or the eventfd was signalled before
/// the blit.
fn in_order(
    file: &SyncFile,
    event: &Event,
    fence: &Fence<'_>,
    after: &Fence<'_>,
) -> Result<(), Fail> {
    loop {
        // Read the dependent states first: a state that is read later may be more recent.
        let ends = after.check().map_err(text)?.state != State::NotDone;
        let eventfd = event.poll(Duration::ZERO).map_err(text)?;
        let signalled = file.state().map_err(text)? != State::NotDone;
        let done = fence.check().map_err(text)?.state != State::NotDone;
        if (ends || eventfd) && !(signalled && done) {
            let why =
                format!("after: {ends}, eventfd: {eventfd}, file: {signalled}, fence: {done}");
            return fail("blit: something ended before it did", why);
        }
        if ends {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
}

/// Makes a queue of the other device wait for a blit by its sync file, and waits until both have
/// ended.
fn follow(
    fence: &Fence<'_>,
    queue: &Queue<'_>,
    known: &Fence<'_>,
    read: QueueOp,
) -> Result<Ended, Fail> {
    let event = fence.event().map_err(text)?;
    let file = fence.export().map_err(text)?;
    queue.wait(known).map_err(text)?;
    let after = queue.submit(read, &[]).map_err(text)?;
    match after.export() {
        Err(Errno::EOPNOTSUPP) => {}
        other => return fail("export of a command that may fault", format!("{other:?}")),
    }
    in_order(&file, &event, fence, &after)?;
    let blit = fence.sync(None).map_err(text)?.state;
    let file = file.state().map_err(text)?;
    if file != blit {
        return fail("sync file of a blit", format!("{file:?}, the fence {blit:?}"));
    }
    if !event.poll(LONG).map_err(text)? || event.take().map_err(text)? != 1 {
        return fail("eventfd of a blit", "was not signalled once");
    }
    let ended = after.sync(None).map_err(text)?;
    Ok(Ended { blit, after: ended.state, result: ended.result })
}

/// Copies within locked memory, and makes another device execute `read` after that. The inner error
/// is that of the submission.
fn submit(
    here: &Device,
    there: &Device,
    (to, from, bytes): (usize, usize, usize),
    read: QueueOp,
    slow: bool,
) -> Result<Result<Ended, Errno>, Fail> {
    let queue = there.queue().map_err(text)?;
    let delay = if slow { Some(here.set(Setting::CopyDelay, SLOW).map_err(text)?) } else { None };
    let fence = here.blit(to, from, bytes, &[]);
    let ended = fence.map(|fence| -> Result<Ended, Fail> {
        let file = fence.export().map_err(text)?;
        let known = there.import(&file).map_err(text)?;
        // The imported fence outlives the file.
        drop(file);
        follow(&fence, &queue, &known, read)
    });
    if let Some(delay) = delay.filter(|delay| *delay != SLOW) {
        here.set(Setting::CopyDelay, delay).map_err(text)?;
    }
    match ended {
        Ok(ended) => ended.map(Ok),
        Err(error) => Ok(Err(error)),
    }
}

impl Lane<'_> {
    /// Copies `from` to `at`, with both locked.
    pub(super) fn blit(
        &mut self,
        dev: usize,
        other: usize,
        at: Span,
        from: Span,
        slow: bool,
    ) -> Result<(), Fail> {
        let n = at.n.min(PAGES);
        let at = Span { n, ..at };
        let from = Span { n, ..from };
        if at.r == from.r && at.page < from.page + n && from.page < at.page + n {
            self.note("  nothing to do: blit");
            return Ok(());
        }
        self.quiesce(at, Effect::Changes)?;
        self.quiesce(from, Effect::Looks)?;
        self.settle(at)?;
        self.settle(from)?;
        let Some(to) = self.lock_own(dev, at, true)? else { return Ok(()) };
        let result = match self.lock_own(dev, from, true) {
            Ok(Some(source)) => {
                let result = self.blit_locked(dev, other, (at, to), (from, source), slow);
                self.unlock(dev, source).and(result)
            }
            other => other.map(|_| ()),
        };
        self.unlock(dev, to)?;
        result?;
        for page in at.pages() {
            if let Err(mismatch) = self.regions[at.r].check(page) {
                return fail("CPU read of words that a blit wrote", mismatch);
            }
        }
        Ok(())
    }

    /// Removes a lock that this operation took.
    pub(super) fn unlock(&self, dev: usize, locked: Locked) -> Result<(), Fail> {
        self.devices[dev].unlock(locked.device_addr).map_err(|error| format!("unlock: {error}"))
    }

    fn blit_locked(
        &mut self,
        dev: usize,
        other: usize,
        (at, to): (Span, Locked),
        (from, source): (Span, Locked),
        slow: bool,
    ) -> Result<(), Fail> {
        let bytes = at.n * PAGE_SIZE;
        let read = QueueOp::engine(EngineOp::Checksum, self.addr(at), bytes);
        let places = (to.device_addr, source.device_addr, bytes);
        let ended = submit(&self.devices[dev], &self.devices[other], places, read, slow)?;
        let ended = match ended {
            Ok(ended) => ended,
            // The other lanes may already have the maximum number of operations in flight.
            Err(error) => return self.expect("blit", error, &[Errno::EBUSY, Errno::ENOMEM]),
        };
        match ended.blit {
            State::Done => {}
            // Nothing was copied, and the dependent operation fails with the same error.
            State::Failed(Errno::EIO) if ended.after == ended.blit && self.env.board.claim() => {
                self.note("  blit: EIO, injected");
                return Ok(());
            }
            state => {
                return fail("blit", format!("{state:?}, what depends on it {:?}", ended.after))
            }
        }
        for (page, source) in at.pages().zip(from.pages()) {
            let words = self.regions[from.r].shadow(source).to_vec();
            self.regions[at.r].set_shadow(page, &words);
        }
        let model = at.pages().flat_map(|page| self.regions[at.r].shadow(page).iter().copied());
        let expected = checksum(model);
        match ended.after {
            State::Done if ended.result == expected => Ok(()),
            State::Done => {
                let found = ended.result;
                fail("device read after a blit", format!("{found:#x}, expected {expected:#x}"))
            }
            State::Failed(error) => self.expect_room("device read after a blit", error),
            State::NotDone => fail("device read after a blit", "is not done after the wait for it"),
        }
    }
}
