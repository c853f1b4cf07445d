// SPDX-License-Identifier: GPL-2.0

//! Boxes that are set once.

use crate::{
    harness::{
        full,
        Test, //
    },
    kernel::once_box::OnceBox, //
};
use kernel::{
    model::{
        spawn,
        Memory, //
    },
    prelude::*,
    sync::Arc, //
};

pub(crate) const TESTS: &[Test] = &[
    full("once_box_found_object_is_complete", complete),
    full("once_box_one_of_two_puts_wins", two_puts),
];

type Place = OnceBox<Memory>;

fn place() -> Arc<Place> {
    Arc::new(OnceBox::empty(), GFP_KERNEL).unwrap()
}

fn object(value: u64) -> Pin<KBox<Memory>> {
    let object = KBox::new(Memory::new(0), GFP_KERNEL).unwrap();
    object.write(value);
    Pin::from(object)
}

fn complete() {
    let place = place();
    let other = place.clone();
    let writer = spawn(move || assert_eq!(other.put(object(5)).read(), 5));
    assert!(matches!(place.get().map(Memory::read), None | Some(5)));
    writer.join();
    assert_eq!(place.get().map(Memory::read), Some(5));
}

/// Two tasks set the box: both get the same object.
fn two_puts() {
    let place = place();
    let other = place.clone();
    let thread = spawn(move || other.put(object(5)).read());
    let mine = place.put(object(6)).read();
    let theirs = thread.join();
    assert_eq!(mine, theirs);
    assert_eq!(place.get().map(Memory::read), Some(mine));
}
