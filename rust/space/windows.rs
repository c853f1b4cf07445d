// SPDX-License-Identifier: GPL-2.0

//! Notifier windows of a space. A window is created where a device uses memory, and removed when no
//! mirror has an entry in it. The windows are in a tree under a spinlock. It is never held while a
//! notifier is registered or removed, because both sleep.
//!
//! A worker removes windows, because `mmu_interval_notifier_remove()` waits for callbacks, and a
//! callback itself may find a window empty. The worker checks twice whether a window has users:
//! between the checks it searches for entries under the table locks, which cannot be taken under
//! the lock of the windows. A fault and a migration are users from before they read the CPU page
//! table until their entries are installed.

use super::{
    find,
    window::{
        index_of,
        NotifierWindow,
        WindowNotifier, //
    },
    Space, //
};
use crate::{
    kernel::{
        deferred::{
            Recurring,
            RecurringWork, //
        },
        identity::MmId,
        lock_classes,
        rcu_map::RcuArc, //
    },
    mm::{
        addr::PageRange,
        range_fault::AddressSpace, //
    }, //
};
use core::ops::Deref;
use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        Arc,
        SpinLock, //
    }, //
};

/// Maximum number of windows that are queued individually for the worker. If it is reached, the
/// worker runs. If it is exceeded before that, the worker checks all windows.
const MAX_CANDIDATES: usize = 16;

/// Windows by index.
type WindowIndex = RBTree<usize, Arc<WindowNotifier>>;

/// Notifier windows of a space.
#[pin_data]
pub(crate) struct NotifierWindows {
    #[pin]
    all: SpinLock<WindowIndex>,
    sweeper: Arc<Recurring<Sweep>>,
}

/// Use of a window. The window is not removed while a use of it exists.
pub(crate) struct WindowUser(Arc<WindowNotifier>);

impl Deref for WindowUser {
    type Target = WindowNotifier;

    #[inline]
    fn deref(&self) -> &WindowNotifier {
        &self.0
    }
}

impl Drop for WindowUser {
    #[inline]
    fn drop(&mut self) {
        self.0.subscriber().leave();
    }
}

impl NotifierWindows {
    /// Creates an empty set for the space `name`.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    pub(super) fn new(name: MmId) -> impl PinInit<Self, Error> {
        let (lock_name, key) = lock_classes::windows();
        try_pin_init!(Self {
            all <- SpinLock::new(WindowIndex::new(), lock_name, key),
            sweeper: Sweep::new(name)?,
        }? Error)
    }

    /// Begins to use the window `index`, if it exists. Not inlined, to keep the code of faults
    /// small.
    #[inline(never)]
    fn enter(&self, index: usize) -> Option<WindowUser> {
        Self::enter_in(&self.all.lock(), index)
    }

    /// Returns the number of windows.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(crate) fn count(&self) -> usize {
        self.all.lock().iter().count()
    }

    /// Returns the number of uses of the window that contains `addr`.
    #[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
    pub(crate) fn users(&self, addr: usize) -> usize {
        let all = self.all.lock();
        let window = all.get(&index_of(addr));
        window.map_or(0, |window| window.subscriber().users())
    }

    fn enter_in(all: &WindowIndex, index: usize) -> Option<WindowUser> {
        let window = all.get(&index)?;
        window.subscriber().enter();
        Some(WindowUser(window.clone()))
    }

    /// Queues a check whether the window at `addr` is still needed. The worker runs immediately if
    /// `urgent` is set, otherwise when several windows are queued.
    ///
    /// # Context
    ///
    /// Any but interrupts.
    pub(super) fn queue_check(&self, addr: usize, urgent: bool) {
        let many = self.sweeper.work().candidates.lock().add(index_of(addr));
        if urgent || many {
            self.sweeper.queue();
        }
    }

    /// Queues a check of all windows, and runs the worker.
    ///
    /// # Context
    ///
    /// Any but interrupts.
    pub(crate) fn queue_check_all(&self) {
        self.sweeper.work().candidates.lock().all = true;
        self.sweeper.queue();
    }

    /// Makes the worker install the lost entries of memory that devices must always have mapped.
    ///
    /// # Context
    ///
    /// Any but interrupts.
    pub(super) fn restore_later(&self) {
        self.sweeper.work().candidates.lock().restore = true;
        self.sweeper.queue();
    }

    /// Removes all windows of a space that has no mirror.
    ///
    /// # Context
    ///
    /// May sleep. Waits for callbacks.
    pub(super) fn remove_all(&self) {
        loop {
            // The window is dropped after the lock was released, because the drop waits for
            // callbacks.
            let first = {
                let mut all = self.all.lock();
                let first = all.cursor_front_mut().map(|cursor| cursor.remove_current());
                first.map(|(_, window)| window)
            };
            if first.is_none() {
                break;
            }
        }
    }

    /// Returns the index of the first window whose index is not below `index`.
    fn next(&self, index: usize) -> Option<usize> {
        let all = self.all.lock();
        let found = all.cursor_lower_bound(&index)?;
        Some(*found.current().0)
    }

    /// Returns whether there are windows in `range` behind `window`.
    ///
    /// # Context
    ///
    /// Any but interrupts.
    pub(super) fn any_behind(&self, window: PageRange, range: PageRange) -> bool {
        let next = self.next(index_of(window.end()));
        next.is_some_and(|next| next <= index_of(range.end() - 1))
    }

    /// Removes the window `index`, unless it is in use or a mirror of `space` has an entry in it.
    fn sweep(&self, space: &Space, index: usize) {
        let range = match self
            .all
            .lock()
            .get(&index)
            .map(|window| window.subscriber())
        {
            Some(window) if window.begin_closing() => window.range(),
            _ => return,
        };
        for mirror in space.mirrors().entered(None) {
            if !mirror.leave_window(range) {
                return;
            }
        }
        let window = {
            let mut all = self.all.lock();
            let is_unused = all
                .get(&index)
                .is_some_and(|window| window.subscriber().is_closing());
            is_unused.then(|| all.remove_node(&index)).flatten()
        };
        // Drop the window without the lock, because the drop waits for callbacks.
        drop(window);
    }
}

