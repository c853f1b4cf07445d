// SPDX-License-Identifier: GPL-2.0

//! KUnit tests: two tasks that enter two walkers in opposite order.

use super::*;
use crate::kernel::kthread::Thread;
use kernel::{
    sync::atomic::ordering::Acquire,
    time::{
        delay::{
            fsleep,
            udelay, //
        },
        Delta, //
    }, //
};

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_two_walkers)]
mod suite {
    use super::*;

    /// Number of attempts to have both threads inside at the same time. A busy host may not run
    /// both processors for a while.
    const ATTEMPTS: usize = 20;

    /// Results of the threads of the next test.
    #[derive(Default)]
    struct TableTranslation {
        /// Whether the other thread was seen inside.
        met: bool,
        refused: u32,
    }

    /// Lets two threads enter two walkers in opposite order. Returns whether they met, and the
    /// number of refusals.
    fn cross() -> Result<(bool, u32)> {
        let walkers = Walkers::new(2, |_| Ok(TableTranslation::default()))?;
        let ready = Arc::new([const { Atomic::new(0u32) }; 2], GFP_KERNEL)?;
        let mut threads = KVec::new();
        for own in 0..2usize {
            let walkers = walkers.clone();
            let ready = ready.clone();
            let thread = Thread::spawn(c"hmm-test", move || {
                walkers.with(own, |seen| {
                    if let (Some(mine), Some(theirs)) = (ready.get(own), ready.get(1 - own)) {
                        mine.store(1, Release);
                        // Wait until both threads are inside. With one processor, that never
                        // happens.
                        for _ in 0..5000 {
                            if theirs.load(Acquire) != 0 {
                                break;
                            }
                            udelay(Delta::from_micros(100));
                        }
                        seen.met = theirs.load(Acquire) != 0;
                    }
                    // One thread may succeed after the other has left, but both never wait for each
                    // other.
                    seen.refused = u32::from(walkers.with(1 - own, |_| ()).is_none());
                });
            })?;
            threads.push(thread, GFP_KERNEL)?;
        }
        // Poll atomics, not the walkers' locks: spinning on these would block the processor that
        // the other thread needs.
        let all = || ready.iter().all(|ready| ready.load(Acquire) != 0);
        for _ in 0..5000 {
            if all() {
                break;
            }
            fsleep(Delta::from_millis(1));
        }
        assert!(all());
        drop(threads);
        let result = |index| walkers.with(index, |seen| (seen.met, seen.refused));
        let (first, second) = result(0).zip(result(1)).ok_or(EINVAL)?;
        // The first one to enter is inside until it has seen the other, or has given up.
        Ok((first.0 && second.0, first.1 + second.1))
    }

    #[test]
    fn inverted_lock_order_of_two_walkers_is_reported() -> Result {
        for _ in 0..ATTEMPTS {
            let (met, refused) = cross()?;
            if met {
                // Both were inside at the same time, so that at least one was refused.
                assert!(refused >= 1);
                return Ok(());
            }
        }
        assert!(kernel::cpu::nr_cpu_ids() == 1);
        Ok(())
    }
}
