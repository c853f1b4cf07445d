// SPDX-License-Identifier: GPL-2.0
//! Migrations that run concurrently with the events of a test, and the proof that they did.
//!
//! A race test passes trivially if no page was migrated meanwhile. So a [`Mover`] counts the pages
//! that moved during each event of the test, and [`Mover::end`] fails if there were none.

use crate::harness::{
    Outcome,
    Stop, //
};
use hmm::engine::Way;
use hmm::{
    Child,
    Device,
    Errno,
    Mapping, //
};
use std::fmt;
use std::sync::atomic::{
    AtomicU64,
    AtomicUsize,
    Ordering::SeqCst, //
};
use std::time::{
    Duration,
    Instant, //
};

/// Number of movers of this process whose counters have not been read.
static UNREAD: AtomicUsize = AtomicUsize::new(0);

/// Time limit of a call in flight, and of the repetition of a race until it was run. On a busy
/// machine a dozen calls take 20 s. It is shorter than the time limit of a test, so that the test
/// can report which event did not occur.
const TIMEOUT: Duration = Duration::from_secs(40);

/// Time for which a race is repeated, in milliseconds.
static RACE: AtomicU64 = AtomicU64::new(700);

/// Sets the time for which a race is repeated.
pub fn set_race_time(time: u64) {
    RACE.store(time, SeqCst);
}

/// Returns the time for which a race is repeated.
pub fn race_time() -> Duration {
    Duration::from_millis(RACE.load(SeqCst))
}

/// Calls `body` with the number of the round at least `least` times and for at least the time of a
/// race. Continues until `body` returns that the race was run, but not for longer than
/// [`TIMEOUT`]. On a busy machine the first rounds may pass without a migration that overlaps with
/// an event.
pub fn rounds(least: u64, mut body: impl FnMut(u64) -> Result<bool, Stop>) -> Outcome {
    let begin = Instant::now();
    let mut ran = false;
    for round in 0.. {
        ran |= body(round)?;
        let elapsed = begin.elapsed();
        if round + 1 >= least && race_is_over(elapsed, ran) {
            break;
        }
    }
    Ok(())
}

/// Returns whether a race that began `elapsed` ago can end; `ran` says whether it was run.
pub fn race_is_over(elapsed: Duration, ran: bool) -> bool {
    elapsed >= TIMEOUT || (ran && elapsed >= race_time())
}

/// Repeats `body`, which returns the counts of its mover, until pages have moved during an event.
/// Prints the sum of the counts. Fails if no page moved.
pub fn races(least: u64, mut body: impl FnMut(u64) -> Result<Tally, Stop>) -> Outcome {
    let mut tally = Tally::default();
    rounds(least, |round| {
        tally.add(body(round)?);
        Ok(tally.during > 0)
    })?;
    tally.proof()
}

/// Fails if the counters of a mover of this process were never read.
pub fn all_read() -> Outcome {
    match UNREAD.load(SeqCst) {
        0 => Ok(()),
        count => Err(Stop::Fail(format!("nothing proves that {count} movers moved anything"))),
    }
}

/// Indices of the words in the page that the mover shares with the test.
#[derive(Clone, Copy)]
enum Word {
    /// Odd during an event.
    Event,
    Stop,
    There,
    Back,
    /// Pages that moved in calls which overlapped with an event.
    During,
    Begun,
    Calls,
    /// The first of one word for each errno.
    Failed,
}

const ERRNOS: usize = 256;

/// Counts of a mover.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Pages that moved to the device.
    pub there: u64,
    /// Pages that moved to system memory.
    pub back: u64,
    /// Pages that moved in calls which overlapped with an event.
    pub during: u64,
    /// Calls that returned.
    pub calls: u64,
    /// Calls that were in flight when their mover was killed.
    pub cut: u64,
    /// Number of calls that failed, by error.
    pub failed: Vec<(Errno, u64)>,
}

impl Tally {
    /// Adds the counts of another mover.
    pub fn add(&mut self, other: Tally) {
        self.there += other.there;
        self.back += other.back;
        self.during += other.during;
        self.calls += other.calls;
        self.cut += other.cut;
        for (error, count) in other.failed {
            match self.failed.iter_mut().find(|(known, _)| *known == error) {
                Some(known) => known.1 += count,
                None => self.failed.push((error, count)),
            }
        }
    }

