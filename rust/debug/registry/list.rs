// SPDX-License-Identifier: GPL-2.0

//! List of all mirrors and all device memories, in the order of their numbers.

use super::{
    DebugObject,
    ObjectKind,
    RegistryEntry, //
};
use crate::kernel::lock_classes;
use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// Number of low bits that [`short`] keeps.
const SHORT_NUMBER_BITS: u32 = 19;

/// Returns the low bits of a number. File positions contain these only, and therefore they
/// are the primary sort key of the list.
pub(super) fn short(number: u32) -> u64 {
    u64::from(number) & ((1 << SHORT_NUMBER_BITS) - 1)
}

/// Returns the lowest position in the list of the objects whose short number is `number`.
pub(super) fn at_short(number: u64) -> u64 {
    number << u32::BITS
}

/// Returns the position in the list of the object `number`.
pub(super) fn position(number: u32) -> u64 {
    at_short(short(number)) | u64::from(number)
}

/// Sort key of an object. The address distinguishes objects with the same number, after a
/// wrap-around.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct ObjectKey {
    kind: ObjectKind,
    position: u64,
    address: usize,
}

impl ObjectKey {
    fn of(place: &Arc<RegistryEntry>) -> Self {
        Self {
            kind: place.kind,
            position: position(place.number),
            address: Arc::as_ptr(place).addr(),
        }
    }
}

/// Preallocated tree node for an object.
type ObjectNode = RBTreeNode<ObjectKey, Arc<RegistryEntry>>;

/// Objects in order. `None` while there is none.
struct ObjectList(Option<RBTree<ObjectKey, Arc<RegistryEntry>>>);

impl ObjectList {
    fn add(&mut self, node: ObjectNode) {
        // Keys are unique, because the addresses are.
        let _none = self.0.get_or_insert_with(RBTree::new).insert(node);
    }

    fn remove(&mut self, place: &Arc<RegistryEntry>) {
        if let Some(tree) = &mut self.0 {
            tree.remove(&ObjectKey::of(place));
        }
    }

    /// Returns the first object whose position is not below `position`. Takes logarithmic time, so
    /// that a walk over all objects does not take quadratic time.
    fn next(&self, kind: ObjectKind, position: u64) -> Option<Arc<RegistryEntry>> {
        let first = ObjectKey {
            kind,
            position,
            address: 0,
        };
        let found = self.0.as_ref()?.cursor_lower_bound(&first)?;
        let (key, place) = found.current();
        (key.kind == kind).then(|| place.clone())
    }
}

kernel::sync::global_lock! {
    // SAFETY: `init` is called when the module is loaded, before anything is added to the list.
    unsafe(uninit) static ALL: Mutex<ObjectList> = ObjectList(None);
}

/// Registration of an object for debugfs. Dropping it waits for a concurrent reader of the object,
/// for a bounded part of its work.
pub(crate) struct DebugEntry(Arc<RegistryEntry>);

impl DebugEntry {
    /// Adds `subject` to the list.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`
    ///
    /// # Context
    ///
    /// May sleep.
    // Not inlined, so that all modules share one list.
    #[inline(never)]
    pub(crate) fn new(
        kind: ObjectKind,
        number: u32,
        pid: i32,
        subject: Arc<dyn DebugObject>,
    ) -> Result<Self> {
        let (place, node) = make(kind, number, pid, subject)?;
        ALL.lock().add(node);
        Ok(Self(place))
    }
}

/// Creates the list entry of an object, and the tree node for it.
fn make(
    kind: ObjectKind,
    number: u32,
    pid: i32,
    subject: Arc<dyn DebugObject>,
) -> Result<(Arc<RegistryEntry>, ObjectNode)> {
    let (name, class) = lock_classes::watched();
    let place = Arc::pin_init(
        pin_init!(RegistryEntry {
            kind,
            number,
            pid,
            subject <- Mutex::new(Some(subject), name, class),
        }),
        GFP_KERNEL,
    )?;
    let node = ObjectNode::new(ObjectKey::of(&place), place.clone(), GFP_KERNEL)?;
    Ok((place, node))
}

impl Drop for DebugEntry {
    #[inline(never)]
    fn drop(&mut self) {
        leave(&self.0);
        ALL.lock().remove(&self.0);
    }
}

/// Unpublishes an object.
///
/// This may drop the last reference to the object, for example if a mirror was registered but could
/// not be opened. Dropping a mirror waits for notifier callbacks, and a debugfs reader may wait for
/// locks of these callbacks while it holds the lock of the entry. Therefore the object is dropped
/// after that lock was released.
fn leave(place: &RegistryEntry) {
    let subject = place.subject.lock().take();
    drop(subject);
}

/// Initialises the list. Called before anything else in this module.
///
/// # Safety
///
/// Must be called only once.
pub(crate) unsafe fn init() {
    // SAFETY: The caller ensures that this is called only once.
    unsafe { ALL.init() };
}

/// Frees the list. Called when no object is registered.
pub(crate) fn exit() {
    drop(ALL.lock().0.take());
}

