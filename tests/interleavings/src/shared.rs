// SPDX-License-Identifier: GPL-2.0

//! Stand-ins for modules of `rust/` that these tests and those of `tests/properties` share.

/// Fails the test, unless it has already failed.
#[macro_export]
macro_rules! alarm {
    ($alarm:ident, $($format:tt)+) => {
        if !::std::thread::panicking() {
            panic!("ALARM {}: {}", stringify!($alarm), ::core::format_args!($($format)+))
        }
    };
}

/// Deferred drops, which take place immediately here.
pub(crate) mod deferred {
    use core::ops::Deref;
    use kernel::{
        alloc::Flags,
        prelude::*, //
    };

    pub(crate) trait DropWaits {}

    pub(crate) struct Deferred<T: DropWaits>(KBox<T>);

    impl<T: DropWaits> Deferred<T> {
        pub(crate) fn new(make: impl FnOnce() -> Result<T>, flags: Flags) -> Result<Self> {
            Ok(Self(KBox::new(make()?, flags)?))
        }

        pub(crate) fn pinned(object: impl PinInit<T, Error>, flags: Flags) -> Result<Self> {
            Ok(Self(KBox::new(object.make()?, flags)?))
        }
    }

    impl<T: DropWaits> Deref for Deferred<T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.0
        }
    }
}

/// Shrinkers, which only a test calls.
pub(crate) mod shrinker {
    pub trait Shrink {
        fn count(&self) -> usize;
        fn scan(&self, objects: usize) -> usize;
    }

    pub(crate) mod owner {
        use kernel::{
            prelude::*,
            sync::Arc, //
        };

        pub(crate) const OBJECT_MAX_PAGES: usize = 32;

        pub(crate) struct ReclaimOwner;

        impl ReclaimOwner {
            pub(crate) fn new() -> Result<Arc<Self>> {
                Ok(Arc::new(Self, GFP_KERNEL)?)
            }
        }

        pub(crate) struct Reclaimable;

        impl Reclaimable {
            pub(crate) fn new(_owner: &Arc<ReclaimOwner>) -> Result<Self> {
                Ok(Self)
            }

            pub(crate) fn add(&self) {}

            pub(crate) fn remove(&self) {}
        }
    }
}

/// Words of the model that are initially 0.
pub(crate) mod zeroed {
    use kernel::{
        alloc::Flags,
        prelude::*,
        sync::atomic::Atomic, //
    };

    pub(crate) fn words(count: usize, flags: Flags) -> Result<KVVec<Atomic<u64>>> {
        let mut words = KVVec::with_capacity(count, flags)?;
        for _ in 0..count {
            words.push(Atomic::new(0), flags)?;
        }
        Ok(words)
    }
}

/// Memory of tables that a device walks: words of the model.
pub(crate) mod table_memory {
    use core::{
        cell::RefCell,
        ops::Range,
        sync::atomic::{
            AtomicU64,
            Ordering, //
        }, //
    };
    use kernel::{
        prelude::*,
        sync::{
            Arc,
            atomic::{
                Atomic,
                ordering::{
                    Acquire,
                    Release, //
                }, //
            },
            rcu::Guard, //
        }, //
    };

    pub(crate) fn account(_pages: i64, _bytes: i64) {}

    pub(crate) struct TableRegistration;

    pub struct TableMemory {
        some: bool,
        device_pages: u64,
    }

    impl TableMemory {
        pub const fn none() -> Self {
            Self { some: false, device_pages: 0 }
        }

        pub const fn plain() -> Self {
            Self { some: true, device_pages: 0 }
        }

        pub fn with_device_pages_at(mut self, address: u64) -> Self {
            self.device_pages = address;
            self
        }

        pub(crate) fn is_some(&self) -> bool {
            self.some
        }

        pub(crate) fn join(
            &self,
            _owner: &Arc<super::shrinker::owner::ReclaimOwner>,
        ) -> Result<TableRegistration> {
            Ok(TableRegistration)
        }

        pub(crate) fn device_pages(&self) -> u64 {
            self.device_pages
        }

        pub(crate) fn written(&self, address: u64, bytes: usize) {
            let at = LOG.with_borrow(Vec::len);
            NOTIFICATIONS.with_borrow_mut(|notifications| notifications.push((at, address, bytes)));
        }

        pub(crate) fn publish(&self) {}
    }

    /// Only for the text of KUnit suites, which is not run.
    pub(crate) trait TableWrites {
        fn written(&self, address: u64, bytes: usize);
        fn publish(&self);
    }

    pub(crate) fn order_writes() {}

