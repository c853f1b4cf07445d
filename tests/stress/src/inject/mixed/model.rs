// SPDX-License-Identifier: GPL-2.0
//! Model of a process: the possible contents of its pages, and the errors that its calls may
//! return.

use super::board::{
    Board,
    State, //
};
use super::{
    PAGES,
    PATIENCE,
    PROCESSES, //
};
use hmm::engine::checksum;
use hmm::inject;
use hmm::pattern::{
    self,
    WORDS, //
};
use hmm::{
    Errno,
    Mapping,
    PAGE_SIZE, //
};
use std::collections::BTreeMap;

/// Pseudo-random numbers.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let x = self.0 ^ (self.0 >> 33);
        x.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 17
    }

    /// Returns a number below `limit`, which must not be 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Returns true in one of `n` calls on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Contents of a page: page `page` of the pattern with seed `seed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    seed: u64,
    page: usize,
}

impl Held {
    fn word(self, word: usize) -> u64 {
        pattern::word(self.seed, self.page, word)
    }
}

/// Possible contents of a page.
#[derive(Clone, Copy, Debug)]
struct Known {
    held: Held,
    /// Alternative contents, after a failed operation that would have written them.
    other: Option<Held>,
    /// Whether that operation may have written only some words of the page.
    torn: bool,
}

/// Sources of failures by which memory or the process looks as if it did not exist.
///
/// A page that is needed in system memory stays in device memory. The access gets SIGBUS.
const LOST: &[&str] = &["space", "copy", "isolate", "fail_usercopy"];
/// The same for a CPU access within a system call, where the kernel returns `EFAULT` for lack of
/// memory, too.
const LOST_TO_CPU: &[&str] =
    &["space", "copy", "isolate", "fail_usercopy", "system_folio", "failslab", "fail_page_alloc"];
/// Sources by which a copy of a device fails.
const COPIES: &[&str] = &["copy"];
/// Sources that simulate a killed process.
const KILLED: &[&str] = &["mmap_lock", "killed"];

/// Returns the sources of which one must have been set for call `what` to return `error`. An empty
/// list means that the error is always allowed. `None` means that it is never allowed.
fn causes(what: &str, error: Errno) -> Option<&'static [&'static str]> {
    // Calls that return EINVAL, as `test_hmm` does, for a process that has exited.
    let old = what.starts_with("migrate") || ["exclusive", "pull"].contains(&what);
    match error {
        Errno::ENOMEM | Errno::EBUSY => Some(&[]),
        Errno::EINTR => Some(KILLED),
        Errno::ENOENT if what == "exclusive" => Some(&[]),
        Errno::EFAULT if what.starts_with("cpu") => Some(LOST_TO_CPU),
        Errno::EFAULT => Some(LOST),
        Errno::EINVAL if old => Some(LOST),
        Errno::EIO if what.starts_with("end of") => Some(COPIES),
        _ => None,
    }
}

/// Memory of a process with its possible contents, the random choices, and the results of calls.
pub struct Model<'b> {
    /// The memory.
    pub map: Mapping,
    /// Source of the random choices.
    pub random: Random,
    pages: Vec<Known>,
    last: u64,
    board: &'b Board,
    /// Number of times that each error was returned.
    errors: BTreeMap<String, u64>,
    /// For each call, how often it was made and how often it succeeded.
    calls: BTreeMap<&'static str, [u64; 2]>,
}

