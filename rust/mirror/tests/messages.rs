// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: the texts of messages about mistakes of a driver, and their rate limit.

use super::*;
use crate::{
    alarm::{
        Alarm,
        ExpectedAlarm, //
    },
    kernel::limit::logged_lines,
    pgtable::{
        Flusher,
        Table, //
    }, //
};

/// A device without a TLB.
struct NoTlb;

impl Flusher for NoTlb {
    type Pending = ();

    fn start(&self, _range: PageRange) {}

    fn wait(&self, (): ()) {}
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_messages)]
mod suite {
    use super::*;

    #[test]
    fn dropped_flushes_are_reported_with_their_addresses() -> Result {
        /// Lines of one alarm in five seconds.
        const LIMIT: u32 = 10;
        const DROPS: u32 = 30;
        let table = Table::<Radix4>::new()?;
        let range = PageRange::from_pages(0x7123_0000, 1)?;
        let place = c"device translations of addresses 0x71230000 to 0x7123";
        let lost = c"were not flushed: start() the batch and wait() before its pages are freed";
        let not_awaited = c"may still be in use: wait() for each flush that was started";
        for (alarm, advice) in [
            (Alarm::FlushLost, lost),
            (Alarm::FlushNotAwaited, not_awaited),
        ] {
            let expected = ExpectedAlarm::new(alarm);
            let before = logged_lines(place, advice);
            for _ in 0..DROPS {
                let mut batch = table.batch();
                batch.extend(range);
                match alarm {
                    Alarm::FlushLost => drop(batch),
                    _ => drop(batch.start(&NoTlb)),
                }
            }
            // All are counted.
            assert_eq!(expected.raised(), u64::from(DROPS));
            let lines = logged_lines(place, advice) - before;
            assert!((1..=LIMIT).contains(&lines));
        }
        Ok(())
    }

    #[test]
    fn alarm_names_the_task() {
        let expected = ExpectedAlarm::new(Alarm::FlushOfAnotherTable);
        let lines = || logged_lines(c"ALARM flush-of-another-table: task ", c"a test");
        let before = lines();
        crate::alarm!(FlushOfAnotherTable, "a test expects this");
        assert_eq!((expected.raised(), lines()), (1, before + 1));
    }
}
