// SPDX-License-Identifier: GPL-2.0

//! Objects that are removed while readers use them.

use crate::{
    harness::{
        full,
        Test, //
    },
    kernel::rcu_slot::{
        RcuSlot,
        Retired, //
    }, //
};
use kernel::{
    model::{
        spawn,
        Memory, //
    },
    prelude::*,
    sync::{
        rcu,
        Arc, //
    }, //
};

pub(crate) const TESTS: &[Test] = &[
    full("rcu_slot_found_object_is_complete", complete),
    full("rcu_slot_object_outlives_its_readers", outlives),
    full("rcu_slot_one_of_two_puts_wins", two_puts),
    full("rcu_slot_one_of_two_takes_wins", two_takes),
    full("rcu_slot_is_refilled_after_the_last_use", empty),
];

/// Plain memory, written on creation and on drop.
struct Object(Memory);

impl Object {
    fn new(value: u64) -> KBox<Self> {
        let object = KBox::new(Self(Memory::new(0)), GFP_KERNEL).unwrap();
        object.0.write(value);
        object
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.0.write(0);
    }
}

type Slot = RcuSlot<Object>;

fn slot() -> Arc<Slot> {
    Arc::new(RcuSlot::empty(), GFP_KERNEL).unwrap()
}

/// The value in the slot, if any.
fn read(slot: &Slot) -> Option<u64> {
    let guard = rcu::read_lock();
    slot.get(&guard).map(|object| object.0.read())
}

fn take(slot: &Slot) -> bool {
    let mut retired = Retired::<_, 1>::empty();
    retired.take(slot)
}

fn complete() {
    let slot = slot();
    let other = slot.clone();
    let writer = spawn(move || assert!(other.put(Object::new(5)).is_ok()));
    assert!(matches!(read(&slot), None | Some(5)));
    writer.join();
    assert_eq!(read(&slot), Some(5));
}

fn outlives() {
    let slot = slot();
    assert!(slot.put(Object::new(5)).is_ok());
    let other = slot.clone();
    let third = slot.clone();
    let remover = spawn(move || assert!(take(&other)));
    let replacer = spawn(move || {
        let _ = third.put(Object::new(6));
    });
    assert!(matches!(read(&slot), None | Some(5 | 6)));
    remover.join();
    replacer.join();
}

fn two_puts() {
    let slot = slot();
    let other = slot.clone();
    let put = |slot: &Slot, value| match slot.put(Object::new(value)) {
        Ok(()) => true,
        Err(object) => {
            assert_eq!(object.0.read(), value);
            false
        }
    };
    let thread = spawn(move || put(&other, 5));
    let own = put(&slot, 6);
    assert!(own != thread.join());
    assert_eq!(read(&slot), Some(if own { 6 } else { 5 }));
}

fn two_takes() {
    let slot = slot();
    assert!(slot.put(Object::new(5)).is_ok());
    let other = slot.clone();
    let thread = spawn(move || take(&other));
    let own = take(&slot);
    assert!(own != thread.join());
    assert!(slot.is_empty());
}

/// A task that finds the slot empty sees the operations on the object before its removal.
fn empty() {
    let slot = slot();
    assert!(slot.put(Object::new(5)).is_ok());
    let other = slot.clone();
    let memory = Arc::new(Memory::new(0), GFP_KERNEL).unwrap();
    let theirs = memory.clone();
    let remover = spawn(move || {
        theirs.write(1);
        assert!(take(&other));
    });
    if slot.is_empty() {
        assert_eq!(memory.read(), 1);
    }
    remover.join();
}
