// SPDX-License-Identifier: GPL-2.0

//! Cancellation of long operations.
//!
//! A migration or a queued operation polls its token, and ends early with `ECANCELED` after the
//! token was set.

use crate::bindings;
use kernel::{
    ffi,
    prelude::*,
    sync::{
        atomic::{
            ordering::Relaxed,
            AtomicFlag, //
        },
        Arc, //
    }, //
};

/// Returns `ECANCELED`, for which the kernel crate of 7.2 has no constant.
///
/// # Context
///
/// Any.
pub fn cancelled() -> Error {
    // CAST: An errno is at most `MAX_ERRNO`.
    Error::from_errno(-(bindings::ECANCELED as ffi::c_int))
}

/// Cancellation token of an operation, such as a migration. Clones share their state.
///
/// The token of a queued operation is set when its queue is dropped.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use rust_hmm::kernel::cancel::cancelled;
/// use rust_hmm::kernel::cancel::CancelToken;
///
/// let stop = CancelToken::new()?;
/// let of_the_operation = stop.clone();
/// assert!(of_the_operation.check().is_ok());
/// stop.set();
/// assert_eq!(of_the_operation.check(), Err(cancelled()));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct CancelToken(Arc<AtomicFlag>);

impl CancelToken {
    /// Creates a token that is not set.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    pub fn new() -> Result<Self> {
        Ok(Self(Arc::new(AtomicFlag::new(false), GFP_KERNEL)?))
    }

    /// Cancels the operations that have this token. They end early, with `ECANCELED`.
    ///
    /// # Context
    ///
    /// Any.
    pub fn set(&self) {
        self.0.store(true, Relaxed);
    }

    /// Returns whether the operation should return early, with `ECANCELED`.
    ///
    /// # Context
    ///
    /// Any.
    pub fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// Checks whether the operation should return early.
    ///
    /// # Errors
    ///
    /// - `ECANCELED`: the token is set
    ///
    /// # Context
    ///
    /// Any.
    pub fn check(&self) -> Result {
        if self.is_set() {
            return Err(cancelled());
        }
        Ok(())
    }
}
