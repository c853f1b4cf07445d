// SPDX-License-Identifier: GPL-2.0

//! Words of page tables: a reader of a word sees all writes before its store.

use crate::{
    harness::{
        full,
        Test, //
    },
    kernel::word, //
};
use kernel::{
    model::{
        spawn,
        Memory, //
    },
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            AtomicType, //
        },
        Arc, //
    }, //
};

pub(crate) const TESTS: &[Test] = &[
    full("word_release_publishes_earlier_writes", publishes),
    full("word_values_are_seen_in_order", in_order),
];

struct Published<W: AtomicType> {
    memory: Memory,
    word: Atomic<W>,
}

fn publishes() {
    publishes_by(word::load_u64, word::store_u64);
}

fn publishes_by<W>(load: fn(&Atomic<W>) -> W, store: fn(&Atomic<W>, W))
where
    W: AtomicType + From<bool> + PartialEq + 'static,
{
    let shared = Published { memory: Memory::new(0), word: Atomic::new(W::from(false)) };
    let shared = Arc::new(shared, GFP_KERNEL).unwrap();
    let other = shared.clone();
    let writer = spawn(move || {
        other.memory.write(7);
        store(&other.word, W::from(true));
    });
    if load(&shared.word) == W::from(true) {
        assert_eq!(shared.memory.read(), 7);
    }
    writer.join();
}

/// Ordering through a third thread.
fn in_order() {
    let words: Arc<[Atomic<u64>; 2]> =
        Arc::new([Atomic::new(0), Atomic::new(0)], GFP_KERNEL).unwrap();
    let first = words.clone();
    let second = words.clone();
    let one = spawn(move || word::store_u64(&first[0], 1));
    let two = spawn(move || {
        if word::load_u64(&second[0]) == 1 {
            word::store_u64(&second[1], 1);
        }
    });
    if word::load_u64(&words[1]) == 1 {
        assert_eq!(word::load_u64(&words[0]), 1);
    }
    one.join();
    two.join();
}
