// SPDX-License-Identifier: GPL-2.0

//! Fault injection: points at which the library fails as memory, devices and other processes make
//! it fail, at the time that a test chooses.
//!
//! Each [`Point`] is a file in debugfs, `rust_hmm/inject/<name>`. Writing `N` makes its N-th use
//! from then on fail, once; `N every` each N-th; `0` none. Reading tells what is left until the next
//! failure, the period, and the failures so far. Uses are counted over all devices and tasks.
//!
//! It is always compiled in, so that the modules which are tested are the ones that are shipped.
//! As long as no point is set, a use costs a load of a word that nobody writes, and a branch.

use crate::{
    debugfs::{Contents, File},
    names::named, //
};
use core::str::FromStr;
use kernel::{
    debugfs::{Reader, Writer},
    fmt,
    prelude::*,
    sync::atomic::{ordering::Relaxed, Atomic},
    uaccess::UserSliceReader,
};

named! {
    /// Where a failure can be injected.
    Point: &'static CStr;
    /// Something has changed since the collection: the validation fails.
    Retry = c"retry";
    /// The task is killed while it waits for the mmap lock: `EINTR`.
    MmapLock = c"mmap_lock";
    /// The task is killed while it goes round, or waits for something else: `EINTR`.
    Killed = c"killed";
    /// The process whose address space it is has gone: `EFAULT`.
    Space = c"space";
    /// There is no memory to announce a migration to a mirror: `ENOMEM`.
    Transaction = c"transaction";
    /// The pages cannot be isolated: `ENOMEM`.
    Isolate = c"isolate";
    /// A page, of either size, does not become exclusive: `EBUSY`.
    Exclusive = c"exclusive";
    /// No page of device memory, of either size, is free.
    DevicePage = c"device_page";
    /// Device memory cannot grow: `ENOMEM`.
    Grow = c"grow";
    /// A region of physical addresses cannot be used: `EEXIST`.
    Region = c"region";
    /// No system memory for a page, of either size, that is to come back: `ENOMEM`.
    SystemFolio = c"system_folio";
    /// A copy ends with an error: `EIO`.
    Copy = c"copy";
    /// No table pages can be reserved: `ENOMEM`.
    TablePage = c"table_page";
    /// Validated or migrated pages cannot be put into the device's page table: `ENOMEM`.
    Install = c"install";
    /// A mirror is in use, so that a CPU fault cannot have it at once.
    Peer = c"peer";
    /// A page, or memory of another device, gets no DMA address: `ENOMEM`.
    Dma = c"dma";
    /// No memory for a range of attributes: `ENOMEM`.
    Attributes = c"attributes";
    /// Nothing fails: a window that a lock or an order of steps makes harmless stays open for 100 ms.
    Window = c"window";
}

const COUNT: usize = Point::ALL.len();

/// What is set for a point.
struct State {
    /// Uses until one fails, that one included; 0: none does.
    left: Atomic<u64>,
    /// Uses from one failure to the next; 0: there is no next.
    period: Atomic<u64>,
    failures: Atomic<u64>,
}

impl State {
    const fn new() -> Self {
        Self {
            left: Atomic::new(0),
            period: Atomic::new(0),
            failures: Atomic::new(0),
        }
    }

    /// Counts a use, and says whether it fails.
    fn fails(&self) -> bool {
        let mut left = self.left.load(Relaxed);
        loop {
            let next = match left {
                0 => return false,
                1 => self.period.load(Relaxed),
                more => more - 1,
            };
            match self.left.cmpxchg(left, next, Relaxed) {
                Ok(_) => break,
                Err(now) => left = now,
            }
        }
        if left == 1 {
            self.failures.add(1, Relaxed);
        }
        left == 1
    }

    fn set(&self, setting: Setting) {
        self.left.store(0, Relaxed);
        self.period.store(setting.period, Relaxed);
        self.left.store(setting.left, Relaxed);
    }
}

/// Number of points that are set.
static SET: Atomic<usize> = Atomic::new(0);