    /// Prints the counts. Fails if no page moved during the events.
    pub fn proof(&self) -> Outcome {
        println!("# {self}");
        match self.during {
            0 => Err(Stop::Fail(format!("no page moved during the event: {self}"))),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { there, back, during, calls, cut, failed } = self;
        write!(f, "{there} pages moved there, {back} back, {during} during events; {calls} calls")?;
        write!(f, " and {cut} killed")?;
        for (error, count) in failed {
            write!(f, ", {count} failed with {error}")?;
        }
        Ok(())
    }
}

/// Counters of a mover that outlive it, allocated by the process that reads them.
pub struct Board(Mapping);

impl Board {
    /// Allocates counters, which are 0.
    pub fn new() -> Result<Board, Stop> {
        let board = Board(Mapping::shared(1)?);
        UNREAD.fetch_add(1, SeqCst);
        Ok(board)
    }

    fn word(&self, word: Word) -> &AtomicU64 {
        self.0.atomic(0, word as usize)
    }

    fn failed(&self, errno: usize) -> &AtomicU64 {
        self.0.atomic(0, Word::Failed as usize + errno.min(ERRNOS - 1))
    }

    /// Migrates `pages` pages at `addr` back and forth until [`Self::stop`]. With `rest`, pauses
    /// after each round trip for as long as the trip took, so that other tasks can lock the pages.
    fn run(&self, device: &Device, addr: usize, pages: usize, rest: bool) {
        while self.word(Word::Stop).load(SeqCst) == 0 {
            let begin = Instant::now();
            for way in [Way::ToDevice, Way::ToSystem] {
                let event = self.word(Word::Event).load(SeqCst);
                self.word(Word::Begun).fetch_add(1, SeqCst);
                let done = device.migrate(addr, pages, way);
                let overlaps = event % 2 == 1 || self.word(Word::Event).load(SeqCst) != event;
                let moved = match done {
                    Ok(done) => done.moved,
                    Err(error) => {
                        self.failed(error.0.unsigned_abs() as usize).fetch_add(1, SeqCst);
                        0
                    }
                };
                let to = if way == Way::ToDevice { Word::There } else { Word::Back };
                self.word(to).fetch_add(moved, SeqCst);
                self.word(Word::During).fetch_add(if overlaps { moved } else { 0 }, SeqCst);
                self.word(Word::Calls).fetch_add(1, SeqCst);
            }
            if rest {
                std::thread::sleep(begin.elapsed().max(Duration::from_millis(10)));
            }
        }
    }

    /// Runs `event`. Calls in flight meanwhile count as concurrent with it. Events do not nest.
    pub fn during<T>(&self, event: impl FnOnce() -> T) -> T {
        self.word(Word::Event).fetch_add(1, SeqCst);
        let result = event();
        self.word(Word::Event).fetch_add(1, SeqCst);
        result
    }

    /// Ends the loop of the mover after the call in flight.
    pub fn stop(&self) {
        self.word(Word::Stop).store(1, SeqCst);
    }

    /// Returns the pages that have moved, in either direction.
    pub fn moved(&self) -> u64 {
        self.word(Word::There).load(SeqCst) + self.word(Word::Back).load(SeqCst)
    }

    /// Returns whether pages moved during an event.
    pub fn raced(&self) -> bool {
        self.word(Word::During).load(SeqCst) > 0
    }

