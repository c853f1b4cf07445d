// SPDX-License-Identifier: GPL-2.0

//! The status of a command, and requests to stop it.

use kernel::{
    ffi::c_int,
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            Atomic,
            AtomicFlag, //
        },
        Arc,
        CondVar,
        CondVarTimeoutResult,
        Mutex, //
    },
    time::{
        delay::fsleep,
        msecs_to_jiffies,
        Delta,
        Instant,
        Monotonic, //
    }, //
};

/// Status of a command whose result differs from the expected one.
pub(crate) const EILSEQ: c_int = -84;

/// Status of a command that was stopped before its last round.
pub(crate) const ECANCELED: c_int = -125;

/// Maximum sleep of a wait before it checks the clock again, in ms.
const MAX_SLEEP_MS: u32 = 100;

/// Polling interval while a pending signal prevents an interruptible wait.
const POLL_INTERVAL: Delta = Delta::from_millis(1);

/// Progress and outcome of a command.
#[derive(Clone, Copy)]
pub(crate) struct Report {
    /// Outcome; `None` while the command runs.
    pub(crate) ended: Option<Result>,
    pub(crate) result: u64,
    pub(crate) rounds: u64,
    pub(crate) faults: u64,
    pub(crate) stalls: u64,
    pub(crate) stall_ns: u64,
}

/// Status of a command, shared by its engine and its file.
#[pin_data]
pub(crate) struct Status {
    id: u64,
    stop: AtomicFlag,
    result: Atomic<u64>,
    rounds: Atomic<u64>,
    faults: Atomic<u64>,
    stalls: Atomic<u64>,
    stall_ns: Atomic<u64>,
    #[pin]
    ended: Mutex<Option<Result>>,
    #[pin]
    end: CondVar,
}

impl Status {
    pub(crate) fn new(id: u64) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                id,
                stop: AtomicFlag::new(false),
                result: Atomic::new(0),
                rounds: Atomic::new(0),
                faults: Atomic::new(0),
                stalls: Atomic::new(0),
                stall_ns: Atomic::new(0),
                ended <- kernel::new_mutex!(None, "dmirror::ended"),
                end <- kernel::new_condvar!("dmirror::end"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Requests the command to stop. The caller must wake its engine.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    pub(crate) fn add_fault(&self) {
        self.faults.add(1, Relaxed);
    }

    pub(crate) fn add_stall(&self, ns: u64) {
        self.stalls.add(1, Relaxed);
        self.stall_ns.add(ns, Relaxed);
    }

    pub(crate) fn round(&self, result: u64) {
        self.result.store(result, Relaxed);
        self.rounds.add(1, Relaxed);
    }

    /// Reports that the command has ended, and that the engine has dropped all its references.
    pub(crate) fn finish(&self, result: Result) {
        *self.ended.lock() = Some(result);
        self.end.notify_all();
    }

    pub(crate) fn report(&self) -> Report {
        Report {
            ended: *self.ended.lock(),
            result: self.result.load(Relaxed),
            rounds: self.rounds.load(Relaxed),
            faults: self.faults.load(Relaxed),
            stalls: self.stalls.load(Relaxed),
            stall_ns: self.stall_ns.load(Relaxed),
        }
    }

    /// Waits until the command has ended; `None` waits without a timeout. `EINTR`; `ETIMEDOUT`.
    pub(crate) fn wait(&self, timeout: Option<Delta>) -> Result {
        let since = Instant::<Monotonic>::now();
        let mut ended = self.ended.lock();
        while ended.is_none() {
            if timeout.is_some_and(|timeout| since.elapsed() >= timeout) {
                return Err(ETIMEDOUT);
            }
            let slice_ms = match timeout {
                Some(timeout) => {
                    let left = timeout - since.elapsed();
                    u32::try_from(left.as_millis())
                        .unwrap_or(MAX_SLEEP_MS)
                        .clamp(1, MAX_SLEEP_MS)
                }
                None => MAX_SLEEP_MS,
            };
            let why = self
                .end
                .wait_interruptible_timeout(&mut ended, msecs_to_jiffies(slice_ms));
            if let CondVarTimeoutResult::Signal { .. } = why {
                return Err(EINTR);
            }
        }
        Ok(())
    }

    /// Waits until a stopped command has ended, regardless of signals. The wait is bounded by the
    /// fault that is being served for the command.
    pub(crate) fn wait_for_end(&self) {
        let mut ended = self.ended.lock();
        while ended.is_none() {
            // Interruptible, because a migration can delay a fault for longer than the hung task
            // detector tolerates an uninterruptible sleep.
            let why = self
                .end
                .wait_interruptible_timeout(&mut ended, msecs_to_jiffies(MAX_SLEEP_MS));
            if let CondVarTimeoutResult::Signal { .. } = why {
                // A pending signal makes the wait return immediately, so sleep instead.
                drop(ended);
                fsleep(POLL_INTERVAL);
                ended = self.ended.lock();
            }
        }
    }
}
