// SPDX-License-Identifier: GPL-2.0

//! Stand-in for `kernel::sync`.

pub mod arc;
pub mod aref;
pub mod atomic;
pub mod completion;
pub mod condvar;
pub mod lock;
pub mod poll;
pub mod rcu;
pub mod refcount;
pub mod set_once;

pub use arc::Arc;
pub use completion::{
    Completion,
    RawCompletion, //
};
pub use condvar::{
    CondVar,
    CondVarTimeoutResult, //
};
pub use lock::{
    Mutex,
    MutexGuard,
    SpinLock, //
};
pub use refcount::Refcount;
pub use set_once::SetOnce;

/// A lock class.
pub struct LockClassKey;