impl Space {
    /// Returns a use of the window that contains `addr`. Creates the window if it does not exist.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    /// - `EINTR` if a fatal signal is pending.
    ///
    /// # Context
    ///
    /// May sleep. The mmap lock must not be held.
    pub(crate) fn window(
        space: &RcuArc<Self>,
        mm: &AddressSpace,
        addr: usize,
    ) -> Result<WindowUser> {
        let found = space.windows.enter(index_of(addr));
        found.map_or_else(|| Self::new_window(space, mm, addr), Ok)
    }

    #[cold]
    #[inline(never)]
    fn new_window(space: &RcuArc<Self>, mm: &AddressSpace, addr: usize) -> Result<WindowUser> {
        let index = index_of(addr);
        let window = NotifierWindow::new(space.clone(), addr)?;
        let range = window.range();
        let notifier = WindowNotifier::new(space.registration.of(mm.mm())?, range, window);
        let new = Arc::pin_init(notifier, GFP_KERNEL_ACCOUNT)?;
        let node = RBTreeNode::new(index, new.clone(), GFP_KERNEL_ACCOUNT)?;
        let mut all = space.windows.all.lock();
        // A concurrent task may have created the window. This one is then dropped after the lock
        // was released.
        if let Some(user) = NotifierWindows::enter_in(&all, index) {
            drop(all);
            return Ok(user);
        }
        let _none = all.insert(node);
        drop(all);
        Ok(WindowUser(new))
    }
}

/// Windows that the worker has to check, because they may have no entries left.
#[derive(Default)]
struct RemovalCandidates {
    some: [Option<usize>; MAX_CANDIDATES],
    all: bool,
    /// Whether mirrors have lost entries of memory that they must always have mapped.
    restore: bool,
}

impl RemovalCandidates {
    /// Adds a window. Returns whether the list is full now.
    fn add(&mut self, index: usize) -> bool {
        if self.all || self.some.contains(&Some(index)) {
            return self.all;
        }
        match self.some.iter_mut().position(|place| place.is_none()) {
            Some(number) => {
                if let Some(place) = self.some.get_mut(number) {
                    *place = Some(index);
                }
                number + 1 == MAX_CANDIDATES
            }
            None => {
                self.all = true;
                true
            }
        }
    }
}

/// Work item that removes windows of a space that are not needed.
struct Sweep {
    /// The space. The space may have been freed when the work item runs.
    name: MmId,
    candidates: Pin<KBox<SpinLock<RemovalCandidates>>>,
}

impl Sweep {
    fn new(name: MmId) -> Result<Arc<Recurring<Self>>> {
        let (lock_name, key) = lock_classes::removal_candidates();
        let candidates = SpinLock::new(RemovalCandidates::default(), lock_name, key);
        let candidates = KBox::pin_init(candidates, GFP_KERNEL_ACCOUNT)?;
        Recurring::new(Self { name, candidates })
    }
}

impl RecurringWork for Sweep {
    fn run(&self) {
        let candidates = core::mem::take(&mut *self.candidates.lock());
        let Some(space) = find(self.name) else {
            return;
        };
        if candidates.restore {
            space
                .mirrors()
                .entered(None)
                .for_each(|mirror| mirror.restore(None));
        }
        if !candidates.all {
            for index in candidates.some.into_iter().flatten() {
                space.windows.sweep(&space, index);
            }
            return;
        }
        let mut next = 0;
        while let Some(index) = space.windows.next(next) {
            space.windows.sweep(&space, index);
            next = index + 1;
        }
    }
}