/// Returns the first object in the list whose position is not below `position`.
pub(super) fn next(kind: ObjectKind, position: u64) -> Option<Arc<RegistryEntry>> {
    ALL.lock().next(kind, position)
}

#[cfg(CONFIG_RUST_HMM_KUNIT_TEST)]
#[kunit_tests(rust_hmm_watch_list)]
mod tests {
    use super::*;
    use kernel::{
        fmt,
        new_mutex,
        sync::atomic::{
            ordering::Relaxed,
            Atomic, //
        },
        time::{
            Instant,
            Monotonic, //
        }, //
    };

    struct Nothing;

    impl DebugObject for Nothing {
        fn columns(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
            Ok(())
        }
    }

    fn add(list: &mut ObjectList, kind: ObjectKind, number: u32) -> Result<Arc<RegistryEntry>> {
        let subject = Arc::new(Nothing, GFP_KERNEL)?;
        let (place, node) = make(kind, number, 0, subject)?;
        list.add(node);
        Ok(place)
    }

    /// Returns the numbers of all objects, in the order of a walk.
    fn walk(list: &ObjectList, kind: ObjectKind) -> Result<KVec<u32>> {
        let mut numbers = KVec::new();
        let mut from = 0;
        while let Some(place) = list.next(kind, from) {
            numbers.push(place.number, GFP_KERNEL)?;
            from = position(place.number) + 1;
        }
        Ok(numbers)
    }

    #[test]
    fn objects_are_listed_once_in_order() -> Result {
        let mut list = ObjectList(None);
        assert!(list.next(ObjectKind::Mirror, 0).is_none());
        let mut places = KVec::new();
        for number in [
            7,
            0,
            u32::MAX,
            3,
            1 << SHORT_NUMBER_BITS,
            (1 << SHORT_NUMBER_BITS) + 3,
        ] {
            places.push(add(&mut list, ObjectKind::Mirror, number)?, GFP_KERNEL)?;
            places.push(add(&mut list, ObjectKind::Device, number / 2)?, GFP_KERNEL)?;
        }
        let expected = [
            0,
            1 << SHORT_NUMBER_BITS,
            3,
            (1 << SHORT_NUMBER_BITS) + 3,
            7,
            u32::MAX,
        ];
        assert_eq!(walk(&list, ObjectKind::Mirror)?.as_slice(), expected);
        assert_eq!(walk(&list, ObjectKind::Device)?.len(), 6);
        // Of two objects with the same number, a walk sees one, and the other one after that was
        // removed.
        let again = add(&mut list, ObjectKind::Mirror, 7)?;
        assert_eq!(walk(&list, ObjectKind::Mirror)?.as_slice(), expected);
        list.remove(&again);
        assert_eq!(walk(&list, ObjectKind::Mirror)?.as_slice(), expected);
        for place in &places {
            list.remove(place);
        }
        assert!(list.0.as_ref().is_some_and(RBTree::is_empty));
        Ok(())
    }

    /// Returns the minimum time in ns of a walk over `count` mirrors, of a few runs.
    fn cost(count: u32) -> Result<i64> {
        let mut list = ObjectList(None);
        for number in 0..count {
            add(&mut list, ObjectKind::Mirror, number)?;
        }
        let mut least = i64::MAX;
        for _ in 0..5 {
            let start = Instant::<Monotonic>::now();
            let mut seen = 0;
            let mut from = 0;
            while let Some(place) = list.next(ObjectKind::Mirror, from) {
                from = position(place.number) + 1;
                seen += 1;
            }
            least = least.min(start.elapsed().as_nanos());
            assert_eq!(seen, count);
        }
        Ok(least.max(1))
    }

    /// With 16 times as many objects, a walk should take slightly more than 16 times as long. If
    /// each step visited all objects, it would take 256 times as long.
    #[test]
    fn step_does_not_visit_all_objects() -> Result {
        let few = cost(512)?;
        let many = cost(8192)?;
        assert!(many / few < 100);
        Ok(())
    }

    /// An object whose drop checks whether the lock of its entry is held.
    struct Last {
        place: Arc<Mutex<Option<Arc<RegistryEntry>>>>,
        free: Arc<Atomic<i32>>,
    }

    impl DebugObject for Last {
        fn columns(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
            Ok(())
        }
    }

    impl Drop for Last {
        fn drop(&mut self) {
            if let Some(place) = self.place.lock().take() {
                let free = place.subject.try_lock().is_some();
                self.free.store(if free { 1 } else { 2 }, Relaxed);
            }
        }
    }

    #[test]
    fn last_reference_is_dropped_without_the_lock() -> Result {
        let own = Arc::pin_init(new_mutex!(None), GFP_KERNEL)?;
        let free = Arc::new(Atomic::new(0), GFP_KERNEL)?;
        let last = Last {
            place: own.clone(),
            free: free.clone(),
        };
        let last = Arc::new(last, GFP_KERNEL)?;
        let (place, _node) = make(ObjectKind::Mirror, 1, 0, last)?;
        *own.lock() = Some(place.clone());
        assert_eq!(free.load(Relaxed), 0);
        leave(&place);
        assert_eq!(free.load(Relaxed), 1);
        assert!(place.subject.lock().is_none());
        Ok(())
    }
}
