// SPDX-License-Identifier: GPL-2.0

//! Alarms: reports that a rule of the library was broken.
//!
//! An alarm reports a bug in the library or in a driver that the kernel itself does not detect. For
//! example, a lost TLB flush causes no oops. Each alarm has a name, and is logged as
//! `rust_hmm: ALARM <name>: ...`. `tools/vm/run` fails a run whose log has such a line.
//! `/sys/kernel/debug/rust_hmm/alarms` has the counts, which are exact although the log is
//! rate-limited.

use crate::kernel::{
    limit::RateLimit,
    names::named, //
};
use kernel::{
    debugfs::Writer,
    fmt,
    prelude::*,
    sync::atomic::{
        ordering::Relaxed,
        Atomic, //
    }, //
};

named! {
    /// A rule that was broken.
    Alarm: &'static str;
    /// A [flush batch](crate::pgtable::FlushBatch) was dropped before its flush was started.
    FlushLost = "flush-lost";
    /// A started flush was dropped before it had completed.
    FlushNotAwaited = "flush-not-awaited";
    /// A flush batch was passed to a table that did not create it. The call changes nothing.
    FlushOfAnotherTable = "flush-of-another-table";
    /// A DMA device is being closed, but calls that use it do not return.
    DeviceInUse = "device-in-use";
    /// Pages are still mapped for DMA after their device was closed or their table was freed.
    PagesStayMapped = "pages-stay-mapped";
    /// Device memory is being torn down, but some of its pages cannot be evicted.
    PagesStayInUse = "pages-stay-in-use";
    /// A device used a translation after the flush that should have removed it.
    StaleTranslation = "stale-translation";
}

const ALARM_COUNT: usize = Alarm::ALL.len();

/// Most log lines of one alarm in each period.
const ALARM_BURST: u32 = 10;

/// Count and rate limit of one alarm.
struct AlarmState {
    count: Atomic<u64>,
    limit: RateLimit,
}

static ALARM_STATES: [AlarmState; ALARM_COUNT] = [const {
    AlarmState {
        count: Atomic::new(0),
        limit: RateLimit::new(ALARM_BURST),
    }
}; ALARM_COUNT];

impl Alarm {
    /// Name in the log, in debugfs, and in tests that expect the alarm.
    ///
    /// # Context
    ///
    /// Any.
    pub fn name(self) -> &'static str {
        Self::ALL
            .get(self as usize)
            .map_or("unknown", |(_, name)| name)
    }

    /// Returns how often the alarm was raised since the module was loaded.
    ///
    /// # Context
    ///
    /// Any.
    pub fn count(self) -> u64 {
        ALARM_STATES
            .get(self as usize)
            .map_or(0, |state| state.count.load(Relaxed))
    }

    /// Counts the alarm and logs it with the message `what`. At most 10 lines of an alarm are
    /// logged in 5 seconds.
    ///
    /// # Context
    ///
    /// Any but NMI.
    // Not inlined: callers in other modules must use the counters of the library.
    #[inline(never)]
    pub fn raise(self, what: fmt::Arguments<'_>) {
        let Some(state) = ALARM_STATES.get(self as usize) else {
            return;
        };
        state.count.add(1, Relaxed);
        if state.limit.allows() {
            pr_err!(
                "ALARM {}: task {}: {}\n",
                self.name(),
                current!().pid(),
                what
            );
        }
    }
}

/// Raises an [`Alarm`](crate::alarm::Alarm) with a formatted message.
#[macro_export]
macro_rules! alarm {
    ($alarm:ident, $($format:tt)+) => {
        $crate::alarm::Alarm::$alarm.raise(::kernel::prelude::fmt!($($format)+))
    };
}

/// Contents of the file `alarms`: a line with name and count for each alarm.
pub(crate) struct AlarmReport;

impl Writer for AlarmReport {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Alarm::ALL
            .iter()
            .try_for_each(|(alarm, name)| writeln!(f, "{name} {}", alarm.count()))
    }
}

/// An alarm that a test expects. Two log lines mark its lifetime, in which `tools/vm/run` accepts
/// the alarm.
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
pub(crate) struct ExpectedAlarm {
    alarm: Alarm,
    before: u64,
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
impl ExpectedAlarm {
    /// Expects `alarm` until the returned object is dropped.
    pub(crate) fn new(alarm: Alarm) -> Self {
        pr_info!("ALARM-EXPECTED begin {}\n", alarm.name());
        Self {
            alarm,
            before: alarm.count(),
        }
    }

    /// Returns how often the alarm was raised since `new`.
    pub(crate) fn raised(&self) -> u64 {
        self.alarm.count() - self.before
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
impl Drop for ExpectedAlarm {
    fn drop(&mut self) {
        pr_info!("ALARM-EXPECTED end {}\n", self.alarm.name());
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_alarm)]
mod tests {
    use super::*;

    #[test]
    fn names_match_the_alarms() {
        for (index, (alarm, name)) in Alarm::ALL.iter().enumerate() {
            assert_eq!(*alarm as usize, index);
            assert_eq!(alarm.name(), *name);
        }
    }

    #[test]
    fn expected_alarm_is_counted() {
        let expected = ExpectedAlarm::new(Alarm::StaleTranslation);
        assert_eq!(expected.raised(), 0);
        crate::alarm!(StaleTranslation, "a test expects this");
        assert_eq!(expected.raised(), 1);
    }
}
