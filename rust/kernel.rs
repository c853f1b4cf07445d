// SPDX-License-Identifier: GPL-2.0

//! Safe types over C interfaces that the kernel crate lacks, and that are not specific to memory
//! management.
//!
//! Nothing here imports another folder of the library.
//!
//! - [`cancel`] has cancellation tokens of long operations.
//! - [`completion`] has completions, and the time.
//! - `counted` has objects whose owner waits for their references, which end in any context.
//! - [`fence`] has fences of operations that may fault.
//! - [`fence_watch`] has the report of such fences by `poll`.
//! - [`dma_fence`] has `dma_fence`, [`sync_file`] has sync files.
//! - [`hash`] has `hash_64()`.
//! - [`identity`] has addresses that identify objects.
//! - [`kthread`] has kernel threads.
//! - [`miscdevice`] has character devices of a driver, with `poll` and `mmap`.
//! - [`shrinker`] has shrinkers.
//! - `task_work` has the sleep of a task before it returns to user mode.
//! - `debugfs` has a directory of files in debugfs.
//! - `deferred` has objects that a worker drops because their owner could not wait.
//! - `reentry` has the tasks that are in callbacks, where waits would deadlock.
//! - `lock_classes` has the lock classes of the library.
//! - `once_box` has pointers that are set once, `rcu_slot` those that RCU protects.
//! - `rcu_map` has an XArray of reference-counted objects that RCU protects.
//! - `word` has inlined atomic accesses, `zeroed` has arrays of words.
//! - `limit` has the rate limit of log messages.
//! - `names` has enumerations whose variants have names.
//! - `test_timer` and `test_fence` have timers and a callback of DMA fences for KUnit tests.

pub mod cancel;
pub mod completion;
pub(crate) mod counted;
pub(crate) mod debugfs;
pub(crate) mod deferred;
#[cfg(CONFIG_RUST_HMM_QUEUE)]
pub mod dma_fence;
#[cfg(CONFIG_RUST_HMM_QUEUE)]
pub mod fence;
#[cfg(CONFIG_RUST_HMM_QUEUE)]
pub mod fence_watch;
pub mod hash;
pub mod identity;
pub mod kthread;
pub(crate) mod limit;
pub(crate) mod lock_classes;
pub mod miscdevice;
pub(crate) mod names;
pub(crate) mod once_box;
pub(crate) mod rcu_map;
pub(crate) mod rcu_slot;
pub(crate) mod reentry;
pub mod shrinker;
#[cfg(CONFIG_RUST_HMM_QUEUE)]
pub mod sync_file;
pub(crate) mod task_work;
#[cfg(all(CONFIG_RUST_HMM_KUNIT_TEST, CONFIG_RUST_HMM_QUEUE))]
pub(crate) mod test_fence;
#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
pub(crate) mod test_timer;
pub(crate) mod word;
pub(crate) mod zeroed;
