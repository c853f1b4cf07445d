// SPDX-License-Identifier: GPL-2.0

//! Fault injection: points at which a test makes the library fail, as lack of memory, devices and
//! other processes make it fail.
//!
//! Each [`FailPoint`] is a file in debugfs, `rust_hmm/inject/<name>`. Writing `N` makes the N-th
//! use from then on fail, once. `N every` makes each N-th use fail, and `0` disables the point.
//! Reading returns the number of uses until the next failure, the period, and the number of
//! failures so far. Uses are counted over all devices and tasks.
//!
//! The option `CONFIG_RUST_HMM_FAULT_INJECTION` compiles fault injection in. It is on by default,
//! so that tests run with the modules that are shipped. If no point is set, a use costs a load of a
//! variable that is not modified, and a branch. Without the option a use costs nothing.

use crate::kernel::{
    debugfs::{
        DebugFile,
        FileContents, //
    },
    names::named,
    word::peek_usize, //
};
use core::str::FromStr;
use kernel::{
    debugfs::{
        Reader,
        Writer, //
    },
    fmt,
    prelude::*,
    sync::atomic::{
        ordering::Relaxed,
        Atomic,
        AtomicFlag, //
    },
    uaccess::UserSliceReader, //
};

named! {
    /// A point at which a failure can be injected.
    FailPoint: &'static CStr;
    /// The validation of a range fault fails, as after a concurrent invalidation.
    Retry = c"retry";
    /// The task is killed while it waits for the mmap lock: `EINTR`.
    MmapLock = c"mmap_lock";
    /// The task is killed while it retries, or waits for something else: `EINTR`.
    Killed = c"killed";
    /// The process of the address space has exited: `EFAULT`.
    Space = c"space";
    /// No memory to announce a migration to a mirror: `ENOMEM`.
    Announce = c"announce";
    /// The pages cannot be isolated: `ENOMEM`.
    Isolate = c"isolate";
    /// A small or huge page cannot be made exclusive: `EBUSY`.
    Exclusive = c"exclusive";
    /// No small or huge page of device memory is free.
    DevicePage = c"device_page";
    /// Device memory cannot grow: `ENOMEM`.
    Grow = c"grow";
    /// A region of physical addresses cannot be used: `EEXIST`.
    Region = c"region";
    /// No system memory for a small or huge page that migrates back: `ENOMEM`.
    SystemFolio = c"system_folio";
    /// A copy fails: `EIO`.
    Copy = c"copy";
    /// No table pages can be preallocated: `ENOMEM`.
    TablePage = c"table_page";
    /// Validated or migrated pages cannot be installed in the device's page table: `ENOMEM`.
    Install = c"install";
    /// A mirror does not join a migration, so that the migration removes its entries.
    Join = c"join";
    /// A page or memory of another device cannot be mapped for DMA: `ENOMEM`.
    Dma = c"dma";
    /// No memory for a range of attributes: `ENOMEM`.
    Attributes = c"attributes";
    /// Nothing fails: delays code in a race window for 100 ms. A lock or an order of steps makes
    /// this window harmless.
    Window = c"window";
}

/// Whether points can be set.
const IS_BUILT: bool = cfg!(CONFIG_RUST_HMM_FAULT_INJECTION);

const POINT_COUNT: usize = FailPoint::ALL.len();

/// The setting of a point.
struct PointState {
    /// Number of uses until the next failure, including the one that fails; 0: none fails.
    left: Atomic<u64>,
    /// Number of uses from one failure to the next; 0: there is no next failure.
    period: Atomic<u64>,
    failures: Atomic<u64>,
}

impl PointState {
    const fn new() -> Self {
        Self {
            left: Atomic::new(0),
            period: Atomic::new(0),
            failures: Atomic::new(0),
        }
    }

    /// Counts a use, and returns whether it fails.
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

    fn set(&self, setting: PointSetting) {
        self.left.store(0, Relaxed);
        self.period.store(setting.period, Relaxed);
        self.left.store(setting.left, Relaxed);
    }
}

/// Number of points that are set. The only variable that is read while none is set.
static ARMED_POINTS: Atomic<usize> = Atomic::new(0);

static POINT_STATES: [PointState; POINT_COUNT] = [const { PointState::new() }; POINT_COUNT];

/// Counts a use of `point`, and returns whether it must fail. Context: any.
#[inline]
pub(crate) fn fails(point: FailPoint) -> bool {
    is_injecting() && counted(point)
}

/// Returns whether any point is set. Context: any.
#[inline]
pub(crate) fn is_injecting() -> bool {
    IS_BUILT && peek_usize(&ARMED_POINTS) != 0
}

