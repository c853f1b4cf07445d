// SPDX-License-Identifier: GPL-2.0

//! Stand-in for `kernel::sync::rcu`. A grace period waits for all read sections that began before
//! it. Operations in these sections happen before its end, and operations before its start happen
//! before later sections. A section has no other ordering.

#[cfg(feature = "explore")]
mod imp {
    use crate::model::{
        self,
        Hidden,
        Order,
        THREADS, //
    };
    use crate::types::NotThreadSafe;

    struct State {
        /// Nesting depth of read sections, for each thread.
        depth: [usize; THREADS],
        /// Number of outermost read sections that each thread has begun.
        begun: [usize; THREADS],
    }

    static STATE: Hidden<State> = Hidden::new(State {
        depth: [0; THREADS],
        begun: [0; THREADS],
    });
    /// Ends of sections.
    static ENDED: Order = Order::new();
    /// Beginnings of grace periods.
    static BEGUN: Order = Order::new();

    /// Called before each execution.
    pub(crate) fn reset() {
        STATE.with(|state| state.depth = [0; THREADS]);
        ENDED.reset();
        BEGUN.reset();
    }

    /// A read section.
    pub struct Guard(NotThreadSafe);

    /// Begins a read section.
    pub fn read_lock() -> Guard {
        let thread = model::thread();
        let outermost = STATE.with(|state| {
            state.depth[thread] += 1;
            let outermost = state.depth[thread] == 1;
            state.begun[thread] += usize::from(outermost);
            outermost
        });
        if outermost {
            BEGUN.acquire();
        }
        Guard(crate::types::NotThreadSafe)
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            let thread = model::thread();
            let outermost = STATE.with(|state| {
                state.depth[thread] -= 1;
                state.depth[thread] == 0
            });
            if outermost {
                ENDED.release();
            }
        }
    }

    /// Waits for all read sections that have begun.
    pub fn synchronize_rcu() {
        BEGUN.release();
        let me = model::thread();
        for thread in (0..THREADS).filter(|thread| *thread != me) {
            let at = |state: &mut State| (state.depth[thread], state.begun[thread]);
            let (mut depth, first) = STATE.with(at);
            let mut begun = first;
            while depth != 0 && begun == first {
                model::yield_now();
                (depth, begun) = STATE.with(at);
            }
        }
        ENDED.acquire();
    }
}

#[cfg(not(feature = "explore"))]
mod imp {
    use std::sync::{
        RwLock,
        RwLockReadGuard, //
    };

    static LOCK: RwLock<()> = RwLock::new(());

    thread_local! {
        static DEPTH: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
    }

    /// A read section.
    pub struct Guard(Option<RwLockReadGuard<'static, ()>>);

    /// Begins a read section.
    pub fn read_lock() -> Guard {
        let depth = DEPTH.with(|depth| depth.replace(depth.get() + 1));
        Guard((depth == 0).then(|| LOCK.read().unwrap()))
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            DEPTH.with(|depth| depth.set(depth.get() - 1));
            self.0 = None;
        }
    }

    /// Waits for all read sections that have begun.
    pub fn synchronize_rcu() {
        drop(LOCK.write().unwrap());
    }
}

#[cfg(feature = "explore")]
pub(crate) use imp::reset;
pub use imp::{
    read_lock,
    synchronize_rcu,
    Guard, //
};