static STATES: [State; COUNT] = [const { State::new() }; COUNT];

/// Whether a failure is to be injected at `point` now. Context: any.
#[inline]
pub(crate) fn fails(point: Point) -> bool {
    SET.load(Relaxed) != 0 && counted(point)
}

/// Whether any point is set. Context: any.
#[inline]
pub(crate) fn is_injecting() -> bool {
    SET.load(Relaxed) != 0
}

/// Finds out which points are set.
fn recount() {
    let set = |state: &&State| state.left.load(Relaxed) != 0;
    SET.store(STATES.iter().filter(set).count(), Relaxed);
}

#[cold]
fn counted(point: Point) -> bool {
    STATES.get(point as usize).is_some_and(State::fails)
}

/// What can be written to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Setting {
    left: u64,
    period: u64,
}

impl FromStr for Setting {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut words = text.split_ascii_whitespace();
        let left = words.next().ok_or(EINVAL)?;
        let left = left.parse::<u64>().map_err(|_| EINVAL)?;
        let period = match words.next() {
            None => 0,
            Some("every") => left,
            Some(_) => return Err(EINVAL),
        };
        if words.next().is_some() {
            return Err(EINVAL);
        }
        Ok(Self { left, period })
    }
}

impl Writer for State {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (left, period) = (self.left.load(Relaxed), self.period.load(Relaxed));
        writeln!(f, "{left} {period} {}", self.failures.load(Relaxed))
    }
}

impl Reader for State {
    fn read_from_slice(&self, reader: &mut UserSliceReader) -> Result {
        let mut buffer = [0; 64];
        let text = buffer.get_mut(..reader.len()).ok_or(EINVAL)?;
        reader.read_slice(text)?;
        let text = core::str::from_utf8(text).map_err(|_| EINVAL)?;
        self.set(text.parse()?);
        recount();
        Ok(())
    }
}

/// A failure that a KUnit test has set; none when it is dropped.
#[cfg(CONFIG_KUNIT = "y")]
pub(crate) struct Armed(&'static State);

#[cfg(CONFIG_KUNIT = "y")]
impl Armed {
    /// The `left`-th use of `point` from now on fails, and with `again` each `left`-th.
    pub(crate) fn new(point: Point, left: u64, again: bool) -> Result<Self> {
        let state = STATES.get(point as usize).ok_or(EINVAL)?;
        state.set(Setting {
            left,
            period: if again { left } else { 0 },
        });
        recount();
        Ok(Self(state))
    }

    /// Whether it is still to come.
    pub(crate) fn is_left(&self) -> bool {
        self.0.left.load(Relaxed) != 0
    }
}

#[cfg(CONFIG_KUNIT = "y")]
impl Drop for Armed {
    fn drop(&mut self) {
        self.0.set(Setting { left: 0, period: 0 });
        recount();
    }
}

/// The files of all points.
pub(crate) fn files() -> impl Iterator<Item = File> {
    Point::ALL
        .iter()
        .zip(&STATES)
        .map(|((_, name), state)| File {
            below: Some(c"inject"),
            name,
            contents: Contents::Setting(state),
        })
}

#[kunit_tests(rust_hmm_inject)]
mod tests {
    use super::*;

    #[test]
    fn one_use_fails() -> Result {
        let state = State::new();
        assert!(!state.fails());
        state.set("2".parse()?);
        assert!(!state.fails() && state.fails() && !state.fails());
        assert_eq!(state.failures.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn every_so_manyth_use_fails() -> Result {
        let state = State::new();
        state.set("3 every\n".parse()?);
        for round in 1..=9 {
            assert_eq!(state.fails(), round % 3 == 0);
        }
        state.set("0".parse()?);
        assert!(!state.fails());
        assert_eq!(state.failures.load(Relaxed), 3);
        Ok(())
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "x", "-1", "1 always", "1 every 2", "1 2"] {
            assert_eq!(text.parse::<Setting>(), Err(EINVAL));
        }
    }
}
