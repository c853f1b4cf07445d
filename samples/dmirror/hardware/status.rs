// SPDX-License-Identifier: GPL-2.0

//! What user space can learn of a command, and how it stops it.

use kernel::{
    ffi::c_int,
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic, AtomicFlag},
        Arc,
        CondVar,
        CondVarTimeoutResult,
        Mutex, //
    },
    time::{delay::fsleep, msecs_to_jiffies, Delta, Instant, Monotonic},
};

/// A command whose result is not the one that it was given.
pub(crate) const EILSEQ: c_int = -84;

/// A command that was stopped before its last round.
pub(crate) const ECANCELED: c_int = -125;

/// Longest sleep of a wait before it looks at the clock again, in ms.
const NAP: u32 = 100;

/// Time between two looks where waiting is not possible.
const PAUSE: Delta = Delta::from_millis(1);

/// How a command stands.
#[derive(Clone, Copy)]
pub(crate) struct Report {
    /// How it ended, if it did.
    pub(crate) ended: Option<Result>,
    pub(crate) result: u64,
    pub(crate) rounds: u64,
    pub(crate) faults: u64,
    pub(crate) stalls: u64,
    pub(crate) stall_ns: u64,
}

/// State of a command, shared by its engine and its file.
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

    /// Asks the command to end. Its engine must be woken.
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

    /// The command has ended, and nothing of it is left at the engine.
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

    /// Waits for the end; `None` waits for ever. `EINTR`; `ETIMEDOUT`.
    pub(crate) fn wait(&self, timeout: Option<Delta>) -> Result {
        let since = Instant::<Monotonic>::now();
        let mut ended = self.ended.lock();
        while ended.is_none() {
            if timeout.is_some_and(|timeout| since.elapsed() >= timeout) {
                return Err(ETIMEDOUT);
            }
            let nap = match timeout {
                Some(timeout) => {
                    let left = timeout - since.elapsed();
                    u32::try_from(left.as_millis()).unwrap_or(NAP).clamp(1, NAP)
                }
                None => NAP,
            };
            let why = self
                .end
                .wait_interruptible_timeout(&mut ended, msecs_to_jiffies(nap));
            if let CondVarTimeoutResult::Signal { .. } = why {
                return Err(EINTR);
            }
        }
        Ok(())
    }

    /// Waits for the end, come what may. Only for a command that was stopped: it ends with the
    /// fault that is being served for it.
    pub(crate) fn wait_for_end(&self) {
        let mut ended = self.ended.lock();
        while ended.is_none() {
            // Interruptible, since a migration can hold a fault for longer than the kernel likes
            // to see a task sleep otherwise.
            let why = self
                .end
                .wait_interruptible_timeout(&mut ended, msecs_to_jiffies(NAP));
            if let CondVarTimeoutResult::Signal { .. } = why {
                // A signal that stays: it would not let us wait.
                drop(ended);
                fsleep(PAUSE);
                ended = self.ended.lock();
            }
        }
    }
}
