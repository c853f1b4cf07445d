// SPDX-License-Identifier: GPL-2.0

//! Limit for the retries of an operation that collides with invalidations.

use crate::mm::vma::fatal_signal_pending;
use kernel::{
    prelude::*,
    time::{
        Delta,
        Instant,
        Monotonic, //
    }, //
};

/// Time for which a fault that collides with invalidations is retried. The value is that of
/// `HMM_RANGE_DEFAULT_TIMEOUT`.
const FAULT_TIMEOUT: Delta = Delta::from_millis(1000);

/// Minimum number of attempts of a fault, regardless of [`FAULT_TIMEOUT`].
const FAULT_MIN_ATTEMPTS: usize = 100;

/// Limit for the retries of a fault: [`FAULT_TIMEOUT`] has elapsed and more than
/// [`FAULT_MIN_ATTEMPTS`] attempts failed. The second condition is for a loaded machine, on which
/// one attempt takes long.
pub(super) struct RetryBudget {
    since: Instant<Monotonic>,
    tries: usize,
}

impl RetryBudget {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            tries: 0,
        }
    }

    /// Decides on a retry after `error`. Returns `Ok` if the caller must retry.
    ///
    /// # Errors
    ///
    /// - `error` if it is not `EBUSY`.
    /// - `EINTR` if a fatal signal is pending.
    /// - `EBUSY` if the limit was reached.
    pub(super) fn again(&mut self, error: Error) -> Result {
        if error != EBUSY {
            return Err(error);
        }
        if fatal_signal_pending() {
            return Err(EINTR);
        }
        self.tries += 1;
        if self.since.elapsed() > FAULT_TIMEOUT && self.tries > FAULT_MIN_ATTEMPTS {
            return Err(EBUSY);
        }
        Ok(())
    }
}
