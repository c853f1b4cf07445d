// SPDX-License-Identifier: GPL-2.0

//! The traits of a subscriber: the callbacks of an interval notifier, and the page tables that they
//! change.

use super::NotifierRange;
use core::ops::ControlFlow;
use kernel::sync::Mutex;

/// Callbacks of an interval notifier.
///
/// The type is `'static`, because the kernel calls it until the notifier is dropped, and
/// `mem::forget` can prevent the drop.
///
/// # Examples
///
/// ```
/// # use kernel::prelude::*;
/// use core::ops::ControlFlow;
/// use kernel::sync::Mutex;
/// use rust_hmm::mm::notifier::NotifierOps;
/// use rust_hmm::mm::notifier::NotifierRange;
///
/// /// A device that uses one page at a time, and has no TLB.
/// #[pin_data]
/// struct OnePage {
///     #[pin]
///     addr: Mutex<Option<usize>>,
/// }
///
/// impl NotifierOps for OnePage {
///     type Pending = ();
///
///     fn invalidate(&self, event: &NotifierRange<'_>, _: &mut Option<()>) -> ControlFlow<()> {
///         if !event.blockable {
///             return ControlFlow::Break(());
///         }
///         self.addr.lock().take_if(|addr| event.range.contains(*addr));
///         ControlFlow::Continue(())
///     }
///
///     fn finish(&self, (): ()) {}
/// }
/// ```
pub trait NotifierOps: Send + Sync + Sized + 'static {
    /// Started operations that have to be waited for, such as TLB flushes.
    type Pending: Send;

    /// Invalidates translations: takes the lock of each [`NotifierTable`] and changes its page
    /// table.
    ///
    /// On return all effects must be complete, except for operations stored in `pending`, which is
    /// `None` on entry. `pending` is an argument and not a return value because it is large and
    /// seldom used.
    ///
    /// `Break` refuses the event. This is respected only if the event is not blockable. `pending`
    /// must then be `None`.
    ///
    /// # Context
    ///
    /// The sequence of the notifier is set. May sleep if [`NotifierRange::blockable`]. Must not
    /// allocate with reclaim or wait for memory.
    fn invalidate(
        &self,
        event: &NotifierRange<'_>,
        pending: &mut Option<Self::Pending>,
    ) -> ControlFlow<()>;

    /// Waits for the operations that [`Self::invalidate`] has started. The operations of other
    /// notifiers run concurrently.
    ///
    /// # Context
    ///
    /// No lock of the library is held. May sleep if the event was blockable.
    fn finish(&self, pending: Self::Pending);
}

/// A device page table with its lock, which a subscriber takes at each event.
pub trait NotifierTable<S: NotifierOps> {
    /// Data protected by the lock: the device page table.
    type Protected;

    /// Returns the lock.
    ///
    /// # Context
    ///
    /// May be called with the mmap lock or folio locks held. Must not sleep.
    fn mutex(&self) -> &Mutex<Self::Protected>;

    /// Returns whether `subscriber` takes that lock at each event that begins from now on.
    ///
    /// # Context
    ///
    /// As for [`Self::mutex`].
    fn is_notified_by(&self, subscriber: &S) -> bool;
}