impl Model<'_> {
    /// Maps memory and fills it with the pattern of `seed`.
    pub fn new(seed: u64, board: &Board) -> Result<Model<'_>, Errno> {
        let map = Mapping::anon(PAGES)?;
        map.fill(seed);
        let known = |page| Known { held: Held { seed, page }, other: None, torn: false };
        let pages = (0..PAGES).map(known).collect();
        let errors = BTreeMap::new();
        let calls = BTreeMap::new();
        Ok(Model { map, random: Random(seed), pages, last: seed, board, errors, calls })
    }

    /// Chooses a part of the memory of at most `most` pages. Returns its first page and number of
    /// pages.
    pub fn part(&mut self, most: usize) -> (usize, usize) {
        let first = self.random.below(PAGES as u64) as usize;
        let most = (PAGES - first).min(most) as u64;
        (first, 1 + self.random.below(most) as usize)
    }

    /// Chooses two parts of the same size that do not overlap. Returns their first pages and the
    /// number of pages.
    pub fn two_parts(&mut self, most: usize) -> ([usize; 2], usize) {
        let half = PAGES / 2;
        let pages = 1 + self.random.below(most.min(half) as u64) as usize;
        let mut within = |start| start + self.random.below((half - pages + 1) as u64) as usize;
        let parts = [within(0), within(half)];
        if self.random.one_in(2) {
            ([parts[1], parts[0]], pages)
        } else {
            (parts, pages)
        }
    }

    /// Returns the sources that are set now, for [`Self::outcome`].
    pub fn state(&self) -> State {
        self.board.state()
    }

    /// Makes a call. An error must be documented, and one of its causes must have been set during
    /// the call. Returns `None` after such an error.
    pub fn attempt<T>(
        &mut self,
        what: &'static str,
        call: impl FnOnce(&Mapping) -> Result<T, Errno>,
    ) -> Result<Option<T>, String> {
        let before = self.state();
        let result = call(&self.map);
        self.outcome(what, &before, result)
    }

    /// Judges the result of an operation that began when the sources were as in `before`.
    pub fn outcome<T>(
        &mut self,
        what: &'static str,
        before: &State,
        result: Result<T, Errno>,
    ) -> Result<Option<T>, String> {
        let counts = self.calls.entry(what).or_default();
        counts[0] += 1;
        let error = match result {
            Ok(value) => {
                counts[1] += 1;
                return Ok(Some(value));
            }
            Err(error) => error,
        };
        let causes = causes(what, error).ok_or(format!("{what}: {error} is not documented"))?;
        if !causes.is_empty() && !self.board.any_since(before, causes) {
            return Err(format!("{what}: {error}, and none of {} is set", causes.join(", ")));
        }
        *self.errors.entry(format!("{what}: {error}")).or_default() += 1;
        Ok(None)
    }

    /// Repeats a call until it succeeds.
    pub fn insist<T>(
        &mut self,
        what: &'static str,
        mut call: impl FnMut(&Mapping) -> Result<T, Errno>,
    ) -> Result<T, String> {
        for _ in 0..PATIENCE {
            if let Some(value) = self.attempt(what, &mut call)? {
                return Ok(value);
            }
        }
        Err(format!("{what}: it fails again and again"))
    }

    /// Returns the number of errors so far.
    pub fn errors(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Summarizes each call with its successes and attempts, and each error with its number.
    pub fn summary(&self) -> String {
        let calls = self.calls.iter().map(|(what, [tried, done])| format!("{what} {done}/{tried}"));
        let errors = self.errors.iter().map(|(what, times)| format!("{what} {times}"));
        let [calls, errors] = [calls.collect::<Vec<_>>(), errors.collect()];
        format!("{}; {}", calls.join(", "), errors.join(", "))
    }

    /// Returns the calls that were tried at least 50 times and never succeeded.
    pub fn never_succeeded(&self) -> Vec<&'static str> {
        let never = self.calls.iter().filter(|(_, [tried, done])| *tried >= 50 && *done == 0);
        never.map(|(what, _)| *what).collect()
    }

    /// Compares a page with its possible contents.
    fn is_right(&self, page: usize, bytes: &[u8]) -> Result<(), String> {
        let Known { held, other, torn } = self.pages[page];
        let is = |held: Held| pattern::check(held.seed, held.page, bytes);
        let result = is(held).or_else(|wrong| other.map_or(Err(wrong), is));
        let Err(wrong) = result else { return Ok(()) };
        if let (Some(other), true) = (other, torn) {
            let words = bytes.chunks_exact(8);
            let is = |word: &[u8], held: Held, index| word == held.word(index).to_ne_bytes();
            let either = |(index, word)| is(word, held, index) || is(word, other, index);
            if words.enumerate().all(either) {
                return Ok(());
            }
        }
        Err(format!("{wrong} ({held:?}, other {other:?}, torn {torn})"))
    }

    /// Checks the contents of a page that the CPU or a device has read, and records them as the
    /// only possible ones.
    pub fn learn(&mut self, page: usize, bytes: &[u8]) -> Result<(), String> {
        self.is_right(page, bytes)?;
        let known = &mut self.pages[page];
        let is = |held: Held| pattern::check(held.seed, held.page, bytes).is_ok();
        match known.other {
            Some(other) if is(other) => known.held = other,
            // Torn: words of both contents. The page stays as uncertain as before.
            Some(_) if !is(known.held) => return Ok(()),
            _ => {}
        }
        (known.other, known.torn) = (None, false);
        Ok(())
    }

    /// Does the same for consecutive pages.
    pub fn learn_all(&mut self, first: usize, bytes: &[u8]) -> Result<(), String> {
        let mut pages = bytes.chunks_exact(PAGE_SIZE).enumerate();
        pages.try_for_each(|(index, bytes)| self.learn(first + index, bytes))
    }

    /// Reads a page by the CPU, repeatedly until no failure is injected.
    pub fn cpu_read(&mut self, page: usize) -> Result<(), String> {
        let bytes = self.insist("cpu read", |map| inject::kernel_reads(map, page))?;
        self.learn(page, &bytes)
    }

    /// Writes a page by the CPU. Always a whole page: contents of which a part is new match no
    /// pattern.
    pub fn cpu_write(&mut self, page: usize) -> Result<(), String> {
        let seed = self.next_seed();
        let bytes = pattern::buffer(seed, page, 1);
        self.insist("cpu write", |map| inject::kernel_writes(map, page, &bytes))?;
        self.pages[page] = Known { held: Held { seed, page }, other: None, torn: false };
        Ok(())
    }

    /// Returns the seed of a pattern that no page has had.
    pub fn next_seed(&mut self) -> u64 {
        self.last += PROCESSES as u64;
        self.last
    }

    /// Ensures that each page of a part has exactly one possible contents.
    pub fn settle(&mut self, first: usize, pages: usize) -> Result<(), String> {
        for page in first..first + pages {
            if self.pages[page].other.is_some() {
                self.cpu_read(page)?;
            }
            if self.pages[page].other.is_some() {
                self.cpu_write(page)?;
            }
        }
        Ok(())
    }

    /// Records that the pages of a part were written with pattern `seed`. They must be settled.
    /// Unless `done`, only some of the pages may have been written.
    pub fn written(&mut self, first: usize, pages: usize, seed: u64, done: bool) {
        for page in first..first + pages {
            self.put(page, Held { seed, page }, done, false);
        }
    }

    /// Records that `pages` pages were copied. They must be settled. Unless `done`, only some words
    /// may have been copied.
    pub fn copied(&mut self, to: usize, from: usize, pages: usize, done: bool) {
        for index in 0..pages {
            self.put(to + index, self.pages[from + index].held, done, true);
        }
    }

    fn put(&mut self, page: usize, new: Held, done: bool, torn: bool) {
        let held = self.pages[page].held;
        self.pages[page] = if done {
            Known { held: new, other: None, torn: false }
        } else {
            Known { held, other: Some(new), torn }
        };
    }

    /// Returns the expected checksum of a part, which must be settled.
    pub fn checksum(&self, first: usize, pages: usize) -> u64 {
        let pages = &self.pages[first..first + pages];
        checksum(pages.iter().flat_map(|known| (0..WORDS).map(|word| known.held.word(word))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_need_their_cause() {
        let board = Board::new(vec!["copy".into(), "retry".into()]).unwrap();
        let mut model = Model::new(1, &board).unwrap();
        let fails = |_: &Mapping| Err::<(), _>(Errno::EFAULT);
        assert!(model.attempt("read", fails).is_err());
        board.publish("retry", true);
        assert!(model.attempt("read", fails).is_err());
        board.publish("copy", true);
        assert_eq!(model.attempt("read", fails), Ok(None));
        assert_eq!(model.errors(), 1);
        // The source is set and cleared during the call.
        board.publish("copy", false);
        let meanwhile = |_: &Mapping| {
            board.publish("copy", true);
            board.publish("copy", false);
            Err::<(), _>(Errno::EFAULT)
        };
        assert_eq!(model.attempt("read", meanwhile), Ok(None));
        assert!(model.attempt("read", fails).is_err());
        assert!(model.attempt("read", |_| Err::<(), _>(Errno::EPERM)).is_err());
        assert_eq!(model.attempt("read", |_| Err::<(), _>(Errno::ENOMEM)), Ok(None));
        assert!(model.attempt("read", |_| Err::<(), _>(Errno::EIO)).is_err());
    }

    #[test]
    fn contents_are_compared() {
        let board = Board::new(Vec::new()).unwrap();
        let mut model = Model::new(1, &board).unwrap();
        let page = |seed, page| pattern::buffer(seed, page, 1);
        assert_eq!(model.learn(3, &page(1, 3)), Ok(()));
        assert!(model.learn(3, &page(1, 4)).is_err() && model.learn(3, &page(2, 3)).is_err());
        // A failed write leaves each page with its old or its new contents.
        model.written(3, 1, 9, false);
        let mut mixed = page(1, 3);
        mixed[..8].copy_from_slice(&page(9, 3)[..8]);
        assert!(model.learn(3, &mixed).is_err());
        assert_eq!(model.learn(3, &page(9, 3)), Ok(()));
        assert!(model.learn(3, &page(1, 3)).is_err());
        // A failed copy may leave words of both.
        model.copied(3, 5, 1, false);
        let mut mixed = page(9, 3);
        mixed[..8].copy_from_slice(&page(1, 5)[..8]);
        assert_eq!(model.learn(3, &mixed), Ok(()));
        mixed[8] ^= 1;
        assert!(model.learn(3, &mixed).is_err());
        assert_eq!(model.learn(3, &page(1, 5)), Ok(()));
        model.copied(4, 3, 1, true);
        assert_eq!(model.learn(4, &page(1, 5)), Ok(()));
        assert!(model.learn(4, &page(1, 4)).is_err());
        let words = |seed, page| (0..WORDS).map(move |word| pattern::word(seed, page, word));
        assert_eq!(model.checksum(4, 2), checksum(words(1, 5).chain(words(1, 5))));
    }

    #[test]
    fn two_parts_do_not_overlap() {
        let board = Board::new(Vec::new()).unwrap();
        let mut model = Model::new(1, &board).unwrap();
        for _ in 0..10_000 {
            let ([to, from], pages) = model.two_parts(30);
            assert!(to.abs_diff(from) >= pages && to.max(from) + pages <= PAGES && pages > 0);
        }
    }
}
