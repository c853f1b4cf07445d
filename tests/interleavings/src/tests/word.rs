// SPDX-License-Identifier: GPL-2.0

//! Words of page tables: what was written before one is seen by who sees it.

use crate::{
    harness::{full, Test},
    mm::word,
};
use kernel::{
    model::{spawn, Memory},
    prelude::*,
    sync::{
        atomic::Atomic,
        Arc, //
    },
};

pub(crate) const TESTS: &[Test] = &[
    full("word_publishes_what_was_written_before", publishes),
    full("word_of_32_bits_publishes_as_well", publishes_32),
    full("word_seen_in_order", in_order),
];

struct Published<W: kernel::sync::atomic::AtomicType> {
    memory: Memory,
    word: Atomic<W>,
}

fn publishes() {
    let shared = Arc::new(
        Published {
            memory: Memory::new(0),
            word: Atomic::new(0u64),
        },
        GFP_KERNEL,
    )
    .unwrap();
    let writer = {
        let shared = shared.clone();
        spawn(move || {
            shared.memory.write(7);
            word::store_u64(&shared.word, 1);
        })
    };
    if word::load_u64(&shared.word) == 1 {
        assert_eq!(shared.memory.read(), 7);
    }
    writer.join();
}

fn publishes_32() {
    let shared = Arc::new(
        Published {
            memory: Memory::new(0),
            word: Atomic::new(0u32),
        },
        GFP_KERNEL,
    )
    .unwrap();
    let writer = {
        let shared = shared.clone();
        spawn(move || {
            shared.memory.write(7);
            word::store_u32(&shared.word, 1);
        })
    };
    if word::load_u32(&shared.word) == 1 {
        assert_eq!(shared.memory.read(), 7);
    }
    writer.join();
}

/// Through a third thread.
fn in_order() {
    let words: Arc<[Atomic<u64>; 2]> =
        Arc::new([Atomic::new(0), Atomic::new(0)], GFP_KERNEL).unwrap();
    let (first, second) = (words.clone(), words.clone());
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
