// SPDX-License-Identifier: GPL-2.0

//! The windows of a space, made where a device uses memory, and removed when nothing is left in them.
//!
//! A worker removes them: `mmu_interval_notifier_remove()` waits for callbacks, also for one that found a window empty.
//! It looks twice whether anybody uses the window, because the table locks, under which it looks for entries in between,
//! are not taken under the lock of the windows. Who has an entry made is a user.

use super::{
    find,
    window::{index_of, Window, WindowNotifier},
    Space,
};
use crate::{
    deferred::{Recurring, Work},
    locks,
    mm::{
        addr::PageRange,
        notifier::Cookie,
        range_fault::AddressSpace,
        rcu_map::RcuArc, //
    },
};
use core::ops::Deref;
use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNode},
    sync::{Arc, SpinLock},
};

/// Windows that are doubted before a worker looks at them, unless that is urgent. If more are doubted until it does, it
/// looks at all.
const DOUBTS: usize = 16;

/// Windows by number.
type Tree = RBTree<usize, Arc<WindowNotifier>>;

/// The windows of a space.
#[pin_data]
pub(crate) struct Windows {
    #[pin]
    all: SpinLock<Tree>,
    sweeper: Arc<Recurring<Sweep>>,
}

/// Use of a window. As long as this is there, the window is.
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

impl Windows {
    /// Those of the space that `name` names: none yet. Context: may sleep. `ENOMEM`.
    pub(super) fn new(name: Cookie) -> impl PinInit<Self, Error> {
        let (lock_name, key) = locks::windows();
        try_pin_init!(Self {
            all <- SpinLock::new(Tree::new(), lock_name, key),
            sweeper: Sweep::new(name)?,
        }? Error)
    }

    /// Begins to use the window `index`, if there is one. Not inlined: it is part of what each fault costs in code.
    #[inline(never)]
    fn enter(&self, index: usize) -> Option<WindowUser> {
        Self::enter_in(&self.all.lock(), index)
    }

    /// How many there are.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(crate) fn count(&self) -> usize {
        self.all.lock().iter().count()
    }

    /// How many use the window with `addr`.
    #[cfg(CONFIG_KUNIT = "y")]
    pub(crate) fn users(&self, addr: usize) -> usize {
        let all = self.all.lock();
        let window = all.get(&index_of(addr));
        window.map_or(0, |window| window.subscriber().users())
    }

    fn enter_in(all: &Tree, index: usize) -> Option<WindowUser> {
        let window = all.get(&index)?;
        window.subscriber().enter();
        Some(WindowUser(window.clone()))
    }

    /// Has a worker look whether the window at `addr` is still needed: at once if it is `urgent`, else when there are
    /// several. Context: any but interrupts.
    pub(super) fn doubt(&self, addr: usize, urgent: bool) {
        let many = self.sweeper.work().doubts.lock().add(index_of(addr));
        if urgent || many {
            self.sweeper.queue();
        }
    }

    /// Has a worker look which windows are still needed. Context: any but interrupts.
    pub(crate) fn doubt_all(&self) {
        self.sweeper.work().doubts.lock().all = true;
        self.sweeper.queue();
    }

    /// Has a worker map again what devices are to have mapped always. Context: any but interrupts.
    pub(super) fn restore_later(&self) {
        self.sweeper.work().doubts.lock().restore = true;
        self.sweeper.queue();
    }

    /// Removes all, of a space without mirrors. Context: may sleep; waits for callbacks.
    pub(super) fn remove_all(&self) {
        loop {
            // Dropped when the lock was released.
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

    /// Number of the first window from `index` on.
    fn next(&self, index: usize) -> Option<usize> {
        let all = self.all.lock();
        let found = all.cursor_lower_bound(&index)?;
        Some(*found.current().0)
    }

    /// Whether there are windows in `range` behind `window`. Context: any but interrupts.
    pub(super) fn any_behind(&self, window: PageRange, range: PageRange) -> bool {
        let next = self.next(index_of(window.end()));
        next.is_some_and(|next| next <= index_of(range.end() - 1))
    }

    /// Removes the window `index`, if nobody uses it, and no mirror of `space` has an entry in it.
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
            let goes = all
                .get(&index)
                .is_some_and(|window| window.subscriber().is_closing());
            goes.then(|| all.remove_node(&index)).flatten()
        };
        // The lock was released.
        drop(window);
    }
}

impl Space {
    /// The window with `addr`, which is made if there is none.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; `EINTR`: killed. Context: may sleep; the mmap lock must not be held.
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
        let window = Window::new(space.clone(), addr)?;
        let range = window.range();
        let notifier = WindowNotifier::new(space.registration.of(mm.mm())?, range, window);
        let new = Arc::pin_init(notifier, GFP_KERNEL_ACCOUNT)?;
        let node = RBTreeNode::new(index, new.clone(), GFP_KERNEL_ACCOUNT)?;
        let mut all = space.windows.all.lock();
        // Somebody may have been faster; then this one's goes when the lock was released.
        if let Some(user) = Windows::enter_in(&all, index) {
            drop(all);
            return Ok(user);
        }
        let _none = all.insert(node);
        drop(all);
        Ok(WindowUser(new))
    }
}

/// Windows that may not be needed any more.
#[derive(Default)]
struct Doubts {
    some: [Option<usize>; DOUBTS],
    all: bool,
    /// Mirrors have lost what they are to have mapped always.
    restore: bool,
}

impl Doubts {
    /// Adds a window. Returns whether there is no room for one more.
    fn add(&mut self, index: usize) -> bool {
        if self.all || self.some.contains(&Some(index)) {
            return self.all;
        }
        match self.some.iter_mut().position(|place| place.is_none()) {
            Some(number) => {
                if let Some(place) = self.some.get_mut(number) {
                    *place = Some(index);
                }
                number + 1 == DOUBTS
            }
            None => {
                self.all = true;
                true
            }
        }
    }
}

/// Looks which windows of a space can go.
struct Sweep {
    /// Of the space, which may be gone when a worker looks.
    name: Cookie,
    doubts: Pin<KBox<SpinLock<Doubts>>>,
}

impl Sweep {
    fn new(name: Cookie) -> Result<Arc<Recurring<Self>>> {
        let (lock_name, key) = locks::doubts();
        let doubts = SpinLock::new(Doubts::default(), lock_name, key);
        let doubts = KBox::pin_init(doubts, GFP_KERNEL_ACCOUNT)?;
        Recurring::new(Self { name, doubts })
    }
}

impl Work for Sweep {
    fn run(&self) {
        let doubts = core::mem::take(&mut *self.doubts.lock());
        let Some(space) = find(self.name) else {
            return;
        };
        if doubts.restore {
            space
                .mirrors()
                .entered(None)
                .for_each(|mirror| mirror.restore(None));
        }
        if !doubts.all {
            for index in doubts.some.into_iter().flatten() {
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
