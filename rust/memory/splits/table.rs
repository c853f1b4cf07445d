// SPDX-License-Identifier: GPL-2.0

//! Table of the huge pages that are being split. It decides whether a fault waits, returns early,
//! or fails.

use crate::kernel::{
    completion::TimedCompletion,
    lock_classes, //
};
use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        Arc,
        CondVar,
        Mutex, //
    },
    time::{
        Delta,
        Instant,
        Monotonic, //
    }, //
};

/// Time for which a fault that cannot sleep reports that a work item has given up. Such a fault is
/// repeated immediately, so that a fault after this time is a different one.
const SPLIT_FAILURE_LIFETIME: Delta = Delta::from_secs(1);

/// Result of a fault's lookup.
pub(in crate::memory) enum Met {
    /// No work item splits the page.
    Nothing,
    /// A work item is splitting the page. The completion is that of its end.
    Splitting(Arc<TimedCompletion>),
    /// A work item has given up, and a fault that could not sleep has met it.
    GaveUp,
}

/// A page that a work item is splitting, or has given up.
struct Split {
    completion: Arc<TimedCompletion>,
    /// Whether a fault that cannot sleep has met the work item.
    is_met: bool,
    gave_up: Option<Instant<Monotonic>>,
}

/// Pages that are being split, by device page number.
#[pin_data]
pub(super) struct SplitTable {
    #[pin]
    state: Mutex<SplitState>,
    /// Notified when no work item is left.
    #[pin]
    idle: CondVar,
}

struct SplitState {
    splits: RBTree<usize, Split>,
    /// Number of work items, each of which holds a reference to the memory.
    items: usize,
}

impl SplitTable {
    pub(super) fn new() -> Result<Arc<Self>> {
        let (name, key) = lock_classes::splits();
        let (idle_name, idle_key) = lock_classes::splits_idle();
        let state = SplitState {
            splits: RBTree::new(),
            items: 0,
        };
        Arc::pin_init(
            pin_init!(Self {
                state <- Mutex::new(state, name, key),
                idle <- CondVar::new(idle_name, idle_key),
            }),
            GFP_KERNEL,
        )
    }

    /// Looks up page `number`. `can_sleep` is whether the faulting task can sleep before it returns
    /// to user mode.
    pub(super) fn meet(&self, number: usize, can_sleep: bool) -> Met {
        let mut state = self.state.lock();
        let Some(split) = state.splits.get_mut(&number) else {
            return Met::Nothing;
        };
        let Some(since) = split.gave_up else {
            split.is_met |= !can_sleep;
            return Met::Splitting(split.completion.clone());
        };
        state.splits.remove(&number);
        if can_sleep || since.elapsed() > SPLIT_FAILURE_LIFETIME {
            Met::Nothing
        } else {
            Met::GaveUp
        }
    }

    /// Adds an entry for page `number`, if there is none. Returns the completion of the entry
    /// and, if it is a new one, the item that the caller must queue.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    pub(super) fn begin(
        self: &Arc<Self>,
        number: usize,
        can_sleep: bool,
    ) -> Result<(Arc<TimedCompletion>, Option<SplitItem>)> {
        // Allocate without the lock, because an allocation may sleep.
        let completion = Arc::pin_init(TimedCompletion::new(), GFP_KERNEL)?;
        let split = Split {
            completion: completion.clone(),
            is_met: !can_sleep,
            gave_up: None,
        };
        let node = RBTreeNode::new(number, split, GFP_KERNEL)?;
        let mut state = self.state.lock();
        if let Some(split) = state.splits.get_mut(&number) {
            if split.gave_up.is_none() {
                split.is_met |= !can_sleep;
                return Ok((split.completion.clone(), None));
            }
        }
        let _given_up = state.splits.insert(node);
        state.items += 1;
        let item = SplitItem {
            table: self.clone(),
            number,
            completion: completion.clone(),
        };
        Ok((completion, Some(item)))
    }

    /// Removes the entry of page `number`, because another page now begins there. Wakes the tasks
    /// that wait for the split.
    pub(super) fn cancel(&self, number: usize) {
        let split = self.state.lock().splits.remove(&number);
        if let Some(split) = split {
            split.completion.complete_all();
        }
    }

    /// Waits until no work item holds a reference to the memory.
    pub(super) fn wait_until_idle(&self) {
        let mut state = self.state.lock();
        while state.items != 0 {
            self.idle.wait(&mut state);
        }
    }
}

