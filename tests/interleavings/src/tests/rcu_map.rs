// SPDX-License-Identifier: GPL-2.0

//! Counted objects that are found without a lock, while the last reference is dropped.

use crate::{
    harness::{
        full,
        Test, //
    },
    kernel::rcu_map::{
        RcuArc,
        RcuMap, //
    }, //
};
use kernel::{
    model::{
        spawn,
        Memory, //
    },
    prelude::*, //
};

pub(crate) const TESTS: &[Test] = &[
    full("rcu_map_found_object_is_alive", found),
    full("rcu_map_last_of_two_references_drops", two),
    full("rcu_map_found_object_is_complete", complete),
];

/// Plain memory, written on creation and on drop.
struct Object(Memory);

impl Drop for Object {
    fn drop(&mut self) {
        self.0.write(0);
    }
}

fn object() -> RcuArc<Object> {
    let object = || {
        let object = Object(Memory::new(0));
        object.0.write(5);
        Ok::<_, Error>(object)
    };
    RcuArc::pin_init(kernel::init::Try(object())).unwrap()
}

/// A map that is not dropped.
fn map() -> &'static RcuMap<Object> {
    let map: &_ = Box::leak(Box::new(unsafe { RcuMap::uninit() }));
    unsafe { map.init() };
    map
}

/// The value of the object, if there is one.
fn read(map: &RcuMap<Object>) -> Option<u64> {
    map.get(7).map(|object| object.0.read())
}

fn found() {
    let map = map();
    map.insert(7, object()).unwrap();
    let finder = spawn(move || assert!(matches!(read(map), None | Some(5))));
    drop(map.remove(7));
    assert_eq!(read(map), None);
    finder.join();
}

/// Of two users, the last one drops the object, after the other one's accesses.
fn two() {
    let object = object();
    let other = object.clone();
    let user = spawn(move || assert_eq!(other.0.read(), 5));
    assert_eq!(object.0.read(), 5);
    drop(object);
    user.join();
}

fn complete() {
    let map = map();
    let writer = spawn(move || map.insert(7, object()).unwrap());
    assert!(matches!(read(map), None | Some(5)));
    writer.join();
    assert_eq!(read(map), Some(5));
}
