// SPDX-License-Identifier: GPL-2.0
//! Memory that is already mapped, with the interface of a mapping.

use super::Mapping;
use crate::abi::PAGE_SIZE;
use std::marker::PhantomData;
use std::sync::Mutex;

/// The whole pages inside of other memory, such as a stack array or the heap.
///
/// Used like a [`Mapping`], but dropping it unmaps nothing.
#[derive(Debug)]
pub struct View<'a> {
    map: Mapping,
    _memory: PhantomData<&'a mut [u8]>,
}

impl<'a> View<'a> {
    /// The whole pages in `memory`; `None` when there are none.
    pub fn of(memory: &'a mut [u8]) -> Option<View<'a>> {
        let start = memory.as_mut_ptr() as usize;
        let addr = start.next_multiple_of(PAGE_SIZE);
        let len = (start + memory.len()).checked_sub(addr)? / PAGE_SIZE * PAGE_SIZE;
        let holes = Mutex::new(Vec::new());
        let map = Mapping { addr, len, reserved: addr, reserved_len: 0, holes };
        (len > 0).then_some(View { map, _memory: PhantomData })
    }
}

impl std::ops::Deref for View<'_> {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_the_whole_pages() {
        let mut memory = vec![0u8; 4 * PAGE_SIZE];
        let view = View::of(&mut memory).unwrap();
        assert!(view.pages() == 3 || view.pages() == 4);
        view.fill(2);
        assert_eq!(view.check(2), Ok(()));
        assert!(View::of(&mut [0u8; 100]).is_none());
    }
}