    thread_local! {
        static LOG: RefCell<Vec<(u64, usize, u64)>> = const { RefCell::new(Vec::new()) };
        static NOTIFICATIONS: RefCell<Vec<(usize, u64, usize)>> =
            const { RefCell::new(Vec::new()) };
    }

    /// The writes since the last call: address of the table, index of the entry, and value.
    pub(crate) fn writes() -> Vec<(u64, usize, u64)> {
        LOG.take()
    }

    /// The notifications of the driver since the last call: number of preceding writes, address and
    /// bytes. Must be called before [`writes`].
    pub(crate) fn notifications() -> Vec<(usize, u64, usize)> {
        NOTIFICATIONS.take()
    }

    pub(crate) struct TableUnits {
        tables: Vec<Vec<Atomic<u64>>>,
        first: u64,
        bytes: usize,
    }

    impl TableUnits {
        pub(crate) fn new(
            memory: &TableMemory,
            count: usize,
            bytes: usize,
        ) -> Result<Option<Self>> {
            static NEXT: AtomicU64 = AtomicU64::new(1 << 20);
            let table = || (0..bytes / 8).map(|_| Atomic::new(0)).collect();
            Ok(memory.some.then(|| Self {
                tables: (0..count).map(|_| table()).collect(),
                // Aligned to the size of a table.
                first: NEXT
                    .fetch_add(((count + 1) * bytes) as u64, Ordering::Relaxed)
                    .next_multiple_of(bytes as u64),
                bytes,
            }))
        }

        pub(crate) fn allocated(&self) -> usize {
            (self.tables.len() * self.bytes).next_multiple_of(kernel::page::PAGE_SIZE)
        }

        pub(crate) fn get<'g>(&'g self, _guard: &'g Guard, index: usize) -> Option<TableUnit<'g>> {
            let words = self.tables.get(index)?;
            Some(TableUnit { words, address: self.first + (index * self.bytes) as u64 })
        }
    }

    pub struct TableUnit<'g> {
        words: &'g [Atomic<u64>],
        address: u64,
    }

    impl TableUnit<'_> {
        pub(crate) fn write_u32(&self, slot: usize, value: u32) {
            self.write_u64(slot, value.into());
        }

        pub(crate) fn write_u64(&self, slot: usize, value: u64) {
            LOG.with_borrow_mut(|log| log.push((self.address, slot, value)));
            self.words[slot].store(value, Release);
        }

        pub(crate) fn clear_u32(&self, slots: Range<usize>) {
            self.clear_u64(slots);
        }

        pub(crate) fn clear_u64(&self, slots: Range<usize>) {
            slots.for_each(|slot| self.write_u64(slot, 0));
        }

        pub(crate) fn read_u64(&self, slot: usize) -> u64 {
            self.words[slot].load(Acquire)
        }

        pub(crate) fn address(&self) -> u64 {
            self.address
        }
    }
}

/// The maple tree: last index and value, by first index. A store replaces ranges that it covers,
/// and truncates ranges that it overlaps. Ranges are not merged.
pub(crate) mod range_tree {
    use std::collections::BTreeMap;

    #[derive(Default)]
    pub struct RangeTree(BTreeMap<usize, (usize, usize)>);

    impl RangeTree {
        /// Stores `value` for the indices from `first` to `last`; 0 removes them.
        pub fn set(&mut self, first: usize, last: usize, value: usize) {
            let tree = &mut self.0;
            let covered: Vec<_> = tree
                .range(..=last)
                .filter(|(_, (end, _))| *end >= first)
                .map(|(start, (end, value))| (*start, *end, *value))
                .collect();
            for (start, end, old) in covered {
                tree.remove(&start);
                if start < first {
                    tree.insert(start, (first - 1, old));
                }
                if end > last {
                    tree.insert(last + 1, (end, old));
                }
            }
            if value != 0 {
                tree.insert(first, (last, value));
            }
        }

        /// The first range that overlaps the indices from `from` to `to`, and its value.
        pub fn find(&self, from: usize, to: usize) -> Option<((usize, usize), usize)> {
            let found = self.0.range(..=to).find(|(_, (end, _))| *end >= from);
            found.map(|(start, (end, value))| ((*start, *end), *value))
        }

        /// The range that contains `index`, and its value; 0: none has a value.
        pub fn at(&self, index: usize) -> ((usize, usize), usize) {
            let before = self.0.range(..=index).next_back();
            if let Some((start, (end, value))) = before.filter(|(_, (end, _))| *end >= index) {
                return ((*start, *end), *value);
            }
            let first = before.map_or(0, |(_, (end, _))| end + 1);
            let last = self.0.range(index..).next().map_or(usize::MAX, |(start, _)| start - 1);
            ((first, last), 0)
        }

        pub fn clear(&mut self) {
            self.0.clear();
        }
    }
}