/// Recomputes the number of points that are set.
fn recount() {
    let set = |state: &&PointState| state.left.load(Relaxed) != 0;
    ARMED_POINTS.store(POINT_STATES.iter().filter(set).count(), Relaxed);
}

#[cold]
fn counted(point: FailPoint) -> bool {
    POINT_STATES
        .get(point as usize)
        .is_some_and(PointState::fails)
}

/// The parsed text of a write to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PointSetting {
    left: u64,
    period: u64,
}

impl FromStr for PointSetting {
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

impl Writer for PointState {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = self.left.load(Relaxed);
        let period = self.period.load(Relaxed);
        writeln!(f, "{left} {period} {}", self.failures.load(Relaxed))
    }
}

impl Reader for PointState {
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

/// A point that a KUnit test has set. Dropping it disables the point.
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
pub(crate) struct ArmedPoint(&'static PointState);

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
impl ArmedPoint {
    /// Makes the `left`-th use of `point` from now on fail, and with `again` each `left`-th.
    pub(crate) fn new(point: FailPoint, left: u64, again: bool) -> Result<Self> {
        let state = POINT_STATES.get(point as usize).ok_or(EINVAL)?;
        state.set(PointSetting {
            left,
            period: if again { left } else { 0 },
        });
        recount();
        Ok(Self(state))
    }

    /// Returns whether the failure has not happened yet.
    pub(crate) fn is_left(&self) -> bool {
        self.0.left.load(Relaxed) != 0
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
impl Drop for ArmedPoint {
    fn drop(&mut self) {
        self.0.set(PointSetting { left: 0, period: 0 });
        recount();
    }
}

/// Failures of one device, which a driver for tests sets. See
/// [`Memory::faults`](crate::memory::Memory::faults).
pub struct DeviceFaults {
    fail_allocation: AtomicFlag,
    keep_write: AtomicFlag,
}

impl DeviceFaults {
    pub(crate) const fn new() -> Self {
        Self {
            fail_allocation: AtomicFlag::new(false),
            keep_write: AtomicFlag::new(false),
        }
    }

    /// Sets whether the next allocation of device memory fails.
    ///
    /// # Context
    ///
    /// Any.
    pub fn fail_allocation(&self, fail: bool) {
        self.fail_allocation.store(fail, Relaxed);
    }

    /// Sets whether migrations for which the device keeps its entries leave them writable. Writes
    /// of the device during the copy are then lost, which a test must detect.
    ///
    /// # Context
    ///
    /// Any.
    pub fn keep_write(&self, keep: bool) {
        self.keep_write.store(keep, Relaxed);
    }

    /// Returns whether the allocation that begins must fail.
    #[inline]
    pub(crate) fn fails_allocation(&self) -> bool {
        self.fail_allocation.load(Relaxed) && self.fail_allocation.xchg(false, Relaxed)
    }

    #[inline]
    pub(crate) fn keeps_write(&self) -> bool {
        self.keep_write.load(Relaxed)
    }
}

/// Returns the debugfs files of all points.
pub(crate) fn files() -> impl Iterator<Item = DebugFile> {
    let points = if IS_BUILT { FailPoint::ALL } else { &[] };
    points
        .iter()
        .zip(&POINT_STATES)
        .map(|((_, name), state)| DebugFile {
            below: Some(c"inject"),
            name,
            contents: FileContents::WritableText(state),
        })
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_inject)]
mod tests {
    use super::*;

    #[test]
    fn one_use_fails() -> Result {
        let state = PointState::new();
        assert!(!state.fails());
        state.set("2".parse()?);
        assert!(!state.fails() && state.fails() && !state.fails());
        assert_eq!(state.failures.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn every_nth_use_fails() -> Result {
        let state = PointState::new();
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
    fn device_fails_one_allocation() {
        let faults = DeviceFaults::new();
        assert!(!faults.fails_allocation() && !faults.keeps_write());
        faults.fail_allocation(true);
        faults.keep_write(true);
        assert!(faults.fails_allocation() && !faults.fails_allocation());
        assert!(faults.keeps_write());
        faults.fail_allocation(true);
        faults.fail_allocation(false);
        faults.keep_write(false);
        assert!(!faults.fails_allocation() && !faults.keeps_write());
    }

    #[test]
    fn invalid_text_is_refused() {
        for text in ["", "x", "-1", "1 always", "1 every 2", "1 2"] {
            assert_eq!(text.parse::<PointSetting>(), Err(EINVAL));
        }
    }
}