    /// Waits until `pages` more pages have moved.
    pub fn wait_for(&self, pages: u64) -> Outcome {
        let before = self.moved();
        let begin = Instant::now();
        while self.moved() < before + pages {
            if begin.elapsed() > TIMEOUT * 3 {
                return Err(Stop::Fail(format!("nothing moves: {}", self.peek())));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Waits until a call has copied pages and has not returned. `copied` returns a count of copied
    /// bytes or pages.
    pub fn wait_for_copies(&self, copied: impl Fn() -> Result<u64, Stop>) -> Outcome {
        let begin = Instant::now();
        loop {
            let calls = self.word(Word::Calls).load(SeqCst);
            let before = copied()?;
            let in_flight = || {
                let returned = self.word(Word::Calls).load(SeqCst);
                returned == calls && self.word(Word::Begun).load(SeqCst) > calls
            };
            while in_flight() {
                if copied()? > before && in_flight() {
                    return Ok(());
                }
            }
            if begin.elapsed() > TIMEOUT {
                return Err(Stop::Fail(format!("nothing is copied: {}", self.peek())));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Waits until all calls that have begun have returned, because their pages are counted only
    /// then.
    pub fn wait_for_calls(&self) -> Outcome {
        let begun = self.word(Word::Begun).load(SeqCst);
        let begin = Instant::now();
        while self.word(Word::Calls).load(SeqCst) < begun {
            if begin.elapsed() > TIMEOUT {
                return Err(Stop::Fail(format!("a call does not return: {}", self.peek())));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn peek(&self) -> Tally {
        let word = |word| self.word(word).load(SeqCst);
        let failed = (0..ERRNOS).map(|errno| (errno, self.failed(errno).load(SeqCst)));
        Tally {
            there: word(Word::There),
            back: word(Word::Back),
            during: word(Word::During),
            calls: word(Word::Calls),
            cut: word(Word::Begun) - word(Word::Calls),
            failed: failed
                .filter(|(_, count)| *count > 0)
                .map(|(errno, count)| (Errno(errno as i32), count))
                .collect(),
        }
    }

    /// Returns the counts, and marks the counters as read.
    pub fn read(self) -> Tally {
        UNREAD.fetch_sub(1, SeqCst);
        self.peek()
    }
}

/// A child process that migrates a range of its parent back and forth. The range is not copied to
/// the child at fork(), so no page is shared with it.
#[must_use = "only `end` proves that pages moved"]
pub struct Mover {
    child: Child,
    /// `None` after `end` or `kill`.
    board: Option<Board>,
}

impl Mover {
    /// Starts a mover that never pauses.
    pub fn start(device: &Device, map: &Mapping) -> Result<Mover, Stop> {
        let board = Board::new()?;
        let child = Self::spawn(&board, device, map, false)?;
        Ok(Mover { child, board: Some(board) })
    }

    /// Starts a mover that pauses after each round trip, so that other tasks can lock the pages.
    pub fn start_slow(device: &Device, map: &Mapping) -> Result<Mover, Stop> {
        let board = Board::new()?;
        let child = Self::spawn(&board, device, map, true)?;
        Ok(Mover { child, board: Some(board) })
    }

    /// Starts a mover that counts on `board`, which another process reads.
    pub fn spawn(board: &Board, device: &Device, map: &Mapping, rest: bool) -> Result<Child, Stop> {
        map.advise(libc::MADV_DONTFORK)?;
        let addr = map.addr();
        let pages = map.pages();
        let child = Child::spawn(|| -> Result<(), Errno> {
            board.run(device, addr, pages, rest);
            Ok(())
        })?;
        map.advise(libc::MADV_DOFORK)?;
        Ok(child)
    }

    fn board(&self) -> Result<&Board, Stop> {
        self.board.as_ref().ok_or_else(|| Stop::Fail("the mover has ended".into()))
    }

    /// Returns whether pages moved during an event of this mover.
    pub fn raced(&self) -> bool {
        self.board.as_ref().is_some_and(Board::raced)
    }

    /// Runs `event`, see [`Board::during`].
    pub fn during<T>(&self, event: impl FnOnce() -> T) -> T {
        match &self.board {
            Some(board) => board.during(event),
            None => event(),
        }
    }

    /// Waits until `pages` more pages have moved.
    pub fn wait_for(&self, pages: u64) -> Outcome {
        self.board()?.wait_for(pages)
    }

    /// Kills the mover, possibly during a migration, and returns its counts.
    pub fn kill(mut self) -> Result<Tally, Stop> {
        self.reap();
        let board = self.board.take();
        Ok(board.ok_or_else(|| Stop::Fail("the mover has ended".into()))?.read())
    }

    /// Kills the mover, possibly during a migration. Fails if no page moved during the events.
    pub fn end(mut self) -> Outcome {
        let board = self.board()?;
        let calls = board.peek().calls;
        let begin = Instant::now();
        // The call that overlaps with the last event may be the only one, and has not returned yet.
        while board.peek().during == 0 && board.peek().calls < calls + 2 {
            if begin.elapsed() > TIMEOUT {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.reap();
        let board = self.board.take();
        board.ok_or_else(|| Stop::Fail("the mover has ended".into()))?.read().proof()
    }

    fn reap(&mut self) {
        self.child.signal(libc::SIGKILL);
        let _ = self.child.wait_timeout(TIMEOUT);
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.reap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mover_without_migrations_fails() {
        let board = Board::new().unwrap();
        board.during(|| ());
        assert!(
            matches!(board.read().proof(), Err(Stop::Fail(why)) if why.contains("no page moved"))
        );
    }

    #[test]
    fn errors_are_counted_by_number() {
        let board = Board::new().unwrap();
        board.failed(14).fetch_add(2, SeqCst);
        board.word(Word::There).fetch_add(7, SeqCst);
        let mut tally = board.read();
        tally.add(Tally { failed: vec![(Errno::EFAULT, 1), (Errno::EBUSY, 4)], ..tally.clone() });
        let text = tally.to_string();
        assert!(text.starts_with("14 pages moved there"), "{text}");
        assert!(text.ends_with("3 failed with EFAULT, 4 failed with EBUSY"), "{text}");
    }
}