/// A work item's registration in the table. Dropped after the work item's reference to the memory.
pub(super) struct SplitItem {
    table: Arc<SplitTable>,
    pub(super) number: usize,
    completion: Arc<TimedCompletion>,
}

impl SplitItem {
    /// Returns whether the page is still the one that was queued, and not a later one at the same
    /// number.
    pub(super) fn is_wanted(&self) -> bool {
        let state = self.table.state.lock();
        let split = state.splits.get(&self.number);
        split.is_some_and(|split| Arc::ptr_eq(&split.completion, &self.completion))
    }

    /// Records the end of the work item, and wakes the tasks that wait for it.
    pub(super) fn end(&self, is_split: bool) {
        let mut state = self.table.state.lock();
        if let Some(split) = state.splits.get_mut(&self.number) {
            if Arc::ptr_eq(&split.completion, &self.completion) && split.gave_up.is_none() {
                if split.is_met && !is_split {
                    split.gave_up = Some(Instant::now());
                } else {
                    state.splits.remove(&self.number);
                }
            }
        }
        drop(state);
        self.completion.complete_all();
    }
}

impl Drop for SplitItem {
    fn drop(&mut self) {
        // If the work item could not be allocated, no other code ends it. Otherwise this does
        // nothing.
        self.end(false);
        let mut state = self.table.state.lock();
        state.items -= 1;
        self.table.idle.notify_all();
    }
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_splits)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_a_page_share_one_work_item() -> Result {
        let table = SplitTable::new()?;
        let (completion, item) = table.begin(512, true)?;
        let item = item.ok_or(EINVAL)?;
        let (other, second) = table.begin(512, true)?;
        assert!(second.is_none() && Arc::ptr_eq(&completion, &other));
        let (_, beside) = table.begin(1024, true)?;
        assert!(beside.is_some());
        assert!(
            matches!(table.meet(512, true), Met::Splitting(met) if Arc::ptr_eq(&completion, &met))
        );
        assert!(!completion.is_completed());
        item.end(true);
        assert!(completion.is_completed());
        assert!(matches!(table.meet(512, true), Met::Nothing));
        drop((item, beside));
        table.wait_until_idle();
        Ok(())
    }

    #[test]
    fn failure_is_reported_to_nonsleeping_faults_only() -> Result {
        let table = SplitTable::new()?;
        let give_up = |can_sleep: bool| -> Result {
            let (completion, item) = table.begin(512, can_sleep)?;
            item.ok_or(EINVAL)?.end(false);
            assert!(completion.is_completed());
            Ok(())
        };
        give_up(true)?;
        assert!(matches!(table.meet(512, false), Met::Nothing));
        give_up(false)?;
        assert!(matches!(table.meet(512, true), Met::Nothing));
        give_up(false)?;
        assert!(matches!(table.meet(512, false), Met::GaveUp));
        // Only one fault fails: the next one queues another split.
        assert!(matches!(table.meet(512, false), Met::Nothing));
        give_up(false)?;
        assert!(table.begin(512, true)?.1.is_some());
        Ok(())
    }

    #[test]
    fn nonsleeping_fault_joins_later() -> Result {
        let table = SplitTable::new()?;
        let (_, item) = table.begin(512, true)?;
        assert!(matches!(table.meet(512, false), Met::Splitting(_)));
        item.ok_or(EINVAL)?.end(false);
        assert!(matches!(table.meet(512, false), Met::GaveUp));
        Ok(())
    }

    #[test]
    fn reused_page_is_not_split_for_its_predecessor() -> Result {
        let table = SplitTable::new()?;
        let (completion, first) = table.begin(512, true)?;
        let first = first.ok_or(EINVAL)?;
        assert!(first.is_wanted());
        table.cancel(512);
        assert!(completion.is_completed() && !first.is_wanted());
        let (_, second) = table.begin(512, true)?;
        let second = second.ok_or(EINVAL)?;
        first.end(false);
        drop(first);
        assert!(second.is_wanted());
        assert!(matches!(table.meet(512, true), Met::Splitting(_)));
        Ok(())
    }

    #[test]
    fn failed_work_item_allocation_does_not_wait() -> Result {
        let table = SplitTable::new()?;
        let (completion, item) = table.begin(512, true)?;
        drop(item);
        assert!(completion.is_completed());
        assert!(matches!(table.meet(512, true), Met::Nothing));
        table.wait_until_idle();
        Ok(())
    }
}
